"""``forebay check`` says what is in a right file and exits 0, or tells every problem on stderr and exits 2."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from forebay.app import supervisor
from forebay.cli import check, schema
from forebay.domain.errors import BadInput

HOME = Path(__file__).parents[3]
EXAMPLES = sorted(path for path in (HOME / "examples").rglob("*.yaml") if path.parent.name != "teams")

app = typer.Typer()
app.command("check")(check.command)
app.command("schema")(schema.command)
runner = CliRunner()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(HOME)))
def test_every_example_is_right(path: Path) -> None:
    result = runner.invoke(app, ["check", str(path)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "chat" in result.stdout
    assert "is right" in result.stdout


def test_the_quickstart_is_what_newcomers_are_told() -> None:
    result = runner.invoke(app, ["check", str(HOME / "examples" / "quickstart.yaml"), "--json", "-"])
    summary = json.loads(result.stdout)
    assert summary["ok"] is True
    pool = summary["pools"]["chat"]
    assert (pool["model"], pool["engine"], pool["min_replicas"]) == ("llama-3.1-8b", "emulated", 2)
    assert (summary["gateway"], summary["admin"]) == ("127.0.0.1:0", "127.0.0.1:0")
    assert summary["teams"]["demo"]["keys"] == 2
    assert "sk-demo" not in result.stdout


def test_the_file_is_named_as_to_other_commands_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(HOME / "examples" / "quickstart.yaml")
    told = [runner.invoke(app, ["check", *words]) for words in ([file], ["-c", file], ["--config", file])]
    assert [each.exit_code for each in told] == [0, 0, 0]
    assert told[0].stdout == told[1].stdout == told[2].stdout
    monkeypatch.chdir(tmp_path)
    assert "forebay.yaml" in runner.invoke(app, ["check"]).stderr, "named nowhere, it is the one here"


def test_two_files_at_once_are_refused() -> None:
    refused = runner.invoke(app, ["check", "one.yaml", "-c", "other.yaml"]).exception
    assert isinstance(refused, BadInput)
    assert str(refused) == "-c: found 'other.yaml' beside 'one.yaml', allowed: one configuration; check each by itself"


def test_problems_go_to_stderr_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text("pools:\n  chat:\n    attach: [http://127.0.0.1:9100]\n    scaling:\n      min: two\nspede: 1\n")
    result = runner.invoke(app, ["check", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    first, second, count = result.stderr.splitlines()
    assert first == f'{path}:5: pools.chat.scaling.min: found "two"; allowed: a whole number ≥ 0 and ≤ 10000'
    assert second.startswith(f"{path}:6: spede: found an unknown key;")
    assert second.endswith('did you mean "speed"?')
    assert count == f"2 problems in {path}; nothing was started"


def test_problems_as_json(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    result = runner.invoke(app, ["check", str(tmp_path / "none.yaml"), "--json", str(target)])
    assert result.exit_code == 2
    value = json.loads(target.read_text())
    assert value["ok"] is False
    assert value["problems"][0]["line"] == 1
    assert value["problems"][0]["found"] == "no such file or directory"


@pytest.mark.parametrize(("arguments", "key"), [(["schema"], "pools"), (["schema", "--teams"], "teams")])
def test_the_schema_is_printed(arguments: list[str], key: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    assert key in json.loads(result.stdout)["required"]


MINE = """\
profiles: {{mine: {{base: llama-3.1-8b-h100, price: 2}}}}
pools:
  chat:
    profile: mine
    engine: {{kind: emulated}}
    slo: {{ttft: {ttft}, itl: 50ms}}
    scaling: {{min: 1, max: 4, ramp: 30/min/min, cold_start: 5m{rate}}}
