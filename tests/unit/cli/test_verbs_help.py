"""Every verb teaches: what it is for, and what each of its options means."""

import importlib.metadata

import click
import pytest
import typer
from typer.testing import CliRunner

from forebay import HANDLED_IN
from forebay.cli.main import app
from forebay.native import RELAYED_IN

ROOT = typer.main.get_command(app)


def leaves(command, words=()):
    """(words, command) of every verb below."""
    if isinstance(command, click.Group) or hasattr(command, "commands"):
        return [leaf for name, sub in command.commands.items() for leaf in leaves(sub, (*words, name))]
    return [(words, command)]


VERBS = leaves(ROOT)


def test_the_verbs_are_all_there():
    assert {words[0] for words, _ in VERBS} == {
        "up",
        "usage",
        "gateway",
        "status",
        "explain",
        "check",
        "schema",
        "profile",
        "emulate",
        "replay",
        "demo",
        "world",
        "calibrate",
        "trace",
        "simulate",
        "compare",
        "backtest",
        "tune",
        "plan",
    }


def test_it_says_its_version():
    result = CliRunner().invoke(app, ["--version"])
    said = f"(requests handled in {HANDLED_IN}, streams relayed in {RELAYED_IN})"
    assert (result.exit_code, result.stdout) == (0, f"forebay {importlib.metadata.version('forebay')} {said}\n")


def test_without_a_word_it_says_where_to_start():
    result = CliRunner().invoke(app, [])
    assert "forebay up -c examples/quickstart.yaml" in result.output


@pytest.mark.parametrize(("words", "command"), VERBS, ids=lambda value: "-".join(value) if isinstance(value, tuple) else "")
def test_help_says_what_it_is_for_and_what_each_option_means(words, command):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert command.help is not None
    purpose = command.help.split("\n\n")[0]
    assert len(purpose) >= 25, purpose
    assert purpose.endswith((".", ":")), purpose
    silent = [parameter.name for parameter in command.params if not getattr(parameter, "help", None) and parameter.name != "help"]
    assert silent == []
