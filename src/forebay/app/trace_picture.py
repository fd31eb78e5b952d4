"""A trace in one picture: its rate over time, its days, its lengths."""

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt

from forebay.app import outputs
from forebay.app.trace_study import Study
from forebay.demand.series import RateSeries
from forebay.domain.units import format_duration

matplotlib.use("Agg")

from matplotlib import dates, pyplot, ticker

POINTS = 700
"""Of the line of rates; a band behind it shows the quietest and busiest tenth in between."""
DAY_S, HOUR_S = 86_400.0, 3600.0
DEEP, WARM, GREY = "#0b7285", "#d9480f", "#868e96"
Floats = npt.NDArray[np.float64]


def draw(study: Study, path: Path) -> None:
    """Write the PNG, whole or not at all. Raises BadInput where the disk refuses."""
    series = study.series
    daily = series.duration_s >= 2 * DAY_S
    below = int(daily) + int(study.lengths is not None)
    figure = pyplot.figure(figsize=(12, 7.4 if below else 4.2), layout="constrained")
    grid = figure.add_gridspec(2 if below else 1, max(1, below), height_ratios=[1.15, 1] if below else [1])
    _over_time(figure.add_subplot(grid[0, :]), series, study)
    if daily:
        _by_hour(figure.add_subplot(grid[1, 0]), series)
    if study.lengths is not None:
        _lengths(figure.add_subplot(grid[1, below - 1]), study)
    for axis in figure.axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    try:
        figure.savefig(picture, dpi=110, format="png")
    finally:
        pyplot.close(figure)
    outputs.leave("--png", path, picture.getvalue())


def _over_time(axis: Any, series: RateSeries, study: Study) -> None:
    step = _step(series)
    width = max(1, round(step / series.step_s))
    count = max(1, len(series.values) // width)
    blocks = series.values[: count * width].reshape(count, -1)
    middle_s: Floats = (np.arange(count, dtype=np.float64) + 0.5) * width * series.step_s
    when, names = _axis_of_time(axis, series, middle_s)
    fine = _finer(blocks, series.step_s)
    if fine.shape[1] > 1:
        axis.fill_between(when, np.quantile(fine, 0.1, axis=1), np.quantile(fine, 0.9, axis=1), color=DEEP, alpha=0.2, linewidth=0)
    axis.plot(when, blocks.mean(axis=1), color=DEEP, linewidth=1.4)
    mean = study.statistics.rates.mean
    axis.axhline(mean, color=GREY, linewidth=1, linestyle="--")
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (-4, 3), "textcoords": "offset points", "ha": "right"}
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1}
    axis.annotate(f"mean {_short(mean)}", (1.0, mean), fontsize=8, color="#495057", bbox=box, **place)
    axis.set_ylim(bottom=0)
    axis.set_xlim(when[0], when[-1]) if len(when) > 1 else None
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _short(value)))
    axis.set_ylabel(study.statistics.unit)
    axis.set_xlabel(names)
    axis.set_title(_title(study, width * series.step_s, fine.shape[1] > 1), loc="left", fontsize=10)


def _step(series: RateSeries) -> float:
    """A familiar length, so that there are about ``POINTS`` points; below half a minute single requests are all one sees."""
    wanted = series.duration_s / POINTS
    if series.duration_s > 20 * 60:
        wanted = max(wanted, 30.0)
    familiar = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200, 86_400)
    return max(series.step_s, float(next((length for length in familiar if length >= wanted), familiar[-1])))


def _finer(blocks: Floats, step_s: float) -> Floats:
    """Minutes (or steps, where those are longer) within each block; one column where a block has fewer than two."""
    width = max(1, round(60.0 / step_s))
    pieces = blocks.shape[1] // width
    if pieces < 2:
        return blocks[:, :1]
    means: Floats = blocks[:, : pieces * width].reshape(len(blocks), pieces, width).mean(axis=2)
    return means


