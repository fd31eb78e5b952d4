"""The simulator with a calibrated profile against real vLLM on the CPU: held-out open-loop load, TTFT and ITL side by side.

    python bench/validation_live.py [--vllm .venv-vllm] [--repeats 3] [--minutes 0.7] [--json PATH]

A real vLLM serves a model of fifty million random parameters on one core; `forebay calibrate` measures it from the other and fits its
profile; then `forebay replay` sends loads of mixed lengths at several rates, Poisson and bursty, while the simulator plays the very same
arrivals and lengths on that profile. Neither rates nor lengths are those of the sweep. All of that is repeated in turn, calibration
included: a machine whose other work comes and goes is faster in one minute than in another, by a fifth and more, which is nobody's model.
Goal for p50 and p95 of each: within 15 %, or 1.5 times the spread (largest less smallest, of the mean) of the repeats where that is more.

Needs two cores and vLLM (`tools/vllm/install.sh .venv-vllm`). Run it as root on a machine that others use (`quiet.py`). Takes a quarter of an hour; nothing
outlives it.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from quiet import CLIENT_CORE, ENGINE_CORE, favoured
from simulation_vs_emulator import FOREBAY, rows_of, simulated

from forebay.demand.arrivals import arrivals, sized
from forebay.demand.trace import TraceRow
from forebay.domain.profile import ColdStart, Profile, StepLaw, StepSpread

ROOT = Path(__file__).resolve().parents[1]
SLOTS, CHUNK_TOKENS, CONTEXT_TOKENS, BLOCK_TOKENS = 8, 256, 2048, 32
KV_BYTES, KV_BYTES_PER_TOKEN = 1 << 30, 16 * 2 * 4 * 64 * 4
"""Sixteen layers, keys and values, four heads of 64, four bytes."""
SWEEP = ("--sequences", "1,2,3,4,6,8", "--prompts", "24,96,240", "--output", "48", "--repeats", "2", "--chunk", str(CHUNK_TOKENS))
LOADS = {"calm": (0.8, 1.0, 100, 28, 0.5), "busy": (2.2, 1.0, 80, 24, 0.5), "bursts": (1.4, 2.0, 110, 20, 0.5)}
"""Requests a second, variation of the gaps (1: Poisson), mean prompt and output tokens, variation of both."""
DRAWS = 10
"""Plays of each load on each profile that a simulated figure is the mean of: what one play draws moves it by some percent."""
READY_S = 600.0
WITHIN, SPREADS = 0.15, 1.5
FIGURES = tuple((what, quantile) for what in ("ttft", "itl") for quantile in ("p50", "p95"))


def run(command: list[str]) -> None:
    """To its end, on the client's core. Raises CalledProcessError."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=favoured(CLIENT_CORE))


def shared_memory() -> set[Path]:
    """What Python processes share; a killed engine leaves its own behind."""
    return {*Path("/dev/shm").glob("psm_*"), *Path("/dev/shm").glob("sem.mp-*")}


def model_of(venv: Path) -> Path:
    """The model on disk, made where it is not there yet."""
    folder = venv / "mid"
    if not any(folder.glob(".layers-*")):
        subprocess.run([venv / "bin" / "python", ROOT / "tools" / "vllm" / "make_tiny_model.py", folder, "mid"], check=True)
    return folder


@contextlib.contextmanager
def engine(venv: Path, folder: Path) -> Iterator[str]:
    """The URL of a vLLM on a core of its own; all of its processes end with this."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"), "1")
    limits = {"--max-model-len": CONTEXT_TOKENS, "--max-num-seqs": SLOTS, "--max-num-batched-tokens": CHUNK_TOKENS}
    memory = {"--block-size": BLOCK_TOKENS, "--kv-cache-memory-bytes": KV_BYTES, "--host": "127.0.0.1", "--port": port}
    command = [str(venv / "bin" / "vllm"), "serve", str(model_of(venv)), "--served-model-name", "mid", "--dtype", "float32"]
    command += ["--enforce-eager", "--no-enable-prefix-caching", *(str(part) for pair in (limits | memory).items() for part in pair)]
    before = shared_memory()
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **offline, "VLLM_CPU_OMP_THREADS_BIND": str(ENGINE_CORE)},
            preexec_fn=favoured(ENGINE_CORE),
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, process, folder / "vllm.log")
        yield url
    finally:
        end(process)
        for left in shared_memory() - before:
            if not any(str(left) in maps for maps in memory_maps()):
                left.unlink(missing_ok=True)


def memory_maps() -> Iterator[str]:
    """What every process has mapped: shared memory that somebody uses is not ours to remove."""
    for path in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            yield path.read_text()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_s = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        if process.poll() is not None or time.monotonic() > give_up_s:
            sys.exit("vLLM did not start:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))
        time.sleep(0.5)


def end(process: subprocess.Popen[bytes]) -> None:
    """Its whole session: API server, engine core, worker."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def calibrated(url: str, folder: Path) -> tuple[Profile, dict[str, Any]]:
    """The profile that `forebay calibrate` fits, with the limits that the engine was started with."""
    path = folder / "calibrated.json"
    run([*FOREBAY, "calibrate", url, *SWEEP, "--json", str(path)])
    found = json.loads(path.read_bytes())
    profile = Profile(
        name="calibrated",
        model="mid",
        hardware="one core",
        gpus=1,
        law=StepLaw(**found["law"]),
        sequences_max=SLOTS,
        kv_tokens=KV_BYTES // KV_BYTES_PER_TOKEN,
        block_tokens=BLOCK_TOKENS,
        prefill_chunk_tokens=CHUNK_TOKENS,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        context_tokens=CONTEXT_TOKENS,
        cold_start=ColdStart(0, 1, 1, 0),
        front_end_s=found["front_end_s"],
        spread=StepSpread(**found["spread"] or {}),
    )
    return profile, found


