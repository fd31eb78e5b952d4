"""What happens in a world, drawn from its seed before it begins: requests, hang-ups and faults.

Each kind of chance has a stream of its own, so that adding one does not move the others. Every third world lives in
whole seconds, since simultaneous events are where such systems break.
"""

import random
from enum import StrEnum

import msgspec

from forebay.app.world.clients import Wish
from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.emulator.faults import Fault, Kind, MetricsMode
from forebay.spec.types import EngineKind, Limits, Model, Pool, Scaling, Slo, Spec, Team, TeamLimits, Tier

MODEL = "world"
WORLD_S = 600.0
REQUESTS_MAX = 240
FAULTS_MAX = 6
KEYS = ("sk-high", "sk-low", "sk-heavy-high", "sk-heavy-low")


class Trouble(StrEnum):
    """What can go wrong."""

    CRASH = "crash"
    HANG = "hang"
    SLOW = "slow"
    METRICS = "metrics"
    METRICS_ALL = "metrics_all"
    ERROR_FIRST = "error_first"
    ALL_500 = "all_500"
    PARTITION = "partition"
    CHANNEL_CUT = "channel_cut"
    CHANNEL_HELD = "channel_held"
    CONTROLLER_RESTART = "controller_restart"
    GATEWAY_CRASH = "gateway_crash"
    GATEWAY_CUT_OFF = "gateway_cut_off"
    HOPS_CUT = "hops_cut"
    WORKER_KILLED = "worker_killed"


OF_SEVERAL = frozenset({Trouble.GATEWAY_CRASH, Trouble.GATEWAY_CUT_OFF, Trouble.HOPS_CUT})
"""Only where there are several gateways: of one, these are an outage, or nothing."""
TO_ALL = tuple(trouble for trouble in Trouble if trouble not in OF_SEVERAL and trouble is not Trouble.WORKER_KILLED)
WITH_WORKERS_EVERY = 4
"""Of so many worlds one has gateways with relay workers, some of which are killed."""
WORKERS = 2


class Event(msgspec.Struct, frozen=True):
    """One trouble: when, for how long, and a draw that picks its victim."""

    at_s: float
    for_s: float
    trouble: Trouble
    draw: int
    mode: MetricsMode = MetricsMode.MISSING

    def fault(self) -> Fault | None:
        """The engine fault it is, if it is one."""
        kinds = {
            Trouble.HANG: Kind.HANG,
            Trouble.SLOW: Kind.SLOW,
            Trouble.METRICS: Kind.METRICS,
            Trouble.METRICS_ALL: Kind.METRICS,
            Trouble.ERROR_FIRST: Kind.ERROR_FIRST_EVENT,
            Trouble.ALL_500: Kind.ALL_500,
            Trouble.CRASH: Kind.CRASH,
        }
        return Fault(kinds[self.trouble], mode=self.mode) if self.trouble in kinds else None


class Plan(msgspec.Struct, frozen=True):
    """A world before it begins."""

    seed: int
    ties: bool
    spec: Spec
    profile: Profile
    wishes: tuple[Wish, ...]
    events: tuple[Event, ...]


def draw(seed: int, gateways: int = 1, workers: int | None = None) -> Plan:
    """The plan of ``seed``. More ``gateways`` get troubles of their own besides, and so do relay ``workers`` (None: in some worlds)."""
    ties = seed % 3 == 2
    shape = random.Random(f"{seed}/shape")
    profile = _profile(shape)
    if workers is None:
        workers = WORKERS if seed % WITH_WORKERS_EVERY == 1 else 0
    spec = msgspec.structs.replace(_spec(shape, profile), gateways=gateways, relay_workers=workers)
    if gateways > 1:
        spec = _limited(spec)
    events = _events(seed, ties) + (_events_of_several(seed, ties) if gateways > 1 else ())
    events += _events_of_workers(seed, ties) if workers else ()
    return Plan(seed, ties, spec, profile, _wishes(seed, ties), events)


def _moment(chance: random.Random, least_s: float, most_s: float, ties: bool) -> float:
    return float(chance.randint(int(least_s), int(most_s))) if ties else round(chance.uniform(least_s, most_s), 6)


