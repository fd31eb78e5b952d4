"""Weeks of made-up traffic: kinds of work with their daily and weekly cycles, holidays, growth, launches, bursts and lengths.

The kinds are fitted to public figures (see each). A day follows the clock on the wall of a time zone: where summer time begins
or ends, a day has 23 or 25 hours, and its morning comes when people wake up.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import ArrivalSource
from forebay.demand.intensity import Intensity, smooth
from forebay.demand.lengths import Percentiles
from forebay.demand.series import RateSeries
from forebay.demand.synthesis import NOISE_CELL_S, requests, times
from forebay.demand.transform import merged

STEP_S = 300.0
DAY_S, WEEK_S = 86_400.0, 604_800.0
WEEKS_MAX = 520.0
RATE_MAX = 1e6
"""Requests a second: more are a mistake in the unit, and would be written for ever."""
NOISE_MAX, CV_MAX, FACTOR_MAX = 1.0, 100.0, 10_000.0
YEARS = (1971, 2199)
"""Times are written as Unix time, which a trace has from 0 on."""
MIDNIGHT_H = 3.0
"""Days go over into each other for this long before and after midnight, as Azure's conversations do."""
DAY_NOISE = 0.04
"""Variation from one day to the next that no calendar explains: weekdays of the Azure 2024 conversations differ by that much."""
_AZURE_CONVERSATION_DAY = tuple(
    0.01 * percent
    for percent in (89, 97, 95, 79, 80, 87, 101, 109, 111, 108, 97, 103, 115, 127, 134, 124, 113, 109, 108, 101, 92, 77, 69, 72)
)


def _waves(first: float, second: float, peak_h: float) -> tuple[float, ...]:
    """A day whose log rate is a wave of 24 hours and one of 12, both highest at ``peak_h``; mean 1."""
    angle = 2 * np.pi * (np.arange(24) + 0.5 - peak_h) / 24
    rate = np.exp(first * np.cos(angle) + second * np.cos(2 * angle))
    return tuple((rate / rate.mean()).tolist())


class Kind(NamedTuple):
    """One kind of work."""

    prompt: tuple[float, ...]
    """Percentiles 50, 90, 99 (with the 10th before them where it is known)."""
    output: tuple[float, ...]
    day: tuple[float, ...]
    """Rate in each hour of a weekday on the wall's clock, mean 1."""
    weekend: float
    """Rate of a Saturday or Sunday (and, unless said otherwise, of a holiday) relative to a weekday."""
    cv: float
    """Variation of the gaps between requests."""
    source: str


KINDS: Mapping[str, Kind] = {
    "conversation": Kind(
        (905, 3792, 6519),
        (41, 342, 694),
        _AZURE_CONVERSATION_DAY,
        0.57,
        1.1,
        "Azure 2024 conversations: percentiles of the week; hours and weekend of the digitised rate (UTC there); gaps of Azure 2023",
    ),
    "code": Kind(
        (1916, 6181, 7681),
        (8, 43, 271),
        _waves(1.256, 0.040, 14.0),
        0.35,
        13.0,
        "Azure 2024 code: percentiles; hourly peak 3.07 times the mean and 34.5 times the valley; gaps of Azure 2023 (13.2)",
    ),
    "reasoning": Kind(
        (208, 2092, 23423),
        (792, 3432, 12607),
        _waves(0.495, 0.157, 21.0),
        1.0,
        1.6,
        "ServeGen deepseek-r1: percentiles, the two waves of its one day, gaps of its clients together; the hour of the peak is a guess",
    ),
    "long-context": Kind(
        (964, 6909, 27367, 85400),
        (24, 350, 597, 1118),
        _AZURE_CONVERSATION_DAY,
        0.57,
        1.4,
        "Mooncake conversations: percentiles, and gaps by its dispersion over ten seconds; hours and weekend as of conversations",
    ),
}


class Launch(msgspec.Struct, frozen=True):
    """From ``at`` on (local time), ``factor`` times the traffic."""

    at: datetime
    factor: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to generate."""

    kinds: Mapping[str, float]
    """Share of requests by name of a kind."""
    rate: float
    """Requests per second, mean of an ordinary week."""
    start: date
    """Begins at its midnight."""
    duration_s: float
    zone: str = "UTC"
    growth_per_week: float = 0.0
    holidays: Mapping[date, float | None] = {}
    """Traffic relative to a weekday's; None: as on a weekend."""
    launches: tuple[Launch, ...] = ()
    noise: float = 0.05
    """Variation of the rate from minute to minute."""
    day_noise: float = DAY_NOISE
    cv: float | None = None
    """Variation of gaps; None: each kind's own."""