"""


def checked(tmp_path: Path, ttft: str = "1s", rate: str = "") -> tuple[dict, str]:
    path = tmp_path / "forebay.yaml"
    path.write_text(MINE.format(ttft=ttft, rate=rate))
    result = runner.invoke(app, ["check", str(path), "--json", str(tmp_path / "out.json")])
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads((tmp_path / "out.json").read_text()), result.stdout


def test_it_says_what_the_promise_comes_to(tmp_path: Path) -> None:
    summary, text = checked(tmp_path, rate=", replica_rate: 50/min")
    pool = summary["pools"]["chat"]
    assert pool["buffer_replicas"] == 3, "30/min/min for 5 min at 50/min"
    assert (pool["usd_per_hour_min"], pool["usd_per_hour_max"]) == (2.0, 8.0)
    assert "50/min (declared)" in text
    assert "2.00 to 8.00" in text


def test_a_promise_that_no_replica_keeps_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    summary, text = checked(tmp_path, ttft="1ms")
    assert summary["pools"]["chat"]["replica_rate_per_s"] == 0
    (warning,) = summary["warnings"]
    assert warning.startswith("pools.chat: no replica can keep this promise, ttft binds: An idle replica needs")
    assert f"warning: {warning}" in text


def test_a_declared_rate_far_from_the_computed_one_is_a_warning(tmp_path: Path) -> None:
    computed = checked(tmp_path)[0]["pools"]["chat"]["replica_rate_per_s"]
    assert checked(tmp_path)[0]["warnings"] == []
    for factor, warned in ((2.9, False), (1 / 2.9, False), (3.1, True), (1 / 3.1, True)):
        summary, _ = checked(tmp_path, rate=f", replica_rate: {computed * factor:.6f}/s")
        assert bool(summary["warnings"]) is warned, factor


@pytest.mark.parametrize(("context", "warned"), [(8192, True), (131072, False)])
def test_a_model_context_below_that_of_its_emulated_engines_is_a_warning_with_both_numbers(
    tmp_path: Path, context: int, warned: bool
) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(MINE.format(ttft="1s", rate="") + f"models: {{chat: {{context: {context}}}}}\n")
    result = runner.invoke(app, ["check", str(path), "--json", "-"])
    warnings = json.loads(result.stdout)["warnings"]
    said = "models.chat.context is 8192, but emulated engines of pool chat take 131072 tokens, as their profile says: "
    assert [warning.startswith(said) for warning in warnings] == [True] * warned


def test_a_context_that_nobody_wrote_is_not_told_as_a_line_of_the_file(tmp_path: Path) -> None:
    """A pool without a profile leaves its model the default, which emulated engines of another pool of it don't heed."""
    path = tmp_path / "forebay.yaml"
    path.write_text(MINE.format(ttft="1s", rate="") + "  other: {model: chat, region: eu, attach: [http://127.0.0.1:9100]}\n")
    text = path.read_text().replace("chat:", "chat:\n    region: us", 1)
    path.write_text(text)
    warnings = json.loads(runner.invoke(app, ["check", str(path), "--json", "-"]).stdout)["warnings"]
    said = "models.chat.context is not set, and taken to be 8192, but emulated engines of pool chat take 131072 tokens"
    assert [warning for warning in warnings if warning.startswith(said)], warnings


def test_warm_nodes_are_for_the_lab_and_worth_a_share_of_the_price(tmp_path: Path) -> None:
    for share, told in ((0.1, 1), (1.0, 2)):
        file = tmp_path / "forebay.yaml"
        head = "pools: {chat: {profile: llama-3.1-70b-fp8-1xh200, engine: {kind: emulated}, scaling: {warm: {max: 3, share: "
        file.write_text(f"{head}{share}" + "}}}}")
        warnings = json.loads(runner.invoke(app, ["check", str(file), "--json", "-"]).stdout)["warnings"]
        assert len(warnings) == told
        assert "`forebay up` refuses" in warnings[0]
        with pytest.raises(BadInput, match=r"pools.chat.scaling.warm.max: found 3; allowed: 0 with `forebay up`"):
            supervisor.up(file)


def test_the_last_line_says_how_to_start_and_where_it_listens() -> None:
    attached = runner.invoke(app, ["check", str(HOME / "examples" / "attach.yaml")]).stdout
    assert f"forebay gateway -c {HOME / 'examples' / 'attach.yaml'}" in attached
    started = runner.invoke(app, ["check", str(HOME / "examples" / "quickstart.yaml")]).stdout
    assert "Gateway 127.0.0.1 on a free port" in started
    assert "forebay gateway" not in started


def _with_tls(folder: Path, cert: Path, key: Path) -> Path:
    path = folder / "forebay.yaml"
    path.write_text(f'pools: {{chat: {{attach: ["http://a:1"]}}}}\ngateway: {{tls: {{cert: "{cert}", key: "{key}"}}}}\n')
    return path


