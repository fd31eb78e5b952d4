"""Demand forecasts against the published comparison, on the same series and protocol, and the achieved rate of the stated quantiles.

python bench/forecast.py [--json PATH] [--no-weeks]

Protocol (WAPE): 10-minute buckets, rolling origin, an origin every 4 hours after 4 days (traces of a week) or 8 days (of two weeks);
error over the origins' outcomes, divided by their sum. The forecaster sees nothing but the buckets before each origin.
Coverage: every origin after 3 days (of a week) or 6 days (of two); and four weeks from the generator in buckets of 5 minutes,
the first two to learn. The interval is a block bootstrap's, 95 %, with blocks of 6 hours.
"""

import argparse
import csv
import json
import sys
import time
from collections import defaultdict
from datetime import date, datetime
from datetime import time as clock
from pathlib import Path

import numpy as np

from forebay.demand import generator, series
from forebay.demand.forecast import ForecastMemory, Past, learned, predict
from forebay.demand.intensity import smooth

SHARED = Path(__file__).resolve().parents[2] / "shared"
BUCKET_S = 600.0
HORIZONS_S = (600.0, 1800.0, 3600.0, 14400.0)
DAY = 144
EVERY = 24
STATED = 0.9
BLOCK_S = 6 * 3600.0
RESAMPLES = 2000


def traces():
    """Rates by name, in 10-minute buckets, with the Unix time of the first."""
    folder = SHARED / "traces"
    opened = {
        "azure24/conv": series.azure2024_rate(lines(folder / "azure2024/azure2024_conv_10min_digitised.csv"), "azure2024"),
        "o365/A_prod": series.o365(lines(folder / "o365/o365_week_prompt_tokens_per_minute.csv"), "A_prod", "o365"),
        "o365/C_prod": series.o365(lines(folder / "o365/o365_week_prompt_tokens_per_minute.csv"), "C_prod", "o365"),
        "servegen/m-large": series.servegen_totals(lines(folder / "servegen/m-large-total.csv"), "servegen"),
    }
    return {name: (rate.start_wall_s, joined(rate)) for name, rate in opened.items()}


def lines(path):
    return path.read_text().splitlines()


def joined(rate):
    size = round(BUCKET_S / rate.step_s)
    count = len(rate.values) // size
    return rate.values[: count * size].reshape(count, size).mean(axis=1)


def weeks(seed):
    """Four weeks of 5-minute buckets: two kinds of work, a holiday, growth, a launch, days and minutes that differ, and the noise of counts."""
    plan = generator.Plan(
        kinds={"conversation": 0.7, "code": 0.3},
        rate=45.0,
        start=date(2026, 3, 9),
        duration_s=28 * 86400.0,
        zone="Europe/Berlin",
        growth_per_week=0.02,
        holidays={date(2026, 4, 3): None},
        launches=(generator.Launch(at=datetime.combine(date(2026, 3, 31), clock(10)), factor=1.3),),
    )
    chance = np.random.default_rng(seed)
    marks = np.arange(28 * 288 + 1) * 300.0
    expected = sum(
        smooth(generator.rates(plan, name, chance).values, 300.0).noisy(plan.noise, 60.0, chance).expected(marks) for name in plan.kinds
    )
    return generator.start_wall_s(plan), chance.poisson(expected) / 300.0, plan.zone


def walked(start_wall_s, values, bucket_s, zone="UTC"):
    """What is said at every origin: arrays (origins, horizons) of the median, the stated quantile, the peak's; and CPU per bucket."""
    count = len(values)
    said = np.full((3, count + 1, len(HORIZONS_S)), np.nan)
    memory = ForecastMemory()
    began_s = time.process_time()
    for origin in range(1, count + 1):
        now_wall_s = start_wall_s + origin * bucket_s
        past = Past(start_wall_s, bucket_s, values[:origin], zone)
        memory = learned(memory, past, now_wall_s)
        for column, horizon_s in enumerate(HORIZONS_S):
            found = predict(past, now_wall_s, horizon_s, memory)
            said[:, origin, column] = found.value, found.quantile(STATED), found.peak_quantile(STATED)
    return said, (time.process_time() - began_s) / count


def simple(values, origins, step):
    """The plain methods of the published comparison, by their names there."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    hour = (sums[origins] - sums[origins - 6]) / 6
    hour_then = (sums[origins - DAY] - sums[origins - DAY - 6]) / 6
    last, then = values[origins - 1], values[origins - 1 + step - DAY]
    ratio = then * np.clip(hour / hour_then, 0.3, 3.0)
    weight = max(0.0, 1 - step / 12)
    return {
        "naive": last,
        "mean1h": hour,
        "seasonal-naive-24h": then,
        "ratio(24h shape x level)": ratio,
        "horizon-blend": weight * last + (1 - weight) * ratio,
    }


def published():
    """WAPE by (series, step, method), computed by others with these and with statsforecast's methods."""
    with (SHARED / "validation/forecast_eval.csv").open() as rows:
        return {(row["series"], int(row["h"]), row["model"]): float(row["wape"]) for row in csv.DictReader(rows)}


def wape(values, origins, step, forecast):
    came = values[origins - 1 + step]
    return float(100 * np.abs(came - forecast).sum() / came.sum())


