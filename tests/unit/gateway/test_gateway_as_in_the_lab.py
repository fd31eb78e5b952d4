"""A policy must see live what it saw in the lab: one story, told by a real gateway to the controller and by the simulation's senses."""

import asyncio
import math
from typing import NamedTuple

import msgspec
import pytest

from forebay.controller import gateways, observing
from forebay.controller.demand import BUCKET_S
from forebay.controller.gateways import GatewayBook
from forebay.controller.observing import PoolFacts, observation
from forebay.controller.service import LEASE_S
from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.domain.signal import Known, Unknown
from forebay.ports import EngineSignals
from forebay.simulation import faults, sensing
from forebay.simulation.lab_life import Replica
from forebay.simulation.values import MetricFault, ReplicaReadings, Scenario, TierTotals
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Slo, Spec

ITL_S = 0.05
TTFT_S = DEFAULT_TIERS[0].ttft_s
SPEC = Spec((Pool("chat", "llama", EngineKind("attach"), slo=Slo(itl_s=ITL_S)),), (Model("llama", 8192),), DEFAULT_TIERS)
CLOSED_S = 33.5
"""From here on no replica takes anything: what comes waits."""
END_S = 36.0
ASSUMED_S = 20.0


class Wish(NamedTuple):
    """One request, and how the engine will answer it. No time of it falls on a whole second, at which all is looked at."""

    at_s: float
    tier: str
    output: int
    wait_s: float
    gap_s: float
    cut: bool

    @property
    def first_s(self):
        return self.at_s + self.wait_s

    @property
    def last_s(self):
        return self.first_s + (self.output - 1) * self.gap_s


def story():
    """Two requests a second: late first tokens, slow streams, some cut, some that last; and as many again that may be preempted."""
    for number in range(int(2 * END_S)):
        at_s = 0.113 + number / 2
        output, wait_s, gap_s = 2 + number % 4, 1.4 if number % 10 == 3 else 0.21, 0.071 if number % 8 == 5 else 0.031
        if number % 25 in {9, 14}:
            output, gap_s = 30, 0.4531
        yield Wish(at_s, "interactive", output, wait_s, gap_s, number % 30 == 11)
        yield Wish(at_s + 0.2, "batch", 3, 0.21, 0.5, cut=False)


WISHES = tuple(story())


class ToldFleet:
    """`SimulatedFleet`, as far as senses look at one: the story's truth at ``now_s``."""

    now_s = 0.0

    def totals(self, tier):
        del tier
        now_s = self.now_s
        came = [wish for wish in WISHES if wish.tier == "interactive" and wish.at_s <= now_s]
        sent = [wish for wish in came if wish.at_s <= CLOSED_S]
        ended = [wish for wish in sent if wish.last_s <= now_s]
        completed = [wish for wish in ended if not wish.cut]
        begun = [wish for wish in sent if wish.first_s <= now_s]
        quick = sum(wish.gap_s <= ITL_S for wish in completed)
        return TierTotals(
            arrived=len(came),
            completed=len(completed),
            completed_output_tokens=sum(wish.output for wish in completed),
            cut=len(ended) - len(completed),
            ttft_met=sum(wish.wait_s <= TTFT_S for wish in begun),
            # The gateway counts as missed what waits for longer than was promised, once a second.
            ttft_missed=sum(wish.wait_s > TTFT_S for wish in begun)
            + sum(wish.at_s > CLOSED_S and now_s - wish.at_s > TTFT_S for wish in came)
            + sum(wish.at_s <= CLOSED_S and wish.at_s + TTFT_S < now_s < wish.first_s for wish in came),
            itl_met=quick,
            itl_missed=len(ended) - quick,
            waiting=len(came) - len(sent),
        )

    def read(self, row):
        del row
        return ReplicaReadings(0, 0, 0.5, 0, 0, 0.0, 0)

    def recent_quantile_s(self, what, quantile):
        del what, quantile
        return 0.2