def trace(folder: Path, name: str, minutes: float) -> Path:
    rate, cv, prompt, output, variation = LOADS[name]
    chance = random.Random(f"held out/{name}")
    path = folder / f"{name}.jsonl"
    with path.open("w") as out:
        for row in sized(arrivals(lambda _: rate, 60 * minutes, chance, cv), prompt, output, chance, variation):
            out.write(json.dumps({"at_s": row.at_s, "prompt_tokens": row.prompt_tokens, "output_tokens": row.output_tokens}) + "\n")
    return path


def replayed(url: str, path: Path, folder: Path, seed: int, bytes_per_token: float) -> dict[str, Any]:
    report = folder / "report.json"
    options = ["--completions", "--seed", str(seed), "--bytes-per-token", f"{bytes_per_token:.4f}", "--json", str(report)]
    run([*FOREBAY, "replay", "--target", url, "--trace", str(path), *options])
    found: dict[str, Any] = json.loads(report.read_bytes())
    return found


def drawn(rows: list[TraceRow], profiles: list[Profile]) -> dict[str, dict[str, float]]:
    """As `simulated`, the mean of plays on each of ``profiles``."""
    plays = [simulated(rows, profile, seed) for profile in profiles for seed in range(DRAWS)]
    return {what: {quantile: float(np.mean([play[what][quantile] for play in plays])) for _, quantile in FIGURES} for what, _ in FIGURES}


def compared(ours: dict[str, dict[str, float]], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """By figure: simulated, measured (mean of the repeats), their spread, what is allowed, and whether it is kept."""
    found: dict[str, Any] = {}
    for what, quantile in FIGURES:
        seen = np.array([each[f"{what}_s"][quantile] for each in runs])
        spread = float((seen.max() - seen.min()) / seen.mean())
        off = ours[what][quantile] / float(seen.mean()) - 1
        allowed = max(WITHIN, SPREADS * spread)
        found[f"{what}_{quantile}"] = {
            "simulated_s": ours[what][quantile],
            "measured_s": seen.tolist(),
            "spread": spread,
            "off": off,
            "allowed": allowed,
            "kept": abs(off) <= allowed,
        }
    return found


def told(profile: Profile, fit: dict[str, Any]) -> str:
    """One calibration in two lines."""
    law, spread = profile.law, profile.spread
    scatter = "  ".join(f"{name} {value:.2f}" for name, value in msgspec.to_builtins(spread).items())
    return (
        f"step = {1e3 * law.base_s:.1f} ms + {1e3 * law.per_sequence_s:.2f} ms a sequence + {1e6 * law.per_kv_token_s:.2f} µs a KV token"
        f" + {1e3 * law.per_prefill_token_s:.3f} ms a prompt token; front end {1e3 * profile.front_end_s:.1f} ms;"
        f" {fit['held_out_error_median']:.1%} off where the fit had not looked\n  {'steady' if spread.steady else f'single steps, of that: {scatter}'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-vllm", help="virtual environment with vLLM")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=0.7, help="of each load")
    parser.add_argument("--json", metavar="PATH", help="write the numbers as JSON; - for stdout")
    wanted = parser.parse_args()
    if not (wanted.vllm / "bin" / "vllm").exists() or (os.cpu_count() or 1) < 2:
        sys.exit(f"no vLLM in {wanted.vllm} (tools/vllm/install.sh makes one), or no second core; nothing was compared")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in LOADS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {name: trace(folder, name, wanted.minutes) for name in LOADS}
        profiles: list[Profile] = []
        fits: list[dict[str, Any]] = []
        with engine(wanted.vllm.absolute(), folder) as url:
            for repeat in range(wanted.repeats):
                profile, fit = calibrated(url, folder)
                profiles.append(profile)
                fits.append(fit)
                for name in LOADS:
                    runs[name].append(replayed(url, paths[name], folder, repeat, fit["bytes_per_token"]))
        rows = {name: rows_of(path, wanted.minutes, 1.0) for name, path in paths.items()}
    for profile, fit in zip(profiles, fits, strict=True):
        print(told(profile, fit))
    result: dict[str, Any] = {"calibrations": fits, "loads": {}}
    for name, each in runs.items():
        found = compared(drawn(rows[name], profiles), each)
        result["loads"][name] = {"requests": len(rows[name]), "completed": [one["completed"] for one in each], **found}
        print(f"\n{name}: {len(rows[name])} requests, {wanted.repeats} repeats")
        for figure, row in found.items():
            seen = " ".join(f"{1e3 * value:7.1f}" for value in row["measured_s"])
            print(
                f"  {figure.replace('_', ' ')}: simulated {1e3 * row['simulated_s']:7.1f} ms   measured {seen} ms   {row['off']:+6.1%}"
                f"   allowed {row['allowed']:.1%}{'' if row['kept'] else '   MISSED'}"
            )
    if wanted.json:
        text = json.dumps(result, indent=2)
        print(text) if wanted.json == "-" else Path(wanted.json).write_text(text)


if __name__ == "__main__":
    main()
