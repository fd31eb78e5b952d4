"""Does the engine model say what real engines did? Three real vLLM runs replayed step by step, and measured rows that no fit has seen.

    python bench/validation.py [--json PATH]

1. `vllm_runs`: 300 requests each on RTX 4090 and RTX PRO 6000, with arrival, first and last token of every request. The step law's
   four coefficients are fitted to the first half of the requests; the run is then simulated whole.
2. Measured rows of vLLM (closed loops of C requests): in each group (model, GPU, TP, precision) of 8 rows or more, the law is fitted to every
   other row and predicts the time per output token of the rest. Rows whose KV was full (they queued) are left out, as the law has no queue.

Needs the data folder `../shared/validation` beside the repository; says so and ends where it is absent.
"""

import argparse
import collections
import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize, nnls

from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.engine.batch import Engine, Preempted, Token

DATA = Path(__file__).resolve().parents[2] / "shared" / "validation"
EVALUATIONS_MAX = 220
START = {"Llama-3.1-8B": (0.012, 5e-5, 6e-8, 6e-5), "Qwen3-32B": (0.03, 1e-4, 1e-7, 1.5e-4)}
RUNS = {"RTXPRO6000_Llama-3.1-8B": (128, 530_000), "RTX4090_Llama-3.1-8B": (256, 41_408), "RTXPRO6000_Qwen3-32B": (128, 400_000)}
"""Sequences and KV tokens. The RTX 4090's are recorded; on the others KV never binds, and is what 0.9 of memory leaves after weights."""
ROWS_MIN = 8
SATURATED = 10.0
"""A first token later than so many times an idle engine's (and 0.2 s) has queued."""


class Run:
    """One recorded run, times from its first arrival."""

    def __init__(self, name: str) -> None:
        rows = [json.loads(line) for line in (DATA / "vllm_runs" / f"{name}.requests.jsonl").open()]
        self.name = name
        self.arrived = np.array([row["arrival_time"] for row in rows])
        self.arrived -= self.arrived[0]
        queued = np.array([row["queued_ts"] for row in rows])
        # Arrivals are on the wall clock and the rest on the engine's: the least delay seen ties the two together.
        shift = np.min(queued - self.arrived)
        self.queued = queued - shift
        self.first = np.array([row["first_token_ts"] for row in rows]) - shift
        self.last = np.array([row["last_token_ts"] for row in rows]) - shift
        self.prompt = np.array([row["input_toks"] for row in rows])
        self.output = np.array([row["output_toks"] for row in rows])
        self.tpot = (self.last - self.first) / (self.output - 1)
        with (DATA / "vllm_runs" / f"{name}.timeseries.csv").open() as lines:
            series = list(csv.DictReader(lines))
        self.seconds = np.array([float(row["t"]) for row in series])
        self.running = np.array([float(row["running"]) for row in series])
        self.waiting = np.array([float(row["waiting"]) for row in series])

    def simulate(self, law: StepLaw) -> dict[str, Any]:
        sequences, kv = RUNS[self.name]
        engine = Engine(Profile("", "", "", 1, law, sequences, kv, 16, 2048, 131_072, 131_072, ColdStart(0, 1, 1, 0)))
        first, last = np.zeros(len(self.queued)), np.zeros(len(self.queued))
        preempted, running, waiting = 0, [], []
        looks = iter([*self.seconds, np.inf])
        look_s = next(looks)

        def play(until_s: float) -> None:
            nonlocal preempted, look_s
            while True:
                step_s = engine.next_deadline_s()
                if look_s < until_s and (step_s is None or look_s < step_s):
                    running.append(engine.running)
                    waiting.append(engine.waiting)
                    look_s = next(looks)
                elif step_s is None or step_s > until_s:
                    return
                else:
                    for effect in engine.advance(step_s):
                        if isinstance(effect, Token):
                            first[effect.sequence] = effect.at_s if effect.first else first[effect.sequence]
                            last[effect.sequence] = effect.at_s
                        preempted += isinstance(effect, Preempted)

        for request in np.argsort(self.queued, kind="stable"):
            play(float(self.queued[request]))
            engine.submit(int(request), int(self.prompt[request]), int(self.output[request]), float(self.queued[request]))
        play(np.inf)
        return {"first": first, "last": last, "preempted": preempted, "running": np.array(running), "waiting": np.array(waiting)}


