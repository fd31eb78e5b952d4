"""Forebay's policy against every baseline and the clairvoyant schedule, over recorded weeks.

    python bench/policies.py [--quick] [--traces azure2024,servegen,o365] [--cold-starts 6m,90s] [--policies all|forebay,…] [--tuned] [--json PATH]

Each trace is played over `examples/lab.yaml`'s pool with `forebay compare`: rates scaled to ten replicas or more on average, lengths drawn from azure2023's
conversations, 5 % of noise a minute on digitised rates. `o365` is in means of ten minutes, as in the field's forecasts; `o365-minutes` is the same
week minute by minute, with jumps of five times within a minute. `--quick` plays one day of each. Baselines stand at their sources' defaults; with `--tuned` each is played once more as tuned on the
hours around the busiest of what comes before the span (at most a million requests a run), or, of a whole week, of that week itself, which flatters it. Needs ../shared/traces beside the repository; says so and ends where it is absent.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"
LENGTHS = TRACES / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
O365 = "o365/o365_week_prompt_tokens_per_minute.csv"
PLAYED: dict[str, tuple[str, ...]] = {
    "azure2024": (
        "azure2024/azure2024_conv_10min_digitised.csv",
        "--trace-format",
        "azure2024-rate",
        "--rate-scale",
        "1",
        "--noise",
        "0.05",
    ),
    "servegen": ("servegen/m-large-total.csv", "--trace-format", "servegen", "--rate-scale", "0.13"),
    "o365": (O365, "--trace-format", "o365", "--column", "A_prod", "--rate-scale", "2", "--noise", "0.05"),
    "o365-minutes": (O365, "--trace-format", "o365", "--column", "A_prod", "--rate-scale", "2", "--noise", "0"),
}
GOALS = {
    ("azure2024", "6m"): 1.06,
    ("servegen", "6m"): 1.15,
    ("o365", "6m"): 1.22,
    ("azure2024", "90s"): 1.04,
    ("servegen", "90s"): 1.08,
    ("o365", "90s"): 1.12,
}
ATTAINMENT = 0.99


def ten_minute_means(path: Path, column: str, folder: Path) -> Path:
    """``column`` of a per-minute file in means of ten minutes, in the same format."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    place = lines[0].split(",").index(column)
    values = [float(line.split(",")[place]) for line in lines[1:]]
    means = [sum(values[at : at + 10]) / len(values[at : at + 10]) for at in range(0, len(values), 10)]
    written = folder / "means.csv"
    written.write_text("\n".join([f"minute,{column}", *(f"{10 * at},{mean:.1f}" for at, mean in enumerate(means))]) + "\n")
    return written


def compared(trace: str, cold_start: str, policies: str, days: float | None, tuned: bool) -> dict[str, Any]:
    name, *options = PLAYED[trace]
    with tempfile.TemporaryDirectory() as folder:
        path = ten_minute_means(TRACES / name, "A_prod", Path(folder)) if trace == "o365" else TRACES / name
        result = Path(folder) / "result.json"
        command = [
            sys.executable,
            "-m",
            "forebay.cli.main",
            "compare",
            "--spec",
            str(ROOT / "examples" / "lab.yaml"),
            "--trace",
            str(path),
        ]
        command += [*options, "--lengths", str(LENGTHS), "--cold-start", cold_start, "--policies", policies, "--json", str(result)]
        if tuned:
            command.append("--tuned")
        if days is not None:
            command += ["--start", "1d", "--duration", f"{24 * days:g}h"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(result.read_bytes())


def show(trace: str, cold_start: str, found: dict[str, Any]) -> None:
    print(f"\n{trace}, cold start {cold_start}: clairvoyant {found['bound_gpu_hours']:.1f} GPU-hours")
    print(f"  {'':20} {'GPU-hours':>10} {'× limit':>8} {'kept':>8} {'actions':>8} {'turns/day':>9}")
    for row in sorted(found["policies"], key=lambda row: row["gpu_hours"]):
        kept = row["both_attainment"]["interactive"]
        mark = "✓" if kept >= ATTAINMENT else "✗"
        ratio = row["vs_clairvoyant"]
        print(
            f"{mark} {row['name']:20} {row['gpu_hours']:10.1f} {ratio:8.3f} {kept:8.2%} {row['scale_actions']:8} {row['reversals_per_day']:9.1f}"
        )
    (ours,) = (row for row in found["policies"] if row["name"] == "forebay")
    holding = [row for row in found["policies"] if row["both_attainment"]["interactive"] >= ATTAINMENT and row["name"] != "forebay"]
    goal = GOALS.get((trace, cold_start))
    if goal is not None:
        met = ours["vs_clairvoyant"] <= goal and ours["both_attainment"]["interactive"] >= ATTAINMENT
        print(f"  goal ≤ {goal} × the limit with 99 % kept: {'met' if met else 'NOT met'}")
    if holding:
        cheapest = min(holding, key=lambda row: row["gpu_hours"])
        print(f"  the cheapest other policy that holds, {cheapest['name']}, needs {cheapest['gpu_hours'] / ours['gpu_hours']:.2f} × ours")
    elif len(found["policies"]) > 1:
        print("  no other policy holds the promise")
    show_tuned(found)


def show_tuned(found: dict[str, Any]) -> None:
    """Which of the tuned rows hold, with what settings."""
    if "choices" not in found:
        return
    kept = {row["name"]: row["both_attainment"]["interactive"] for row in found["policies"]}
    chosen = {f"{each['name']} (tuned)": each["settings"] for each in found["choices"]}
    holding = [name for name in chosen if kept[name] >= ATTAINMENT]
    told = (f"{name} {', '.join(f'{key} {value:.4g}' for key, value in chosen[name].items())}" for name in holding)
    print(
        f"  tuned on {found['train_s'] / 3600:.1f} h, {found['train_requests']:,} requests; {len(holding)} of {len(chosen)} hold: ", end=""
    )
    print("; ".join(told) or "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one day of each trace, the second")
    parser.add_argument("--traces", default="azure2024,servegen,o365", help=", ".join(PLAYED))
    parser.add_argument("--cold-starts", default="6m,90s")
    parser.add_argument("--policies", default="all")
    parser.add_argument("--tuned", action="store_true", help="every baseline once more, tuned")
    parser.add_argument("--json", metavar="PATH")
    wanted = parser.parse_args()
    if not TRACES.is_dir():
        sys.exit(f"{TRACES} is not there: the recorded traces are not part of the repository; nothing was played")
    results = {}
    for trace in wanted.traces.split(","):
        for cold_start in wanted.cold_starts.split(","):
            found = results[f"{trace} {cold_start}"] = compared(
                trace, cold_start, wanted.policies, 1 if wanted.quick else None, wanted.tuned
            )
            show(trace, cold_start, found)
            sys.stdout.flush()
    if wanted.json:
        Path(wanted.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
