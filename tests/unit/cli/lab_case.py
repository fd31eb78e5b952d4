"""A pool and a few minutes of traffic, small enough for the lab's verbs to be run whole in a test."""

import json
import random

import typer
from typer.testing import CliRunner

SPEC = """
pools:
  chat:
    model: llama-3.1-8b
    profile: llama-3.1-8b-h100
    engine: {kind: emulated}
    slo: {ttft: 1s, itl: 50ms, attainment: 0.99}
    scaling: {min: 1, max: 5, interval: 15s, shape: {prompt: 200, output: 20}}
"""


def spec(folder, text=SPEC):
    path = folder / "forebay.yaml"
    path.write_text(text)
    return path


def trace(folder, requests=120, span_s=240.0, name="trace.jsonl"):
    """Arrivals at random over ``span_s`` seconds, the first at 0."""
    chance = random.Random(7)
    times = sorted([0.0, *(chance.uniform(0, span_s) for _ in range(requests - 1))])
    rows = [{"at_s": round(at_s, 3), "prompt_tokens": chance.randint(50, 350), "output_tokens": chance.randint(1, 40)} for at_s in times]
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def invoke(command, *words):
    """The result of one verb; what a user did wrong is in ``exception``."""
    app = typer.Typer()
    app.command()(command)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(word) for word in words])


def said(result):
    """The sentence a user gets, of a mistake that ends with code 2."""
    assert result.exception is not None
    assert getattr(result.exception, "exit_code", None) == 2, result.exception
    return str(result.exception)
