"""Interactive and batch on one pool at 130 % of what it serves, in virtual time: interactive keeps its first token, batch has the rest."""

import importlib.util
from pathlib import Path

import pytest

from forebay.testing.loop import run

PROFILE = "llama-3.1-70b-fp8-2xh100"
REPLICAS = 4
SECONDS = 60.0
SEEDS = (1, 2)
BATCH_ALONE_PER_S = 31.0
"""What batch alone gets of these four replicas (bench/mixed_load.py)."""


def _bench():
    path = Path(__file__).parents[2] / "bench" / "mixed_load.py"
    found = importlib.util.spec_from_file_location("mixed_load", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.timeout(300)
def test_interactive_keeps_its_first_token_beside_batch_that_fills_what_is_left():
    bench = _bench()

    def rows(shares):
        played = [run(lambda: bench.play(PROFILE, REPLICAS, shares, SECONDS, seed, True)) for seed in SEEDS]  # noqa: B023
        return bench.pooled(played, SECONDS * 2 / 3)

    alone = rows({"interactive": 0.6})["interactive"]
    both = rows({"interactive": 0.6, "batch": 0.7})
    interactive, batch = both["interactive"], both["batch"]
    assert interactive["refused"] == interactive["other"] == 0
    assert interactive["lane_wait_mean_s"] < 0.001
    assert interactive["ttft_p95_s"] <= 1.2 * alone["ttft_p95_s"], (interactive, alone)
    assert batch["per_s"] >= 0.9 * (BATCH_ALONE_PER_S - interactive["per_s"]), (batch, interactive)
