"""Timelines as the page reads them: columns, down-sampled so that a month draws like an hour and no peak is lost.

A bucket keeps the mean of what is paid for (so that areas stay right) and the worst of what hurts: a line that waited
one minute in a quiet hour must be seen. Not known is ``None``.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from forebay.app.report.content import BoundDrawn, Content, Played
from forebay.simulation.values import Minute

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
POINTS_MAX = 1500
"""Points of a line: about as many as a wide screen has columns."""
BREACHES_MAX = 500
"""Bands drawn; the longest are kept."""
DIGITS = 4
KEPT_DIGITS = 6
"""Of a share that is kept: 99.99 % and 100 % are not the same."""
SECONDS_PER_HOUR = 3600.0


def page_data(content: Content) -> dict[str, Any]:
    """Everything that the page's script draws."""
    return {
        "start_wall_s": content.start_wall_s,
        "zone": content.zone,
        "offsets": content.offsets,
        "ttft_s": content.ttft_s,
        "itl_s": content.itl_s,
        "attainment": content.attainment,
        "gpus": content.gpus_per_replica,
        "gpu_hour_usd": content.gpu_hour_usd,
        "bound_gpu_hours": content.bound.gpu_hours if content.bound else None,
        "faults": [(fault.name, fault.from_s, fault.until_s, fault.blind) for fault in content.faults],
        "policies": [_policy(played, content) for played in content.played],
    }


def timeline(rows: Sequence[Minute], points_max: int = POINTS_MAX) -> dict[str, Any]:
    """``rows`` as columns of at most ``points_max`` values each; ``reason`` indexes ``reasons``."""
    size = max(1, math.ceil(len(rows) / points_max))
    groups = [rows[first : first + size] for first in range(0, len(rows), size)]
    reasons = [name for name, _ in Counter(row.reason for row in rows).most_common()]
    index = {name: position for position, name in enumerate(reasons)}
    started = [0.0, *(group[-1].at_s for group in groups)][: len(groups)]
    spans = [max(group[-1].at_s - began, 1e-9) for began, group in zip(started, groups, strict=True)]
    return {
        "at_s": [_short(group[-1].at_s, 10) for group in groups],
        "rate": [_short(sum(row.arrived for row in group) / span) for group, span in zip(groups, spans, strict=True)],
        "lanes": [max(row.lanes_waiting for row in group) for group in groups],
        "engines": [max(row.engines_waiting for row in group) for group in groups],
        "kv": [_worst([row.kv_usage for row in group]) for group in groups],
        "gpu": [_mean([row.gpu_usage for row in group]) for group in groups],
        "ttft": [_worst([row.ttft_p95_s for row in group if row.ttft_p95_s > 0]) for group in groups],
        "itl": [_worst([row.itl_p95_s for row in group if row.itl_p95_s > 0]) for group in groups],
        "desired": [_mean([row.desired for row in group]) for group in groups],
        "ready": [_mean([row.ready for row in group]) for group in groups],
        "starting": [_mean([row.starting for row in group]) for group in groups],
        "draining": [_mean([row.draining for row in group]) for group in groups],
        "shed": [sum(row.shed for row in group) for group in groups],
        "kept": [_kept(group) for group in groups],
        "reason": [index[Counter(row.reason for row in group).most_common(1)[0][0]] for group in groups],
        "reasons": reasons,
        **sentences(groups),
        "reason_share": [_short(count / len(rows)) for _, count in Counter(row.reason for row in rows).most_common()],
    }


def sentences(groups: Sequence[Sequence[Minute]]) -> dict[str, Any]:
    """Why, at each point: the sentence of the term that most of its rows have, of the last such row.

    The same few sentences come again with other numbers, so they are kept once, with ``#`` for each number (``forms``), and a point
    is ``[form, number, …]``: a tenth of the text. 0: as at the point before.
    """
    forms: dict[str, int] = {}
    points: list[list[Any] | int] = []
    before = None
    for group in groups:
        reason = Counter(row.reason for row in group).most_common(1)[0][0]
        said = next(row.because for row in reversed(group) if row.reason == reason).replace("#", "№")
        numbers = NUMBER.findall(said)
        form = forms.setdefault(NUMBER.sub("#", said), len(forms))
        points.append(0 if said == before else [form, *numbers])
        before = said
    return {"forms": list(forms), "because": points}


def breaches(rows: Sequence[Minute], promise: float) -> list[tuple[float, float]]:
    """``(from_s, until_s)`` of every run of rows in which fewer requests than promised got what they were promised."""
    found: list[tuple[float, float]] = []
    began_s: float | None = None
    last_s = 0.0
    for row in rows:
        judged = row.both_met + row.missed
        bad = judged > 0 and row.both_met / judged < promise
        if bad and began_s is None:
            began_s = last_s
        elif not bad and began_s is not None:
            found.append((began_s, last_s))
            began_s = None
        last_s = row.at_s
    if began_s is not None:
        found.append((began_s, last_s))
    longest = sorted(found, key=lambda band: band[0] - band[1])[:BREACHES_MAX]
    return sorted(longest)


def sampled_bound(bound: BoundDrawn, at_s: Sequence[float]) -> list[int | None]:
    """Replicas of the schedule at each of ``at_s``; None before it begins."""
    values: list[int | None] = []
    position = 0
    current: int | None = None
    for moment in at_s:
        while position < len(bound.steps) and bound.steps[position][0] <= moment:
            current = bound.steps[position][1]
            position += 1
        values.append(current)
    return values


def _policy(played: Played, content: Content) -> dict[str, Any]:
    summary = played.summary
    lines = timeline(played.run.timeline)
    replica_usd_per_s = content.gpus_per_replica * content.gpu_hour_usd / SECONDS_PER_HOUR
    return {
        "name": summary.name,
        "gpu_hours": _short(summary.gpu_hours, 6),
        "vs_clairvoyant": _short(summary.vs_clairvoyant),
        "attained": _short(played.attained, 6),
        "holds": summary.holds_slo,
        "cost_usd": _short(summary.cost_usd, 6),
        "saved_usd": _short(summary.saved_vs_static_usd, 6),
        "breaches": breaches(played.run.timeline, content.attainment),
        "lines": lines,
        "bound": sampled_bound(content.bound, lines["at_s"]) if content.bound else [],
        "usd": _spent(lines, replica_usd_per_s) if replica_usd_per_s else [],
    }


def _spent(lines: dict[str, Any], replica_usd_per_s: float) -> list[float | None]:
    """Dollars since the start, at each point."""
    total, last_s, spent = 0.0, 0.0, []
    for at_s, *counts in zip(lines["at_s"], lines["ready"], lines["starting"], lines["draining"], strict=True):
        total += (at_s - last_s) * sum(count or 0.0 for count in counts) * replica_usd_per_s
        last_s = at_s
        spent.append(_short(total, 6))
    return spent


def _kept(group: Sequence[Minute]) -> float | None:
    """Of its worst row: a breach of one minute must be seen."""
    shares = [row.both_met / (row.both_met + row.missed) for row in group if row.both_met + row.missed]
    return _short(min(shares), KEPT_DIGITS) if shares else None


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return _short(sum(known) / len(known)) if known else None


def _worst(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return _short(max(known)) if known else None


def _short(value: float | None, digits: int = DIGITS) -> float | None:
    """``value`` to a few significant digits: the page is mostly numbers."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