def test_the_files_of_the_certificate_are_read(tmp_path: Path) -> None:
    """A missing certificate was only found by the start."""
    good = HOME / "tests" / "fixtures" / "tls"
    assert runner.invoke(app, ["check", str(_with_tls(tmp_path, good / "cert.pem", good / "key.pem"))]).exit_code == 0
    (tmp_path / "empty.pem").write_text("nothing")
    for cert, key, path, words in (
        ("none.pem", good / "key.pem", "gateway.tls.cert", "no file"),
        ("empty.pem", good / "key.pem", "gateway.tls.cert", "holds none"),
        (good / "cert.pem", "empty.pem", "gateway.tls.key", "holds none"),
    ):
        file = _with_tls(tmp_path, Path(cert), Path(key))
        result = runner.invoke(app, ["check", str(file), "--json", str(tmp_path / "result.json")])
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{path}: found " in result.stderr
        assert words in result.stderr
        (problem,) = json.loads((tmp_path / "result.json").read_text())["problems"]
        assert problem["path"] == path


def test_relay_workers_that_would_have_nothing_to_do_are_a_warning(tmp_path: Path) -> None:
    good = HOME / "tests" / "fixtures" / "tls"
    file = _with_tls(tmp_path, good / "cert.pem", good / "key.pem")
    file.write_text(file.read_text().replace("gateway: {", "gateway: {workers: 2, "))
    result = runner.invoke(app, ["check", str(file)])
    assert result.exit_code == 0
    assert "warning: gateway.workers is 2, but streams of clients by HTTPS stay with the gateway" in result.stdout.replace("\n", " ")
    file.write_text('pools: {chat: {attach: ["http://a:1"]}}\ngateway: {workers: 2}\n')
    assert "gateway.workers" not in runner.invoke(app, ["check", str(file)]).stdout


def _with_tokenizers(folder: Path, *names: str) -> Path:
    path = folder / "forebay.yaml"
    pools = "".join(
        f'  pool-{number}: {{attach: ["http://a:{number + 1}"], profile: llama-3.1-8b-h100, estimate: {{tokenizer: {name}}}}}\n'
        for number, name in enumerate(names)
    )
    path.write_text(f"pools:\n{pools}")
    return path


def test_the_tokenizers_of_the_pools_are_read(tmp_path: Path) -> None:
    """A tokenizer that was not there was only found by the start."""
    (tmp_path / "folder.json").mkdir()
    file = _with_tokenizers(tmp_path, "none.json", "folder.json")
    result = runner.invoke(app, ["check", str(file), "--json", str(tmp_path / "result.json")])
    assert (result.exit_code, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    words = f"pools.pool-0.estimate.tokenizer: found no tokenizer in {tmp_path / 'none.json'} (no such file or directory); allowed: "
    assert first.startswith(f"{file}: {words}")
    assert "folder.json (is a directory)" in second
    problems = json.loads((tmp_path / "result.json").read_text())["problems"]
    assert [problem["path"] for problem in problems] == ["pools.pool-0.estimate.tokenizer", "pools.pool-1.estimate.tokenizer"]


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra `exact` is not installed")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?")).save(str(tmp_path / "good.json"))
    (tmp_path / "empty.json").write_text("{}")
    assert runner.invoke(app, ["check", str(_with_tokenizers(tmp_path, "good.json"))]).exit_code == 0
    result = runner.invoke(app, ["check", str(_with_tokenizers(tmp_path, "good.json", "empty.json"))])
    assert result.exit_code == 2
    assert "pools.pool-1.estimate.tokenizer: found no tokenizer in" in result.stderr


