"""What the command does where the shell gave it a stdout that refuses, or no stderr at all."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e
VERSION = (sys.executable, "-m", "forebay.cli.main", "--version")


def run(words, redirected):
    return subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirected}', *words], capture_output=True, text=True, timeout=50, check=False)


def test_a_stdout_that_refuses_is_a_sentence_and_not_a_traceback():
    full = run(VERSION, "> /dev/full")
    assert (full.returncode, full.stderr) == (1, "what was to be written could not be: No space left on device\n")


def test_what_is_for_a_closed_stderr_does_not_go_to_stdout():
    """Python prints to stdout what is printed to a stderr that is not there: `--json -` was no JSON any more."""
    closed = run((*VERSION[:3], "compare", "--spec", "none.yaml", "--trace", "none.csv"), "2>&-")
    assert (closed.returncode, closed.stdout, closed.stderr) == (2, "", "")