def problems(plan: Plan) -> Iterator[str]:
    """What is wrong with a plan; nothing where all is well."""
    if not plan.kinds:
        yield f"found no kind of traffic; allowed: some of {', '.join(KINDS)}"
    for name in plan.kinds:
        if name not in KINDS:
            yield f"kind {name!r}; allowed: {', '.join(KINDS)}"
    above = {"rate": plan.rate, **{f"share of {name}": share for name, share in plan.kinds.items()}}
    yield from (
        f"{what} {value:g}; allowed: a number above 0, at most {RATE_MAX:g}" for what, value in above.items() if not 0 < value <= RATE_MAX
    )
    moments = {"start": plan.start, **{f"launch at {launch.at}": launch.at.date() for launch in plan.launches}}
    yield from (
        f"{what} {day}; allowed: a date from {YEARS[0]} to {YEARS[1]}"
        for what, day in moments.items()
        if not YEARS[0] <= day.year <= YEARS[1]
    )
    if not STEP_S <= plan.duration_s <= WEEKS_MAX * WEEK_S:
        yield f"duration {plan.duration_s:g} s; allowed: from {STEP_S:g} s to {WEEKS_MAX:g} weeks"
    if not -1 < plan.growth_per_week < 10:
        yield f"growth {plan.growth_per_week:g} a week; allowed: above -1, below 10"
    most = {"noise": (plan.noise, NOISE_MAX), "noise of days": (plan.day_noise, NOISE_MAX), "cv": (plan.cv or 0.0, CV_MAX)}
    most |= {f"launch at {launch.at}": (launch.factor, FACTOR_MAX) for launch in plan.launches}
    most |= {f"holiday {day}": (factor, FACTOR_MAX) for day, factor in plan.holidays.items() if factor is not None}
    yield from (f"{what} {value:g}; allowed: a number from 0 to {top:g}" for what, (value, top) in most.items() if not 0 <= value <= top)


def start_wall_s(plan: Plan) -> float:
    """Unix time of second 0: midnight of the first day in the plan's zone."""
    return datetime(plan.start.year, plan.start.month, plan.start.day, tzinfo=ZoneInfo(plan.zone)).timestamp()


def rates(plan: Plan, name: str, chance: np.random.Generator) -> RateSeries:
    """Requests per second of one kind, a value each ``STEP_S``; ``chance`` makes the days differ."""
    kind = KINDS[name]
    steps = math.ceil(plan.duration_s / STEP_S)
    start_s = start_wall_s(plan)
    hours, days = _local(plan, start_s, steps)
    profile = np.interp(hours, np.arange(-1, 25) + 0.5, (kind.day[-1], *kind.day, kind.day[0]))
    levels = _levels(plan, kind, days, hours, chance)
    ordinary = (5 + 2 * kind.weekend) / 7
    values = profile * levels / ordinary
    values *= (1 + plan.growth_per_week) ** ((np.arange(steps) + 0.5) * STEP_S / WEEK_S)
    zone = ZoneInfo(plan.zone)
    for launch in plan.launches:
        at_s = launch.at.replace(tzinfo=zone).timestamp() - start_s
        values[max(0, math.ceil(at_s / STEP_S)) :] *= launch.factor
    share = plan.kinds[name] / math.fsum(plan.kinds.values())
    return RateSeries(start_s, STEP_S, values * plan.rate * share, name=name)


def _local(plan: Plan, start_s: float, steps: int) -> tuple[npt.NDArray[np.float64], list[date]]:
    """Hour of the day and date on the wall of the plan's zone, in the middle of each step."""
    zone = ZoneInfo(plan.zone)
    first = datetime.fromtimestamp(start_s, UTC) + timedelta(seconds=STEP_S / 2)
    walls = [(first + timedelta(seconds=STEP_S * step)).astimezone(zone) for step in range(steps)]
    return np.array([wall.hour + wall.minute / 60 + wall.second / 3600 for wall in walls]), [wall.date() for wall in walls]


def _levels(
    plan: Plan, kind: Kind, days: list[date], hours: npt.NDArray[np.float64], chance: np.random.Generator
) -> npt.NDArray[np.float64]:
    """The level of each step's day, going over into the next day's between ``24 - MIDNIGHT_H`` and ``MIDNIGHT_H``."""
    first, last = days[0] - timedelta(days=1), days[-1] + timedelta(days=1)
    count = (last - first).days + 1
    sigma = math.sqrt(math.log1p(plan.day_noise**2))
    noise = np.exp(chance.normal(-sigma * sigma / 2, sigma, count))
    of_day = np.array([_level(first + timedelta(days=number), kind, plan) for number in range(count)]) * noise
    today = np.array([(day - first).days for day in days])
    other = np.where(hours < 12, today - 1, today + 1)
    to_midnight_h = np.minimum(hours, 24 - hours)
    share = np.minimum(0.5 + to_midnight_h / (2 * MIDNIGHT_H), 1.0)
    levels: npt.NDArray[np.float64] = share * of_day[today] + (1 - share) * of_day[other]
    return levels


def _level(day: date, kind: Kind, plan: Plan) -> float:
    if day in plan.holidays:
        factor = plan.holidays[day]
        return kind.weekend if factor is None else factor
    return kind.weekend if day.weekday() >= 5 else 1.0


def intensities(plan: Plan, chances: Mapping[str, np.random.Generator]) -> dict[str, Intensity]:
    """What arrivals are drawn from, by kind, noise included; ``chances`` has a stream a kind."""
    found = {}
    for name in plan.kinds:
        smoothed = smooth(rates(plan, name, chances[name]).values, STEP_S).window(0.0, plan.duration_s)
        found[name] = smoothed.noisy(plan.noise, NOISE_CELL_S, chances[name])
    return found


def arrivals(plan: Plan, chances: Mapping[str, np.random.Generator]) -> ArrivalSource:
    """The requests of all kinds, in order; their tiers are unsaid. Each kind draws from its own stream of ``chances``."""
    source: ArrivalSource | None = None
    for name, intensity in intensities(plan, chances).items():
        kind = KINDS[name]
        at_s = times(intensity, kind.cv if plan.cv is None else plan.cv, chances[name])
        own = requests(at_s, Percentiles(kind.prompt, kind.output), chances[name])
        source = own if source is None else merged(source, own)
    return iter(()) if source is None else source
