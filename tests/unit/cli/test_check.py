"""``forebay check`` says what is in a right file and exits 0, or tells every problem on stderr and exits 2."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from forebay.cli import check, schema

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
