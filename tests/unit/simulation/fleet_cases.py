"""Random small fleets in which everything happens: tiny KV, tiny chunks, ties, drains, stops, prefixes, several tiers."""

import math
from random import Random

import msgspec
import numpy as np

from forebay.demand.arrays import Arrivals
from forebay.domain.profile import ColdStart, Profile, StepLaw, StepSpread, WarmUp
from forebay.domain.roster import Capacity, Posture
from forebay.simulation.values import Dispatch, FleetRules, Order, Queueing, TierRules

TICK_S = 2.0**-10
"""Times of arrivals and calls are multiples of it, and so are those of many steps: ties are common, and sums of floats exact."""


class Case:
    """Rules, arrivals and a driver's script, all from one seed. ``exact``: every time is a dyadic fraction; ``scattered``: steps vary;
    ``cold``: engines start with a warm-up."""

    def __init__(self, seed, exact=True, scattered=False, cold=False):
        self.chance = chance = Random(seed)
        self.exact = exact
        shape = chance.choice((3, 8, 20)), chance.choice((1, 4, 12, 30))
        self.rules = _rules(chance, exact, sum(shape))
        if scattered:
            self.rules = _scattered(self.rules, seed)
        if cold:
            self.rules = _cold(self.rules, seed)
        self.rows = _arrivals(chance, self.rules, exact, *shape)
        self.script = _script(chance, self.rows[-1][0], exact)
        self.cuts = sorted(chance.randrange(len(self.rows) + 1) for _ in range(chance.randrange(4)))

    def source(self):
        """The arrivals in chunks, some of them empty."""
        for start, end in zip([0, *self.cuts], [*self.cuts, len(self.rows)], strict=True):
            yield arrivals_of(self.rows[start:end])


