"""What `forebay calibrate` shows: a table that fits a usual terminal, why a number could not be told, and what it does not take."""

import msgspec
import pytest
from lab_case import invoke, said

from forebay.cli.calibrate import _print, _yaml, command
from forebay.domain.profile import StepLaw, StepSpread
from forebay.engine.catalogue import PROFILES
from forebay.engine.fitting import COEFFICIENTS, Coefficient, Coverage, Fitted
from forebay.loadgen.calibration import Measured
from forebay.spec.decode import decode_profiles

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
    assert told.splitlines()[0].startswith("meta-llama/Llama-3.1-8B-Instruct: 0 windows of lockstep decoding, 0 lone")
    table = [line for line in told.splitlines() if line.startswith("│")]
    assert len(table) == 5, "no row is folded"
    assert "not identified" in table[2]
    assert [line for line in told.splitlines() if "told?" in line]
    assert f"Not identified, per 1,000 KV tokens: {WHY}." in " ".join(told.split())


def fitted(*laws):
    """A result whose coefficients are these, by value, low and high."""
    coefficients = tuple(Coefficient(name, *bounds, True, "") for name, bounds in zip(COEFFICIENTS, laws, strict=True))
    law = StepLaw(*(value for value, _, _ in laws))
    spread = StepSpread(0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5)
    return Fitted(law, 0.016, coefficients, 0.002, 0.013, Coverage((1, 32), (80.0, 51284.0), (64, 1500)), ("x",), spread)


LOOSE = fitted((0.010888379905492, 0.0108, 0.0109), (32.972e-6, 30e-6, 39e-6), (41.3123456789e-9, 41e-9, 42e-9), (0.0, 0.0, 0.0))


def test_a_coefficient_that_is_told_loosely_is_said_so_beside_it(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    _print(LOOSE, Measured("m", (), (), ()), "ending")
    told = capsys.readouterr().out
    (row,) = (line for line in told.splitlines() if "per decoding sequence" in line and line.startswith("│"))
    assert "loosely" in row
    assert "Loosely told, per decoding sequence: its interval is 27% of it." in told


def test_the_profile_is_written_in_units_people_read_and_its_lines_are_whole(monkeypatch, capsys):
    """Nanoseconds with six digits after the point; a terminal's width cut a line into two, and a copy of it was no YAML."""
    monkeypatch.setenv("COLUMNS", "60")
    text = _yaml(LOOSE, Measured("m", (), (), ()), "mine", "llama-3.1-8b-h100")
    assert "      base: 10.88838ms\n      per_sequence: 32.972us\n      per_kv_token: 41.31235ns\n      per_prefill_token: 0ns\n" in text
    assert "    # told loosely: per_sequence\n" in text
    _print(LOOSE, Measured("m", (), (), ()), text)
    assert text in capsys.readouterr().out
    profiles, has_pools = decode_profiles(text, "mine.yaml", PROFILES)
    assert not has_pools
    for name in COEFFICIENTS:
        assert getattr(profiles["mine"].law, name) == pytest.approx(getattr(LOOSE.law, name), rel=1e-6)


def unsure(base):
    """The file of a fit that can't tell two of its numbers, read back."""
    known = [Coefficient(each.name, each.value, each.low, each.high, each.name not in UNSURE, "") for each in LOOSE.coefficients]
    text = _yaml(msgspec.structs.replace(LOOSE, coefficients=tuple(known)), Measured("m", (), (), ()), "mine", base)
    return text, decode_profiles(text, "mine.yaml", PROFILES)[0].get("mine") if base else None


UNSURE = ("per_sequence_s", "per_prefill_token_s")


def test_what_was_not_identified_is_the_bases_and_the_file_says_so_in_data():
    """It was written as if measured, `per_prefill_token: 0ns` with a comment beside, and everything was sized by that."""
    text, profile = unsure("llama-3.1-8b-h100")
    law, base = profile.law, PROFILES["llama-3.1-8b-h100"].law
    assert (law.per_sequence_s, law.per_prefill_token_s) == (base.per_sequence_s, base.per_prefill_token_s)
    assert law.per_kv_token_s == pytest.approx(LOOSE.law.per_kv_token_s)
    assert profile.not_measured == ("per_sequence", "per_prefill_token")
    assert "    not_measured: [per_sequence, per_prefill_token]\n" in text


def test_without_a_base_what_was_not_identified_is_marked_where_it_stands():
    text, _ = unsure("")
    assert "      per_sequence: 32.972us # not told by these measurements\n" in text
    assert "    not_measured: [per_sequence, per_prefill_token]\n" in text


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
