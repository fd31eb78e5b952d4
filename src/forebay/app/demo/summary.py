"""Both stories as numbers: what the machine-readable report holds and the table shows."""

from math import ceil

import msgspec

from forebay.app.demo.scenario import COLD_START_S, GPU_HOUR_USD, RAMP_PER_MIN2, REPLICA_PER_MIN, TTFT_S
from forebay.app.demo.story import Story


class StorySummary(msgspec.Struct, frozen=True):
    """One story. Replicas are the numbers wanted, from the end of settling on; times are in emulated seconds."""

    replicas_min: int
    replicas_max: int
    ttft_p95_s: float
    ttft_attainment: float
    truncated: int
    errors: int
    shed: int
    gpu_hours: float
    cost_usd: float
    queue_max: int
    requests: int


class DemoSummary(msgspec.Struct, frozen=True):
    """The two stories side by side."""

    buffer_replicas: int
    with_buffer: StorySummary
    without_buffer: StorySummary


def buffer_replicas() -> int:
    """ceil(ramp × cold start ÷ one replica's rate), in whole minutes so that it is exact: 30 × 5 ÷ 50 = 3."""
    return ceil(RAMP_PER_MIN2 * (COLD_START_S / 60) / REPLICA_PER_MIN)


def buffer_usd_per_hour() -> float:
    """What the buffer costs to hold."""
    return buffer_replicas() * GPU_HOUR_USD


def attainment(story: Story) -> float:
    """Fraction of all requests whose first content came within the promise; one that failed missed it."""
    records = story.report.records
    met = sum(record.ttft_s is not None and record.ttft_s <= TTFT_S for record in records)
    return met / len(records) if records else 0.0


def summarise(story: Story, settled_s: float) -> StorySummary:
    """``story`` from ``settled_s`` (world seconds) on for replicas; all requests for the rest."""
    settled = [look for look in story.looks if look.at_s >= settled_s] or list(story.looks)
    report = story.report
    hours = story.looks[-1].gpu_hours - story.looks[0].gpu_hours
    return StorySummary(
        replicas_min=min(look.desired for look in settled),
        replicas_max=max(look.desired for look in settled),
        ttft_p95_s=round(report.ttft_s.p95 or 0.0, 3),
        ttft_attainment=round(attainment(story), 4),
        truncated=report.truncated,
        errors=report.errors,
        shed=report.shed,
        gpu_hours=round(hours, 3),
        cost_usd=round(hours * GPU_HOUR_USD, 2),
        queue_max=int(max((look.waiting or 0.0) for look in story.looks)),
        requests=report.requests,
    )