def fitted(run: Run) -> StepLaw:
    """The law that explains the first half of ``run`` best: first token, pace and end of each request, by mean absolute relative error."""
    half = np.arange(len(run.queued)) < len(run.queued) // 2

    def loss(logs: np.ndarray) -> float:
        seen = run.simulate(StepLaw(*(float(value) for value in np.exp(logs))))
        tpot = (seen["last"] - seen["first"]) / (run.output - 1)
        parts = (
            0.5 * (seen["first"] - run.first) / np.maximum(1, run.first - run.arrived),
            (tpot - run.tpot) / run.tpot,
            (seen["last"] - run.last) / np.maximum(1, run.last - run.arrived),
        )
        return float(np.mean([np.abs(part[half]).mean() for part in parts]))

    start = np.log(START[run.name.split("_")[1]])
    simplex = [start, *(start + 0.5 * np.eye(4)[place] for place in range(4))]
    found = minimize(
        loss, start, method="Nelder-Mead", options={"maxfev": EVALUATIONS_MAX, "initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-5}
    )
    return StepLaw(*(float(value) for value in np.exp(found.x)))


def compared(run: Run) -> dict[str, Any]:
    law = fitted(run)
    seen = run.simulate(law)
    tpot = (seen["last"] - seen["first"]) / (run.output - 1)
    result: dict[str, Any] = {
        "law": [law.base_s, law.per_sequence_s, law.per_kv_token_s, law.per_prefill_token_s],
        "preemptions": seen["preempted"],
    }
    pairs = {"ttft": (seen["first"] - run.arrived, run.first - run.arrived), "tpot": (tpot, run.tpot)}
    later = np.arange(len(tpot)) >= len(tpot) // 2
    for what, (ours, theirs) in pairs.items():
        for part, rows in (("all", later | True), ("held_out", later)):
            for name, figure in (("mean", np.mean), ("p99", lambda values: np.percentile(values, 99))):
                result[f"{what}_{name}_{part}"] = (float(figure(ours[rows])), float(figure(theirs[rows])))
    for what in ("running", "waiting"):
        theirs = getattr(run, what)
        ours = seen[what][: len(theirs)]
        theirs = theirs[: len(ours)]
        result[f"{what}_mean"] = (float(ours.mean()), float(theirs.mean()))
        result[f"{what}_mean_absolute_error"] = float(np.abs(ours - theirs).mean())
    return result


def silicon() -> dict[str, Any]:
    """Relative errors of the time per output token on rows that no fit has seen."""
    groups: dict[tuple[str, ...], list[tuple[float, ...]]] = collections.defaultdict(list)
    with (DATA / "aiconfigurator_silicon_sample.csv").open() as lines:
        for row in csv.DictReader(lines):
            plain = row["pp_size"] in ("", "1") and row["attention_dp_size"] in ("", "1")
            if row["backend"] == "vllm" and row["mode"] == "agg" and plain and row["silicon_tpot_ms"]:
                key = tuple(row[name] for name in ("model_path", "system", "tp_size", "precision", "moe_ep_size", "backend_version"))
                groups[key].append(tuple(float(row[name]) for name in ("batch_size", "isl", "osl", "silicon_tpot_ms", "silicon_ttft_ms")))
    errors: list[float] = []
    used = 0
    for _, rows in sorted(groups.items()):
        if len(rows) < ROWS_MIN:
            continue
        many, prompt, output, tpot, ttft = np.array(rows).T
        terms = np.stack([np.ones_like(many), many, many * (prompt + output / 2) / 1e6, many * prompt / output / 1e3], axis=1)
        rough, _ = nnls(terms / tpot[:, None], np.ones(len(tpot)))
        flowing = ttft < SATURATED * (rough[0] + rough[3] * prompt / 1e3) + 200
        training = np.zeros(len(tpot), bool)
        training[np.argsort(many * 1e6 + prompt)[::2]] = True
        held_out = flowing & ~training
        training &= flowing
        if training.sum() < 4 or held_out.sum() < 2:
            continue
        law, _ = nnls(terms[training] / tpot[training, None], np.ones(training.sum()))
        errors += list(np.abs(terms[held_out] @ law / tpot[held_out] - 1))
        used += 1
    return {
        "groups": used,
        "held_out_rows": len(errors),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.percentile(errors, 90)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="PATH", help="write the numbers as JSON; - for stdout")
    wanted = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA} is not there: measured data is not part of the repository; nothing was compared")
    result: dict[str, Any] = {"silicon": silicon(), "vllm_runs": {}}
    rows = result["silicon"]
    print(
        f"{rows['held_out_rows']} measured rows in {rows['groups']} groups, not used for the fit: median error {rows['median_error']:.1%}, p90 {rows['p90_error']:.1%}"
    )
    for name in RUNS:
        found = result["vllm_runs"][name] = compared(Run(name))
        print(f"\n{name}: {found['preemptions']} preemptions")
        for what, pair in found.items():
            if isinstance(pair, tuple):
                print(f"  {what:20} simulated {pair[0]:10.4f}   measured {pair[1]:10.4f}   {pair[0] / pair[1] - 1:+.1%}")
    if wanted.json:
        text = json.dumps(result, indent=2)
        print(text) if wanted.json == "-" else Path(wanted.json).write_text(text)


if __name__ == "__main__":
    main()