def coverage(within, bucket_s, chance):
    """The achieved rate and the ends of its 95 % interval by a circular block bootstrap (outcomes near each other are not independent)."""
    size = round(BLOCK_S / bucket_s)
    count = len(within)
    starts = chance.integers(0, count, (RESAMPLES, -(-count // size)))
    places = (starts[:, :, None] + np.arange(size)) % count
    rates = within[places.reshape(RESAMPLES, -1)[:, :count]].mean(axis=1)
    low, high = np.quantile(rates, (0.025, 0.975))
    return {"achieved": float(within.mean()), "low": float(low), "high": float(high), "holds": bool(low <= STATED <= high)}


def covered(values, said, bucket_s, first, chance):
    """By horizon: coverage of the value's and of the peak's stated quantile."""
    found = {}
    for column, horizon_s in enumerate(HORIZONS_S):
        step = round(horizon_s / bucket_s)
        origins = np.arange(first, len(values) - step + 1)
        peaks = np.lib.stride_tricks.sliding_window_view(values, step)[origins].max(axis=1)
        found[f"{horizon_s / 60:.0f} min"] = {
            "value": coverage(values[origins - 1 + step] <= said[1, origins, column], bucket_s, chance),
            "peak": coverage(peaks <= said[2, origins, column], bucket_s, chance),
        }
    return found


def measured(with_weeks):
    chance = np.random.default_rng(7)
    errors, covers, cpu_ms = defaultdict(dict), {}, {}
    given = published()
    for name, (start_wall_s, values) in traces().items():
        said, cpu_s = walked(start_wall_s, values, BUCKET_S)
        days = len(values) // DAY
        cpu_ms[name] = round(cpu_s * 1000, 2)
        origins = np.arange((4 if days <= 7 else 8) * DAY, len(values) - EVERY, EVERY)
        for column, horizon_s in enumerate(HORIZONS_S):
            step = round(horizon_s / BUCKET_S)
            for method, forecast in simple(values, origins, step).items():
                errors[method][name, step] = wape(values, origins, step, forecast)
                assert abs(errors[method][name, step] - given[name, step, method]) < 0.05, "this is not the published protocol"
            for (of, at, method), value in given.items():
                if of == name and at == step:
                    errors[method].setdefault((name, step), value)
            errors["forebay"][name, step] = wape(values, origins, step, said[0, origins, column])
        errors["forebay"] = errors.pop("forebay")
        covers[name] = covered(values, said, BUCKET_S, (3 if days <= 7 else 6) * DAY, chance)
    if with_weeks:
        start_wall_s, values, zone = weeks(1)
        said, cpu_s = walked(start_wall_s, values, 300.0, zone)
        cpu_ms["four generated weeks"] = round(cpu_s * 1000, 2)
        covers["four generated weeks"] = covered(values, said, 300.0, 14 * 288, chance)
    return errors, covers, cpu_ms


def summary(errors, covers, cpu_ms):
    steps = [round(horizon_s / BUCKET_S) for horizon_s in HORIZONS_S]
    names = list(dict.fromkeys(name for name, _ in errors["forebay"]))
    means = {method: [float(np.mean([rows[name, step] for name in names])) for step in steps] for method, rows in errors.items()}
    best = [min(rows[place] for method, rows in means.items() if method != "forebay") for place in range(len(steps))]
    return {
        "horizons_min": [horizon_s / 60 for horizon_s in HORIZONS_S],
        "wape_mean": {method: [round(value, 2) for value in rows] for method, rows in means.items()},
        "wape": {method: {name: [round(rows[name, step], 2) for step in steps] for name in names} for method, rows in errors.items()},
        "best_published": [round(value, 2) for value in best],
        "wape_within_best": [bool(ours <= theirs) for ours, theirs in zip(means["forebay"], best, strict=True)],
        "coverage": covers,
        "coverage_holds": {
            kind: all(row[kind]["holds"] for rows in covers.values() for row in rows.values()) for kind in ("value", "peak")
        },
        "cpu_ms_per_bucket": cpu_ms,
    }


def printed(result):
    heads = [f"{minutes:.0f} min" for minutes in result["horizons_min"]]
    names = list(result["wape"]["forebay"])
    print(f"WAPE %, mean over {', '.join(names)}\n{'method':28}" + "".join(f"{head:>9}" for head in heads))
    for method, row in result["wape_mean"].items():
        print(f"{method:28}" + "".join(f"{value:9.2f}" for value in row))
    print(f"{'best of the others':28}" + "".join(f"{value:9.2f}" for value in result["best_published"]))
    for name in names:
        print(f"\n{name}")
        for method, rows in result["wape"].items():
            print(f"{method:28}" + "".join(f"{value:9.2f}" for value in rows[name]))
    print(f"\nachieved rate of the stated {STATED:.0%} quantile, with its 95 % interval (! where {STATED:.0%} is outside)")
    print(f"{'':24}{'':6}" + "".join(f"{head:>22}" for head in heads))
    for name, rows in result["coverage"].items():
        for kind in ("value", "peak"):
            cells = [rows[head][kind] for head in heads]
            marked = [f"{cell['achieved']:.1%} [{cell['low']:.1%}, {cell['high']:.1%}]{' ' if cell['holds'] else '!'}" for cell in cells]
            print(f"{name:24}{kind:6}" + "".join(f"{text:>22}" for text in marked))
    print(f"\nCPU a bucket, learning and {len(heads)} predictions: {result['cpu_ms_per_bucket']} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default="", help="a file, or - for the standard output")
    parser.add_argument("--no-weeks", action="store_true", help="leave out the four generated weeks")
    arguments = parser.parse_args()
    if not (SHARED / "traces").is_dir() or not (SHARED / "validation/forecast_eval.csv").is_file():
        print(f"skipped: the traces and the published figures are not at hand (looked for {SHARED})")
        return 0
    result = summary(*measured(not arguments.no_weeks))
    if arguments.json == "-":
        print(json.dumps(result))
    else:
        printed(result)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(result))
    return 0 if all(result["wape_within_best"]) and all(result["coverage_holds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