async def engine(seen, answer):
    wish = WISHES[seen.json()["number"]]
    answer.stream()
    answer.role()
    loop = asyncio.get_running_loop()
    for number in range(wish.output):
        await asyncio.sleep(wish.first_s + number * wish.gap_s - loop.time())
        if wish.cut and number == wish.output - 1:
            answer.cut()
            return
        answer.token("t", "stop" if number == wish.output - 1 else None)
    answer.event({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": wish.output}})
    answer.done()


VIEWS = (
    ReplicaView("chat-1", "chat", ReplicaState.READY, 0.0, 0.0, "http://127.0.0.1:1"),
    ReplicaView("chat-2", "chat", ReplicaState.LOADING, END_S - 10.0, END_S - 10.0),
    ReplicaView("chat-3", "chat", ReplicaState.LOADING, END_S - 60.0, END_S - 60.0),
)


def live(book, now_s):
    facts = PoolFacts("chat", 2, b"m", None, Unknown("never"), ASSUMED_S, ())
    return observation(facts, VIEWS, {"chat-1": EngineSignals(kv_usage=Known(0.5, END_S))}, book, now_s, now_s)


def lab(now_s=END_S, *trouble):
    fleet = ToldFleet()
    senses = sensing.Senses(fleet, (0,), faults.Faults(trouble, 0), 0.0, net=False)
    replicas = []
    for view in VIEWS:
        replica = Replica(int(view.id[-1]), "chat", view.requested_s)
        replica.state, replica.row = view.state, 0
        replicas.append(replica)
    facts = sensing.Facts("chat", now_s, now_s, 2, b"m", Unknown("never"), ASSUMED_S, (), None)
    seen = None
    for second in range(int(now_s) + 1):
        fleet.now_s = float(second)
        senses.take(fleet.now_s, replicas[:1])
        seen = senses.observe(facts._replace(now_s=fleet.now_s), replicas)
    return seen


async def told(front, book):
    """Play the story to a gateway, whose snapshots go into ``book`` each second."""

    async def ask(number, wish):
        await front.sleep(wish.at_s - front.clock.now_s())
        body = {"model": "llama", "stream": True, "service_tier": wish.tier, "number": number, "messages": []}
        (await front.client()).send("/v1/chat/completions", body)

    async def close():
        await front.sleep(CLOSED_S - front.clock.now_s())
        front.route()

    doing = [asyncio.ensure_future(task) for task in (close(), *(ask(number, wish) for number, wish in enumerate(WISHES)))]
    book.hello("gw-1", 0.0)
    for second in range(int(END_S) + 1):
        await front.sleep(second - front.clock.now_s())
        book.snapshot(msgspec.structs.replace(front.gateway.snapshot(), at_s=float(second)), float(second))
    await asyncio.gather(*doing)


@pytest.fixture
def book(world, wide):
    found = GatewayBook(LEASE_S)
    world(lambda front: told(front, found), engine, spec=SPEC, capacity=wide)
    return found


@pytest.fixture
def wide(one_slot):
    """Room for all."""
    return msgspec.structs.replace(one_slot, sequences=1000, kv_tokens=10**7, prefill_tokens=10**7)


SAME = (
    "arrival_per_s",
    "lanes_waiting",
    "running",
    "completed_per_s",
    "completed_output_tokens_per_s",
    "ttft_attainment",
    "itl_attainment",
)


def test_a_policy_sees_the_same_live_and_in_the_lab_and_silence_is_unknown_in_both(book):
    here, there = live(book, END_S), lab()
    values = {name: (getattr(here, name).value, getattr(there, name).value) for name in SAME}
    assert {name: one for name, (one, _) in values.items()} == pytest.approx({name: other for name, (_, other) in values.items()})
    assert (here.lanes_waiting.value, here.running.value) == (5.0, 2.0)
    assert 0.5 < here.itl_attainment.value < 1 > here.ttft_attainment.value > 0.5
    assert [(one.id, one.state, one.expected_ready_s, one.overdue) for one in here.replicas] == [
        (one.id, one.state, one.expected_ready_s, one.overdue) for one in there.replicas
    ]
    only_there = {name for name in here.__struct_fields__ if isinstance(getattr(here, name), Unknown)}
    assert only_there - {"cold_start_s"} == {"itl_p95_s", "ttft_p95_s", "warm_start_s"}, "these no policy reads, and no node is warm"
    lost_s = END_S + LEASE_S + 1
    here, there = live(book, lost_s), lab(lost_s, MetricFault("frozen", END_S, math.inf))
    for name in (*SAME, "arrival_prompt_tokens_per_s", "arrival_output_tokens_per_s"):
        assert getattr(here, name) == getattr(there, name) == Unknown("gateway_lost")


def test_both_look_over_the_same_spans():
    for name in ("RATE_WINDOW_S", "RATE_SPAN_S_MIN", "ATTAINMENT_WINDOW_S", "ATTAINMENT_SAMPLES_MIN"):
        assert getattr(gateways, name) == getattr(sensing, name)
    for name in ("OVERDUE_FACTOR", "OVERDUE_S_MIN"):
        assert getattr(observing, name) == getattr(sensing, name)
    assert faults.LEASE_S == LEASE_S
    assert next(field.default for field in msgspec.structs.fields(Scenario) if field.name == "history_bucket_s") == BUCKET_S