def arrivals_of(rows):
    columns = list(zip(*rows, strict=True)) or [()] * 6
    kinds = (np.float64, np.int32, np.int32, np.int16, np.int64, np.int32)
    return Arrivals(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def _time_s(chance, low_ticks, high_ticks, exact):
    return chance.randint(low_ticks, high_ticks) * TICK_S if exact else chance.uniform(low_ticks, high_ticks) * TICK_S


def _law(chance, exact):
    if exact:
        fine = chance.random() < 0.5
        return StepLaw(
            base_s=chance.randint(1, 40) * TICK_S,
            per_sequence_s=fine * chance.randint(0, 8) * 2.0**-14,
            per_kv_token_s=fine * chance.randint(0, 3) * 2.0**-18,
            per_prefill_token_s=chance.choice((0, 1, 1)) * chance.randint(0, 4) * 2.0**-12,
        )
    return StepLaw(
        chance.uniform(1, 40) * TICK_S, chance.uniform(0, 1e-3), chance.choice((0.0, chance.uniform(0, 1e-5))), chance.uniform(0, 1e-3)
    )


def _profile(chance, exact, longest):
    """KV for one of the longest requests at least, but in some cases."""
    sequences, block = chance.randint(1, 8), chance.randint(1, 4)
    blocks = int(longest * chance.choice((0.8, 1, 1.5, 2, 4)) / block) + 1
    return Profile(
        name="small",
        model="model",
        hardware="none",
        gpus=1,
        law=_law(chance, exact),
        sequences_max=sequences,
        kv_tokens=blocks * block + chance.randrange(block),
        block_tokens=block,
        prefill_chunk_tokens=sequences + chance.choice((0, 1, 3, 10, 100)),
        kv_bytes_per_token=1,
        context_tokens=chance.choice((40, 1000, 1000, 1000)),
        cold_start=ColdStart(1, 1, 1, 1),
        front_end_s=chance.choice((0, 0, 1)) * _time_s(chance, 1, 20, exact),
    )


def _rules(chance, exact, longest):
    profile = _profile(chance, exact, longest)
    tiers = tuple(
        TierRules(
            name=f"t{place}",
            ttft_s=_time_s(chance, 5, 500, exact),
            itl_s=_time_s(chance, 1, 80, exact),
            longest_wait_s=chance.choice((0.0, _time_s(chance, 1, 300, exact), *[_time_s(chance, 1000, 30000, exact)] * 6)),
            preemptible=chance.random() < 0.3,
        )
        for place in range(chance.randint(1, 3))
    )
    capacity = Capacity(
        kv_tokens=max(1, int(profile.kv_tokens * chance.choice((0.7, 1, 1, 1.5, 2)))),
        sequences=chance.choice((1, 2, profile.sequences_max, profile.sequences_max, 12)),
        prefill_tokens=chance.choice((0, 10, 30, 100, 1000)),
        prefill_tokens_per_s=0.0,
        decode_tokens_per_s=0.0,
        context_tokens=chance.choice((40, 1000, 1000)),
    )
    return FleetRules(
        profile=profile,
        capacity=capacity,
        tiers=tiers,
        queueing=chance.choice(list(Queueing)),
        dispatch=chance.choice(list(Dispatch)),
        order=chance.choice(list(Order)),
        queued_max=chance.choice((0, 1, 5, *[1000] * 6)),
        prefix_groups_max=chance.choice((0, 1, 2, 100)),
        replicas_max=chance.choice((1, 2, 3, 6, 12)),
    )


def _scattered(rules, seed):
    """``rules`` with steps that vary: by a little, or by halves and doubles, so that ties are common as well."""
    chance = Random(f"spread/{seed}")
    quantiles = sorted(chance.choice(((0.5, 1.0, 2.0), [chance.uniform(0.2, 3) for _ in range(7)])))
    spread = StepSpread(*sorted(chance.choices(quantiles, k=7)))
    return msgspec.structs.replace(rules, profile=msgspec.structs.replace(rules.profile, spread=spread), seed=seed)


def _cold(rules, seed):
    """``rules`` with first steps that are slow: a few, or more than some replicas live to make."""
    chance = Random(f"cold/{seed}")
    warm_up = WarmUp(chance.choice((1, 2, 5, 20, 60)), chance.choice((1.5, 2.0, 3.0, 8.0)))
    return msgspec.structs.replace(rules, profile=msgspec.structs.replace(rules.profile, warm_up=warm_up))


def _arrivals(chance, rules, exact, prompt, output):
    rows, at_s = [], 0.0
    pace = chance.choice((0, 2, 10, 40))
    groups = chance.choice((0, 1, 3, 80))
    for _ in range(chance.choice((1, 10, 30, 60, 120))):
        at_s += _time_s(chance, 0, pace, exact)
        group = chance.randrange(-1, groups)
        rows.append(
            (
                at_s,
                chance.randint(1, prompt),
                chance.randint(1, output),
                chance.randrange(len(rules.tiers)),
                group,
                chance.randint(0, prompt),
            )
        )
    return rows


def _script(chance, last_s, exact):
    """Calls of the driver in order of time, each with a number to choose a row by."""
    until = int(last_s / TICK_S * 1.3) + 200
    words = ("add", "add", "add", "add", "drain", "cancel_drain", "cancel_drain", "stop", "look", "forget", "posture")
    times = sorted(_time_s(chance, 0, until, exact) for _ in range(chance.randint(3, 25)))
    calls = [(at_s, chance.choice(words), chance.randrange(1000)) for at_s in times]
    return [(0.0, "add", 0), *calls, (times[-1], "add", 0)]


def play(case, fleets, look):
    """Drive all ``fleets`` through the script alike, calling ``look(live rows)`` after every call; at the end nothing is left."""
    live = []
    for at_s, word, number in case.script:
        for fleet in fleets:
            fleet.run_until(at_s)
        _call(case, fleets, word, number, live)
        look(live)
    for row in live:
        _call(case, fleets, "cancel_drain", live.index(row), live)
    at_s, step_s = case.script[-1][0], 1.0
    while not fleets[0].exhausted:
        at_s, step_s = at_s + step_s, step_s * 2
        for fleet in fleets:
            fleet.run_until(at_s)
        look(live)


def _call(case, fleets, word, number, live):
    if word == "forget":
        for fleet in fleets:
            fleet.forget_recent()
    elif word == "posture":
        for fleet in fleets:
            fleet.set_posture(list(Posture)[number % 3])
    elif word == "add" and len(live) < case.rules.replicas_max:
        rows = {fleet.add() for fleet in fleets}
        assert len(rows) == 1
        live += rows
    elif word in ("drain", "cancel_drain", "stop") and live:
        row = live[number % len(live)]
        answers = {getattr(fleet, word)(row) for fleet in fleets}
        assert len(answers) == 1, f"{word} {row}: {answers}"
        if word == "stop":
            live.remove(row)


def close(a, b, exact):
    return a == b or (math.isnan(a) and math.isnan(b)) or (not exact and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9))