def _profile(chance: random.Random) -> Profile:
    return Profile(
        name="world",
        model=MODEL,
        hardware="none",
        gpus=1,
        law=StepLaw(base_s=0.25, per_sequence_s=0.01, per_kv_token_s=1e-6, per_prefill_token_s=0.0005),
        sequences_max=chance.choice((2, 4, 8)),
        kv_tokens=chance.choice((1024, 2048, 8192)),
        block_tokens=16,
        prefill_chunk_tokens=512,
        kv_bytes_per_token=1,
        context_tokens=1024,
        cold_start=ColdStart(float(chance.choice((5, 20))), 10.0, 1.0, 5.0),
        gpu_hour_usd=1.0,
    )


def _spec(chance: random.Random, profile: Profile) -> Spec:
    scaling = Scaling(
        min_replicas=1,
        max_replicas=5,
        interval_s=5.0,
        out_waiting_for_s=10.0,
        in_calm_s=30.0,
        in_step_fraction=0.5,
        replica_rate_per_s=chance.choice((0.1, 0.2, 0.5)),
        prompt_tokens=150,
        output_tokens=20,
        buffer=chance.random() < 0.5,
        starts_max=2,
        drain_s_max=120.0,
    )
    tiers = (
        Tier("high", 0, ttft_s=5.0, longest_wait_s=60.0),
        Tier("low", 2, ttft_s=60.0, longest_wait_s=120.0, preemptible=True),
    )
    pool = Pool("pool", MODEL, EngineKind("emulated"), profile, Slo(5.0, 1.0, 0.9), scaling, queued_max=chance.choice((8, 64)))
    return Spec(
        pools=(pool,),
        models=(Model(MODEL, 1024),),
        tiers=tiers,
        teams=(
            Team("team", ((KEYS[0], "high"), (KEYS[1], "low"))),
            Team("heavy", ((KEYS[2], "high"), (KEYS[3], "low")), weight=3.0, limits=TeamLimits(requests_per_minute=60)),
        ),
        limits=Limits(idle_s=30.0, total_s=200.0, drain_s=60.0),
    )


def _limited(spec: Spec) -> Spec:
    """With limits of every kind, which gateways share."""
    first, heavy = spec.teams
    limits = TeamLimits(requests_per_minute=60, tokens_per_minute=12_000, requests_in_flight=24, tokens_in_flight=5000)
    return msgspec.structs.replace(spec, teams=(first, msgspec.structs.replace(heavy, limits=limits)))


def _wishes(seed: int, ties: bool) -> tuple[Wish, ...]:
    chance = random.Random(f"{seed}/wishes")
    count = chance.randint(REQUESTS_MAX // 2, REQUESTS_MAX)
    burst_s = _moment(chance, 60, 200, ties)
    wishes = []
    for number in range(count):
        at_s = _moment(chance, burst_s, burst_s + 20, ties) if chance.random() < 0.5 else _moment(chance, 0, 400, ties)
        patience_s = _moment(chance, 1, 40, ties) if chance.random() < 0.25 else 10_000.0
        prompt, output = chance.randint(1, 300), chance.randint(1, 40)
        wishes.append(Wish(number, at_s, prompt, output, chance.random() < 0.7, chance.choice(KEYS), patience_s))
    return tuple(wishes)


def _events(seed: int, ties: bool) -> tuple[Event, ...]:
    chance = random.Random(f"{seed}/troubles")
    return tuple(
        Event(
            at_s=_moment(chance, 20, 300, ties),
            for_s=_moment(chance, 1, 60, ties),
            trouble=chance.choice(TO_ALL),
            draw=chance.randrange(1_000_000),
            mode=chance.choice(tuple(MetricsMode)),
        )
        for _ in range(chance.randint(0, FAULTS_MAX))
    )


def _events_of_several(seed: int, ties: bool) -> tuple[Event, ...]:
    chance = random.Random(f"{seed}/gateways")
    troubles = (*OF_SEVERAL, Trouble.CONTROLLER_RESTART)
    return tuple(
        Event(_moment(chance, 30, 300, ties), _moment(chance, 1, 60, ties), chance.choice(sorted(troubles)), chance.randrange(1_000_000))
        for _ in range(chance.randint(1, FAULTS_MAX))
    )


def _events_of_workers(seed: int, ties: bool) -> tuple[Event, ...]:
    chance = random.Random(f"{seed}/workers")
    moments = [_moment(chance, 30, 300, ties) for _ in range(chance.randint(0, FAULTS_MAX))]
    return tuple(Event(at_s, 0.0, Trouble.WORKER_KILLED, chance.randrange(1_000_000)) for at_s in moments)
