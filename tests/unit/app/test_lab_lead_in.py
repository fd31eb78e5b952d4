"""A policy begins a span as it would have by then: with the replicas that it had, and what it had learned."""

import json

import msgspec
import numpy as np
import pytest

from forebay.app.lab import lead_in
from forebay.app.lab.comparing import Task, work
from forebay.app.lab.faults import parse_faults
from forebay.app.lab.lead_in import LEAD_IN_REQUESTS_MAX, Remembering, begun, length_s
from forebay.app.lab.policies import make
from forebay.app.lab.request import LabRequest, TraceOptions
from forebay.app.lab.world import prepared
from forebay.domain.scaling import History
from forebay.engine.catalogue import PROFILES
from forebay.simulation.scripted import Scripted
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Pool, Scaling

pytestmark = pytest.mark.timeout(900)
"""The first test may have to compile the kernel."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """15 of 25 minutes at 0.4/s, ten of which came before."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    times = np.sort(np.random.default_rng(5).uniform(0, 1500, 600))
    path.write_text(
        "".join(json.dumps({"at_s": round(float(at_s), 3), "prompt_tokens": 400, "output_tokens": 30}) + "\n" for at_s in times)
    )
    scaling = Scaling(min_replicas=1, max_replicas=6, interval_s=15.0, prompt_tokens=400, output_tokens=30)
    pool = Pool("chat", "llama-3.1-8b", EngineKind("emulated"), PROFILES["llama-3.1-8b-h100"], scaling=scaling)
    return prepared(LabRequest(pool, DEFAULT_TIERS, (), TraceOptions(str(path), "jsonl", start_s=600.0)), lambda doing: None)


def silent_tell(share):
    """Nobody watches."""


class Noting:
    """A policy that wants ``replicas``, and remembers how often it was asked."""

    def __init__(self, replicas, seen):
        self._policy = Scripted([(0.0, replicas)], "noting")
        self._seen = seen

    def decide(self, observation):
        self._seen.append(observation)
        asked = int(observation.memory or b"0") + 1
        return msgspec.structs.replace(self._policy.decide(observation), memory=str(asked).encode())


def past(*counts):
    column = np.array(counts, "<f4").tobytes()
    return History(0.0, 300.0, column, column, column)


@pytest.mark.parametrize(
    ("counts", "buckets"),
    [
        ([5] * 4, 4),
        ([5] * 50, 36),
        ([5, 0, 5, 5], 2),
        ([5, np.nan, 5], 1),
        ([5, 5, 0], 0),
        ([LEAD_IN_REQUESTS_MAX / 2] * 5, 2),
        ([LEAD_IN_REQUESTS_MAX * 2.0], 0),
    ],
)
def test_a_lead_in_is_bounded_and_unbroken(counts, buckets):
    assert length_s(past(*counts)) == 300.0 * buckets


def test_without_a_past_there_is_none(ready):
    assert length_s(None) == 0.0
    alone, policy = begun(msgspec.structs.replace(ready, past=None), lambda: make("forebay", ready), "forebay", 0, silent_tell)
    assert alone.initial_replicas == ready.initial_replicas
    assert not isinstance(policy, Remembering)


def test_replicas_and_memory_are_taken_over_and_the_clock_goes_on(ready):
    seen = []
    led, policy = begun(ready, lambda: Noting(4, seen), "noting", 0, silent_tell)
    assert length_s(ready.past) == 600.0
    assert led.initial_replicas == 4
    assert led.request == ready.request
    assert (len(seen), seen[0].wall_s, seen[-1].wall_s) == (40, 0.0, 585.0), "the ten minutes that came before"
    assert msgspec.structs.replace(led, initial_replicas=ready.initial_replicas) == ready
    assert policy.decide(seen[0]).memory == b"41"
    assert policy.decide(seen[0]).memory == b"1", "from then on the memory is what the loop hands in"


def test_faults_are_the_span_s_own(ready):
    request = msgspec.structs.replace(ready.request, faults=parse_faults("crash=1@14m"), faults_text="crash=1@14m")
    seen = []
    led, _ = begun(msgspec.structs.replace(ready, request=request), lambda: Noting(2, seen), "noting", 0, silent_tell)
    assert led.request.faults.outages, "which begin after a lead-in of ten minutes would have ended"


def test_a_run_counts_nothing_of_its_lead_in(ready):
    told = []
    result = work(Task(ready, "forebay", 0), told.append)
    assert result.requests == ready.survey.requests
    assert result.duration_s == ready.duration_s
    assert told == sorted(told)
    assert lead_in.length_s(ready.past) == 600.0
