"""What `forebay calibrate` shows: a table that fits a usual terminal, why a number could not be told, and what it does not take."""

import pytest
from lab_case import invoke, said

from forebay.cli.calibrate import _print, command
from forebay.domain.profile import StepLaw
from forebay.engine.fitting import Coefficient, Coverage, Fitted
from forebay.loadgen.calibration import Measured

URL = "http://127.0.0.1:9"
WHY = (
    "its interval, 0.000 to 93.125, is wider than half of it, and it adds 0.7% to the largest step measured, which can't be told from noise"
)


def test_the_table_fits_a_hundred_columns_and_says_below_what_was_not_identified(monkeypatch, capsys):
    """Reasons stood in a column of their own, which was folded to a few letters, or pushed the table over the edge."""
    monkeypatch.setenv("COLUMNS", "100")
    coefficients = (
        Coefficient("base_s", 0.0062671, 0.0062640, 0.0062730, True, ""),
        Coefficient("per_sequence_s", 11.963e-6, 11e-6, 12.4e-6, True, ""),
        Coefficient("per_kv_token_s", 41.3e-9, 0.0, 93.125e-9, False, WHY),
        Coefficient("per_prefill_token_s", 16.746e-6, 16.598e-6, 16.905e-6, True, ""),
    )
    found = Fitted(
        StepLaw(0.006, 1e-5, 1e-8, 1e-5), 0.016, coefficients, 0.002, 0.013, Coverage((1, 32), (80.0, 51284.0), (64, 1500)), ("x",)
    )
    _print(found, Measured("meta-llama/Llama-3.1-8B-Instruct", (), (), ()), "ending")
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 100
    table = [line for line in told.splitlines() if line.startswith("│")]
    assert len(table) == 5, "no row is folded"
    assert "not identified" in table[2]
    assert f"Not identified, per 1,000 KV tokens: {WHY}." in " ".join(told.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--name", "a: b"], "--name: found 'a: b'; allowed: a name: letters, digits, . _ and -, such as"),
        (["--timeout", "0s"], "--timeout: found '0s', allowed: more than 0, at most 1d"),
        (["--timeout", "9w"], "--timeout: found '9w'"),
        (["--write", "x", "--json", "x"], "--json: found 'x', which is what --write names"),
        (["--write", "none/x"], "--write: can't write 'none/x' (No such file or directory)"),
    ],
)
def test_what_would_be_found_out_after_the_sweep_is_found_out_before(words, sentence):
    """A name that is none made a file that no configuration takes; a place that can't be written lost minutes of measuring."""
    assert sentence in said(invoke(command, URL, *words))


def test_a_seed_below_zero_is_refused():
    """It was taken, and broke the bootstrap after the sweep."""
    assert invoke(command, URL, "--seed", "-5").exit_code == 2
