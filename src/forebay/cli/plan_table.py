"""How ``forebay plan size`` shows a plan: each number with how it comes about."""

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from forebay.cli.output import console as output_console
from forebay.domain.units import format_duration
from forebay.simulation.sizing import Facts, Plan, WarmPlan

if TYPE_CHECKING:
    from forebay.app.lab.replica_rate import ReplicaRate


class Said(NamedTuple):
    """Where facts are from."""

    ramp: bool
    """It was given, or seen; else it is 0 since nobody said anything."""
    by_formula: bool
    """What one replica serves was computed from the configuration, and not measured."""


def per(rate_per_s: Fraction) -> str:
    """A rate for people: per minute where that is a short number and per second is not."""
    by_minute = 1000 % rate_per_s.denominator and not 1000 % (rate_per_s * 60).denominator
    return f"{float(rate_per_s * 60):,.6g}/min" if by_minute else f"{float(rate_per_s):,.6g}/s"


def _replicas(count: float) -> str:
    return f"{count:g} replica{'' if count == 1 else 's'}"


def _usd(amount: float) -> str:
    return f"${amount:,.0f}" if amount >= 1000 or amount == int(amount) else f"${amount:,.2f}"


def show(facts: Facts, planned: Plan, warm: tuple[WarmPlan, Fraction] | None, said: Said) -> None:
    """Print ``planned`` for people; ``warm``: what warm nodes make of the buffer, and how long a start on one takes (seconds)."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for row in [*_sizes(facts, planned, said), *([_warm(facts, planned, *warm)] if warm else []), *_prices(facts, planned)]:
        table.add_row(*row)
    console = output_console(highlight=False)
    console.print(table)
    if planned.saved_month_usd is not None and planned.saved_month_usd >= 0:
        console.print("\nIt is saved only where the GPUs that were released go back to their provider, or are lent to batch work.")


def show_measured(found: "ReplicaRate") -> None:
    """How the rate of one replica was found."""
    lengths = f"{found.prompt_tokens:,} + {found.output_tokens:,} tokens on average"
    if not found.measured_per_s:
        said = (
            f"Measured: no rate keeps the promise with these lengths ({lengths}), so the plan takes the formula's, for the mean pace alone."
        )
    else:
        share = found.measured_per_s / found.formula_per_s
        said = (
            f"Measured on {_replicas(found.replicas)}: {found.measured_per_s:.4g}/s a replica keep the whole promise, first token and "
            f"pace, with these lengths ({lengths}) and bursts (gaps of variation {found.cv:g}). "
            f"That is {share:.0%} of the {found.formula_per_s:.4g}/s that keep the mean pace, which --no-measure takes."
        )
    output_console(highlight=False).print(f"\n{said}", markup=False)


def _sizes(facts: Facts, planned: Plan, said: Said) -> list[tuple[str, str, str]]:
    each = facts.replica_per_s * facts.target
    share = "all that it can serve" if facts.target == 1 else f"{float(facts.target):.4g} of the {per(facts.replica_per_s)} it can serve"
    if said.by_formula:
        share += ": a bound, for the mean pace at a steady rate; --trace or --lengths measure it"
    rows = [("one replica", per(each), share)]
    for name, rate, count, gpus in (
        ("peak", facts.peak_per_s, planned.peak_replicas, planned.peak_gpus),
        ("trough", facts.trough_per_s, planned.trough_replicas, planned.trough_gpus),
    ):
        if rate is not None and count is not None:
            because = f"{per(rate)} ÷ {per(each)} = {float(rate / each):.4g}, rounded up"
            rows.append((name, f"{_replicas(count)}, {gpus} GPU{'' if gpus == 1 else 's'}", because))
    if facts.peak_per_s is None:
        rows.append(("peak, trough", "not known", "give --peak and --trough, or a --trace: replicas, min, max and cost follow from them"))
    elif facts.trough_per_s is None:
        rows.append(("trough", "not known", "give --trough, or a --trace: the pool's scaling.min follows from it"))
    rows += _buffer(facts, planned, said)
    if planned.spare_replicas:
        rows.append(("spares", _replicas(planned.spare_replicas), "may fail at once and not be missed"))
    if planned.floor_replicas is not None:
        rows.append(("min", _replicas(planned.floor_replicas), "trough and spares: the pool's scaling.min"))
    if planned.ceiling_replicas is not None:
        added = "peak, warm buffer and spares" if said.ramp else "peak and spares, without the warm buffer"
        rows.append(("max", _replicas(planned.ceiling_replicas), f"{added}: the pool's scaling.max"))
    return rows


def _buffer(facts: Facts, planned: Plan, said: Said) -> list[tuple[str, str, str]]:
    """What has to be warm for what comes during a start, or what is missing to say so."""
    if not said.ramp:
        cold = "" if facts.cold_start_s else " and --cold-start"
        return [("warm buffer", "not known", f"give --ramp-per-min or --rise{cold}, `ramp` in the --spec, or a --trace")]
    if not facts.ramp_per_s2:
        return []
    if not facts.cold_start_s:
        return [("warm buffer", "not known", "give --cold-start: how long until a new replica is ready")]
    until = format_duration(float(facts.cold_start_s))
    because = f"a rise of {per(facts.ramp_per_s2 * 60)} a minute × the {until} until a new replica is ready"
    return [
        ("headroom", per(facts.ramp_per_s2 * facts.cold_start_s), because),
        ("warm buffer", _replicas(planned.buffer_replicas), f"{planned.headroom_ratio:.4g} replicas' worth, rounded up"),
    ]


def _warm(facts: Facts, planned: Plan, warm: WarmPlan, start_s: Fraction) -> tuple[str, str, str]:
    """How much of the buffer may wait on warm nodes."""
    until = format_duration(float(start_s))
    if not facts.ramp_per_s2:
        return "warm nodes", "not known", "give the ramp: without it there is no buffer that could wait warm"
    price = ""
    if warm.warm_hour_usd is not None and planned.buffer_hour_usd is not None:
        price = f"; the buffer then costs {_usd(warm.warm_hour_usd)}/h"
    because = (
        f"of the buffer: {_replicas(warm.running_buffer_replicas)} for the {until} of a start on one run, the rest can wait warm{price}"
    )
    return "warm nodes", str(warm.warm_replicas), because


def _prices(facts: Facts, planned: Plan) -> list[tuple[str, str, str]]:
    if facts.gpu_hour_usd is None:
        return [("cost", "not known", "give --gpu-hour-usd")]
    price = f"{facts.gpus_per_replica} GPU{'' if facts.gpus_per_replica == 1 else 's'} × ${float(facts.gpu_hour_usd):g}"
    month = f"× {price} × {float(facts.hours_per_month):g} h"
    rows = []
    if planned.buffer_replicas and planned.buffer_hour_usd is not None and planned.buffer_day_usd is not None:
        rows.append(
            (
                "buffer costs",
                f"{_usd(planned.buffer_hour_usd)}/h, {_usd(planned.buffer_day_usd)}/day",
                f"{planned.buffer_replicas} × {price}",
            )
        )
    if planned.static_month_usd is not None and planned.peak_replicas is not None:
        count = planned.peak_replicas + planned.spare_replicas
        rows.append(("static", f"{_usd(planned.static_month_usd)}/month", f"{count} {month}: sized for the peak, day and night"))
    if planned.autoscaled_month_usd is not None and planned.average_replicas is not None:
        rows.append(("autoscaled", f"{_usd(planned.autoscaled_month_usd)}/month", f"{planned.average_replicas:.4g} on average {month}"))
    elif planned.static_month_usd is not None:
        rows.append(("autoscaled", "not known", "give --average-replicas, or a --trace"))
    if planned.saved_month_usd is not None and planned.static_month_usd:
        rows.append(_difference(planned, planned.saved_month_usd, planned.static_month_usd))
    return rows


def _difference(planned: Plan, saved_usd: float, static_usd: float) -> tuple[str, str, str]:
    share = f"{abs(saved_usd) / static_usd:.0%}"
    if saved_usd >= 0:
        return "saved", f"{_usd(saved_usd)}/month", f"{share} of the static bill"
    fixed = (planned.peak_replicas or 0) + planned.spare_replicas
    buffer = f", a buffer of {planned.buffer_replicas} for what comes during a start among them," if planned.buffer_replicas else ""
    on_average = f"{planned.average_replicas or 0:.4g} replicas on average{buffer}"
    why = f"{on_average} are more than the {fixed} that are there for the peak all the time and need none"
    return "costs more", f"{_usd(-saved_usd)}/month", f"{share} above the static bill: {why}"
