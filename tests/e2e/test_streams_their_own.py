"""Clients and engines of all manners around a gateway, over real sockets: each client gets its own answer (`bench/stream_soak.py`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
SOAK = Path(__file__).resolve().parents[2] / "bench" / "stream_soak.py"


@pytest.mark.parametrize(
    "options",
    [[], ["--no-ids"], ["--workers", "1"], ["--slots", "6"]],
    ids=["continued", "error events", "relay worker", "batch gives way"],
)
def test_what_a_client_gets_is_its_own_answer_whole_and_in_order(options):
    command = [sys.executable, str(SOAK), "--clients", "40", "--seconds", "3", "--json", "-", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = json.loads(done.stdout)
    assert ends["whole"] > 20
    assert ends["tokens"] > 1000
    if "--no-ids" in options:
        assert ends["error"], "no engine has cut an answer"