def test_without_the_library_a_tokenizer_is_a_warning(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    result = runner.invoke(app, ["check", str(_with_tokenizers(tmp_path, "tokenizer.json")), "--json", "-"])
    assert result.exit_code == 0, result.stderr
    (warning,) = json.loads(result.stdout)["warnings"]
    assert warning.startswith("pools.pool-0.estimate.tokenizer: found no library `tokenizers`")
    assert "forebay[exact]" in warning


def test_a_certificate_and_its_key_that_are_both_missing_are_told_at_once(tmp_path: Path) -> None:
    """The key was only told of once the certificate was there."""
    result = runner.invoke(app, ["check", str(_with_tls(tmp_path, Path("c.pem"), Path("k.pem"))), "--json", str(tmp_path / "result.json")])
    assert result.exit_code == 2
    told = [line.partition(": ")[2].partition(": found no file")[0] for line in result.stderr.splitlines()]
    assert told == ["gateway.tls.cert", "gateway.tls.key"]
    problems = json.loads((tmp_path / "result.json").read_text())["problems"]
    assert [problem["path"] for problem in problems] == told


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here to make a certificate")
def test_the_walkthroughs_configuration_is_right_as_printed(tmp_path: Path) -> None:
    """With the certificate that the page says how to make; it named files that nobody had."""
    page = (HOME / "docs" / "in-front-of-vllm.md").read_text()
    (tmp_path / "forebay.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    (line,) = [line for line in page.splitlines() if "openssl req" in line]
    subprocess.run(line.removeprefix("$ "), shell=True, check=True, cwd=tmp_path, capture_output=True)
    result = runner.invoke(app, ["check", str(tmp_path / "forebay.yaml")])
    assert result.exit_code == 0, result.stderr


SPILL = """
pools: {chat: {attach: ["http://a:1"], profile: llama-3.1-8b-h100,
  overflow: {spill: [{name: far, url: "https://far.example/v1", key_env: FAR_TEST_KEY}]}}}
teams: {search: {keys: [{key: sk-search-live-1234, tier: interactive}], overflow: [spill]}}
"""


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, "found no FAR_TEST_KEY in the environment"),
        ("", "found no"),
        ("sk far", "with blanks"),
        ("sk-far\n", "with blanks"),
        ("sk-far", ""),
    ],
)
def test_a_key_that_is_not_in_the_environment_is_a_warning(key, words, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("FAR_TEST_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("FAR_TEST_KEY", key)
    path = tmp_path / "forebay.yaml"
    path.write_text(SPILL)
    result = runner.invoke(app, ["check", str(path), "--json", "-"])
    assert result.exit_code == 0, result.stderr
    warnings = json.loads(result.stdout)["warnings"]
    assert len(warnings) == bool(words)
    assert all(words in warning and "pools.chat.overflow.spill far" in warning for warning in warnings)
    assert "sk-far" not in result.stdout


def test_attached_engines_without_a_profile_are_told_of_what_is_taken_for_granted() -> None:
    result = runner.invoke(app, ["check", str(HOME / "examples" / "attach.yaml"), "--json", "-"])
    assert "256 requests at once" in json.loads(result.stdout)["warnings"][0]


def test_what_the_figure_of_one_replica_is_and_which_first_token_goes_where_is_said(tmp_path: Path) -> None:
    """468 a minute stood there without a word, where `plan size` measured 4.95 a second of two; and two first tokens, of which one is judged."""
    path = tmp_path / "forebay.yaml"
    pool = "pools:\n  chat: {model: llama-3.1-8b, profile: llama-3.1-8b-h100, engine: {kind: emulated}, slo: {ttft: 2s}, scaling: {%s}}\n"
    path.write_text(pool % "")
    told = " ".join(runner.invoke(app, ["check", str(path)]).stdout.split())
    assert "One replica serves at most that: at a steady rate" in told
    assert f"plan size -c {path} --trace FILE measures" in told
    assert "by the pool's (chat 2s) replicas are sized, and interactive is judged in the lab" in told
    path.write_text((pool % "replica_rate: 3/s").replace("slo: {ttft: 2s}, ", ""))
    told = runner.invoke(app, ["check", str(path)]).stdout
    assert "at most that" not in told
    assert "First tokens:" not in told


def test_a_pool_sized_by_numbers_that_were_not_measured_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(
        "profiles: {mine: {base: demo, not_measured: [per_sequence, per_kv_token]}}\npools: {chat: {profile: mine, engine: {kind: emulated}}}\n"
    )
    summary = json.loads(runner.invoke(app, ["check", str(file), "--json", "-"]).stdout)
    (warning,) = [one for one in summary["warnings"] if "not measured" in one]
    assert warning.startswith("pools.chat: step.per_sequence, step.per_kv_token of profile mine: not measured")
