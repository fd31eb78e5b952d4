"""A pool to ask the policy about: hand-made observations, and a driver that carries desired count and memory along."""

import math

import pytest

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import Observation, ReplicaObservation
from forebay.domain.signal import Known, Unknown
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.policy import QueueFirst
from forebay.spec.types import Scaling

WALL_S = 1_790_000_000.0
PER_MIN = 1 / 60
RAMP_30_PER_MIN2 = 30 / 3600


class Pool:
    """Replicas that are ready at once, loads set by hand. ``at(...)`` decides at a time; ``hold`` over a stretch of it."""

    def __init__(self, calendar=(), capacity=None, **settings):
        settings = {"min_replicas": 1, "max_replicas": 20, "in_margin": 0.15, **settings}
        self.settings = Scaling(**settings)
        self.capacity = capacity or PoolCapacity(rate_per_s=50 * PER_MIN, cold_start_s=300.0, origin="declared")
        self.policy = QueueFirst(self.settings, self.capacity, calendar, "chat")
        self.desired = self.settings.min_replicas
        self.memory = b""
        self.now_s = 0.0

    def replica(self, index, state=ReplicaState.READY, waiting=0.0, kv=0.3, known=True, **fields):
        signals = (
            {"waiting": Known(waiting, self.now_s), "kv_usage": Known(kv, self.now_s)}
            if known
            else {"waiting": Unknown("timeout"), "kv_usage": Unknown("timeout")}
        )
        return ReplicaObservation(id=f"chat-{index}", state=state, since_s=0.0, requested_s=0.0, **signals, **fields)

    def observation(self, per_min=0.0, waiting=0.0, kv=0.3, ready=None, others=(), replicas=None, **fields):
        ready = self.desired if ready is None else ready
        known = dict.fromkeys(("lanes_waiting", "arrival_per_s"), None)
        known["lanes_waiting"] = Known(waiting, self.now_s)
        known["arrival_per_s"] = Known(per_min * PER_MIN, self.now_s)
        values = {
            "pool": "chat",
            "now_s": self.now_s,
            "wall_s": WALL_S + self.now_s,
            "desired": self.desired,
            "memory": self.memory,
            **known,
            **fields,
        }
        replicas = replicas if replicas is not None else (*(self.replica(i, kv=kv) for i in range(ready)), *others)
        return Observation(replicas=tuple(replicas), **values)

    def at(self, now_s, **load):
        self.now_s = now_s
        decision = self.policy.decide(self.observation(**load))
        self.desired, self.memory = decision.replicas, decision.memory
        return decision

    def hold(self, for_s, every_s=10.0, **load):
        """The same load for a stretch of time; the last decision."""
        until_s = self.now_s + for_s
        while self.now_s < until_s:
            decision = self.at(min(until_s, self.now_s + every_s), **load)
        return decision

    @staticmethod
    def term(decision, name):
        return next((term for term in decision.terms if term.name == name), None)


@pytest.fixture
def make_pool():
    return Pool


@pytest.fixture
def poisson():
    """Draws of a Poisson number of mean ``m``, by Knuth's product (exact for the small means used here)."""

    def draw(chance, mean):
        limit, count, product = math.exp(-mean), 0, chance.random()
        while product > limit:
            count += 1
            product *= chance.random()
        return count

    return draw
