"""A pool to ask another autoscaler about: observations made by hand, and a driver that carries desired count and memory along."""

import pytest
from baseline_pool import POOL, PROFILE

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import Observation, ReplicaObservation
from forebay.domain.signal import Known, Unknown
from forebay.scaling.baselines.frame import Framed, Limits
from forebay.scaling.baselines.settings import Targets, targets
from forebay.scaling.capacity import pool_capacity

WALL_S = 1_790_000_000.0
SIGNALS = ("waiting", "running", "kv", "gpu", "queued_tokens")


class Driver:
    """One law over a pool whose replicas are ready at once unless told otherwise. ``at`` decides at a time, ``hold`` over a stretch."""

    def __init__(self, law, desired=10, least=1, most=100):
        self.policy = Framed(law, Limits(least, most))
        self.desired = desired
        self.memory = b""
        self.now_s = 0.0

    def signal(self, value):
        return value if isinstance(value, Unknown) else Known(float(value), self.now_s)

    def replica(self, index, state=ReplicaState.READY, waiting=0.0, running=0.0, kv=0.0, gpu=0.0, queued_tokens=0.0):
        told = [self.signal(value) for value in (waiting, running, kv, queued_tokens, gpu)]
        return ReplicaObservation(f"chat-{index:05}", state, 0.0, 0.0, *told)

    def observation(
        self, ready=None, pending=0, lanes=0.0, each=None, replicas=None, rate=0.0, running=None, prompt=1000.0, output=200.0, **rest
    ):
        """``each``: what every ready replica tells; ``replicas``: told one by one instead."""
        ready = self.desired - pending if ready is None else ready
        each = each or {}
        if replicas is None:
            replicas = [self.replica(index, **each) for index in range(ready)]
            replicas += [ReplicaObservation(f"new-{index}", ReplicaState.PROVISIONING, 0.0, 0.0) for index in range(pending)]
        known = isinstance(rate, Unknown)
        run = sum(reading.running.value for reading in replicas if isinstance(reading.running, Known)) if running is None else running
        values = {
            "arrival_per_s": self.signal(rate),
            "arrival_prompt_tokens_per_s": rate if known else self.signal(rate * prompt),
            "arrival_output_tokens_per_s": rate if known else self.signal(rate * output),
            "lanes_waiting": self.signal(lanes),
            "running": self.signal(run),
            "wall_s": WALL_S + self.now_s,
            "memory": self.memory,
            **rest,
        }
        return Observation(pool="chat", now_s=self.now_s, desired=self.desired, replicas=tuple(replicas), **values)

    def at(self, now_s, **load):
        self.now_s = now_s
        decision = self.policy.decide(self.observation(**load))
        self.desired, self.memory = decision.replicas, decision.memory
        return decision

    def hold(self, for_s, every_s=15.0, **load):
        """The same load for a stretch; every count that was decided."""
        until_s, counts = self.now_s + for_s, []
        while self.now_s < until_s:
            counts.append(self.at(min(until_s, self.now_s + every_s), **load).replicas)
        return counts

    @staticmethod
    def term(decision, name):
        return next((term for term in decision.terms if term.name == name), None)

    @staticmethod
    def dark(why):
        """Nothing is known, for this reason."""
        gone = Unknown(why)
        return {"lanes": gone, "rate": gone, "running": gone, "each": dict.fromkeys(SIGNALS, gone)}


@pytest.fixture
def drive():
    return Driver


@pytest.fixture(scope="session")
def round_pool():
    return POOL


@pytest.fixture(scope="session")
def round_targets():
    return targets(POOL, pool_capacity(POOL))


@pytest.fixture(scope="session")
def make_targets():
    """Targets with numbers of one's choice instead of derived ones."""

    def make(**numbers):
        values = {
            "profile": PROFILE,
            "limits": Limits(1, 100),
            "ttft_s": 1.0,
            "itl_s": 0.05,
            "prompt_tokens": 1000.0,
            "output_tokens": 200.0,
            "rate_per_s": 10.0,
            "sequences": 40.0,
            "kv_usage": 0.4,
            "prompt_tokens_per_s": 10_000.0,
            "cold_start_s": 360.0,
        }
        return Targets(**{**values, **numbers})

    return make