def _axis_of_time(axis: Any, series: RateSeries, at_s: Floats) -> tuple[Any, str]:
    if not series.start_wall_s:
        unit_s, unit = (
            (DAY_S, "days") if series.duration_s > 2 * DAY_S else (HOUR_S, "hours") if series.duration_s > 2 * HOUR_S else (60.0, "minutes")
        )
        return at_s / unit_s, f"{unit} of the trace"
    when = [datetime.fromtimestamp(series.start_wall_s + second, UTC) for second in at_s.tolist()]
    typeless: Any = dates
    locator = typeless.AutoDateLocator(minticks=4, maxticks=10)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(typeless.ConciseDateFormatter(locator))
    return when, "UTC"


def _by_hour(axis: Any, series: RateSeries) -> None:
    """Mean rate by the hour, weekdays and weekends apart where the calendar is known."""
    first_s = series.start_wall_s
    at_s = first_s + (np.arange(len(series.values)) + 0.5) * series.step_s
    hour = ((at_s % DAY_S) // HOUR_S).astype(np.int64)
    # 1 January 1970 was a Thursday.
    weekend = ((at_s // DAY_S).astype(np.int64) + 3) % 7 >= 5
    kinds = [("weekdays", ~weekend, DEEP), ("weekends", weekend, WARM)] if first_s else [("all days", np.ones(len(hour), np.bool_), DEEP)]
    for name, chosen, colour in kinds:
        counts = np.bincount(hour[chosen], minlength=24)
        if counts.min() > 0:
            means = np.bincount(hour[chosen], series.values[chosen], 24) / counts
            axis.stairs(means, np.arange(25), color=colour, linewidth=1.8, label=name)
            axis.stairs(means, np.arange(25), color=colour, alpha=0.08, fill=True)
    axis.set_xlim(0, 24)
    axis.set_ylim(bottom=0)
    axis.set_xticks(range(0, 25, 3))
    axis.set_xlabel("hour of the day (UTC)" if first_s else "hour of the day of the trace")
    axis.set_ylabel(str(series.unit))
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _short(value)))
    axis.set_title("mean rate by the hour", loc="left", fontsize=10)
    axis.legend(fontsize=8, framealpha=0.9, loc="best")


def _lengths(axis: Any, study: Study) -> None:
    """Share of requests up to each length, with the quantiles that people quote."""
    assert study.lengths is not None
    ends = []
    for name, counts, colour in (("prompts", study.lengths[0], DEEP), ("answers", study.lengths[1], WARM)):
        lengths, upto = counts.distribution()
        found = counts.result()
        axis.step(lengths, 100 * upto, where="post", color=colour, linewidth=1.8, label=f"{name}, mean {_short(found.mean)} tokens")
        for share, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
            axis.plot([value], [share], "o", color=colour, markersize=4)
            below = name == "prompts"
            axis.annotate(_short(value), (value, share), xytext=(5, -9) if below else (-5, 3), textcoords="offset points", fontsize=8,
                          color=colour, ha="left" if below else "right")  # fmt: skip
        ends += [float(lengths[0]), float(lengths[-1])]
    axis.set_xscale("log")
    axis.set_xlim(max(1.0, min(ends)), max(ends) * 1.3)
    axis.set_ylim(0, 102)
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _short(value)))
    axis.set_xlabel("tokens")
    axis.set_ylabel("% of requests up to this length")
    axis.set_title("lengths (dots: p50, p90, p99)", loc="left", fontsize=10)
    axis.legend(fontsize=8, framealpha=0.9, loc="upper left")


def _title(study: Study, step_s: float, band: bool) -> str:
    found = study.statistics
    size = f"{found.requests:,} requests in " if found.requests else ""
    inner = "minutes" if study.series.step_s <= 60 else f"steps of {format_duration(study.series.step_s)}"
    behind = f"; band: 80 % of the {inner} within" if band else ""
    return f"{Path(found.name).name}: {size}{format_duration(found.duration_s)} (line: mean of {format_duration(step_s)}{behind})"


def _short(value: float) -> str:
    """12,035 as ``12k``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
