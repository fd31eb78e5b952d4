"""Both stories in one picture: load, replicas, what waited, and how long the first token took."""

from pathlib import Path
from typing import Any

import matplotlib

from forebay.app.demo.scenario import TTFT_S, Scenario
from forebay.app.demo.story import Story

matplotlib.use("Agg")

from matplotlib import pyplot

SECONDS_PER_MIN = 60.0
WITH, WITHOUT, LOAD = "#0b7285", "#c92a2a", "#868e96"


def draw(stories: tuple[Story, Story], scenario: Scenario, path: Path) -> None:
    """Write the PNG: one row a quantity, both stories in it."""
    figure, axes = pyplot.subplots(4, 1, figsize=(11, 11), sharex=True, gridspec_kw={"height_ratios": [1, 1.6, 1, 1.2]})
    _load(axes[0], scenario)
    for story, colour in zip(stories, (WITH, WITHOUT), strict=True):
        label = "with the buffer" if story.buffer else "without"
        minutes = [look.at_s / SECONDS_PER_MIN for look in story.looks]
        axes[1].step(minutes, [look.ready for look in story.looks], where="post", color=colour, label=f"ready, {label}", linewidth=2)
        axes[1].step(minutes, [look.desired for look in story.looks], where="post", color=colour, linestyle=":", label=f"wanted, {label}")
        axes[2].fill_between(minutes, [look.waiting or 0.0 for look in story.looks], color=colour, alpha=0.45, step="post", label=label)
        _first_tokens(axes[3], story, colour, label)
    axes[1].set_ylabel("replicas")
    axes[2].set_ylabel("requests waiting")
    axes[3].axhline(TTFT_S, color="black", linewidth=1, linestyle="--", label=f"promise: {TTFT_S:g} s")
    axes[3].set_yscale("log")
    axes[3].set_ylabel("time to first token, s")
    axes[3].set_xlabel("minutes of the emulated morning")
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.axvspan(scenario.settle_s / 60, (scenario.settle_s + scenario.ramp_s) / 60, color="#fff3bf", alpha=0.5, zorder=0)
        axis.legend(loc="upper left", fontsize=8, framealpha=0.9)
    axes[0].set_title("The same ramp, with three replicas of warm buffer and without (a cold start takes five minutes)", loc="left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _load(axis: Any, scenario: Scenario) -> None:
    minutes = [minute / 4 for minute in range(int(scenario.total_s / 15) + 1)]
    axis.plot(minutes, [scenario.rate_per_s(minute * 60) * 60 for minute in minutes], color=LOAD, label="requests a minute")
    axis.set_ylabel("requests/min")
    axis.set_ylim(bottom=0)


def _first_tokens(axis: Any, story: Story, colour: str, label: str) -> None:
    records = [record for record in story.report.records if record.ttft_s is not None]
    minutes = [record.at_s / SECONDS_PER_MIN for record in records]
    axis.plot(minutes, [max(0.05, record.ttft_s or 0.0) for record in records], ".", color=colour, markersize=2.5, alpha=0.6, label=label)
