"""Does the engine model say what real engines did? Three real vLLM runs replayed step by step, and measured rows that no fit has seen.

    python bench/validation.py [--json PATH]

1. `vllm_runs`: 300 requests each on RTX 4090 and RTX PRO 6000, with arrival, first and last token of every request. The step law's
   four coefficients are fitted to the first half of the requests; the run is then simulated whole.
2. Measured rows of vLLM (closed loops of C requests): in each group (model, GPU, TP, precision) of 8 rows or more, the law is fitted to every
   other row and predicts the time per output token of the rest. Rows whose KV was full (they queued) are left out, as the law has no queue.
3. The same rows with whole groups left out: a GPU and tensor-parallel size that no fit has seen is predicted from the model's others, by
   what bandwidth and arithmetic do to each coefficient.

Needs the data folder `../shared/validation` beside the repository; says so and ends where it is absent.
"""

import argparse
import collections
import csv
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

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
GPUS = {"h100_sxm": (3.35, 1.979), "h200_sxm": (4.8, 1.979), "b200_sxm": (8.0, 4.5), "b300_sxm": (8.0, 4.5)}
"""Memory bandwidth, TB/s, and dense FP8 arithmetic, PFLOP/s, as NVIDIA's data sheets state them."""
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


class Group(NamedTuple):
    """Measured rows of one engine shape: what a step of the law is made of (rows by 1, B, KV/1e6, prompt/1e3 per step), TPOT ms, and which
    rows flowed (their KV was not full)."""

    model: str
    gpu: str
    tp: int
    precision: str
    terms: np.ndarray
    tpot: np.ndarray
    flowing: np.ndarray
    in_order: np.ndarray


def measured_groups() -> list[Group]:
    """Of ROWS_MIN rows or more."""
    rows_of: dict[tuple[str, ...], list[tuple[float, ...]]] = collections.defaultdict(list)
    with (DATA / "aiconfigurator_silicon_sample.csv").open() as lines:
        for row in csv.DictReader(lines):
            plain = row["pp_size"] in ("", "1") and row["attention_dp_size"] in ("", "1")
            if row["backend"] == "vllm" and row["mode"] == "agg" and plain and row["silicon_tpot_ms"]:
                key = tuple(row[name] for name in ("model_path", "system", "tp_size", "precision", "moe_ep_size", "backend_version"))
                rows_of[key].append(tuple(float(row[name]) for name in ("batch_size", "isl", "osl", "silicon_tpot_ms", "silicon_ttft_ms")))
    found = []
    for (model, gpu, tp, precision, *_), rows in sorted(rows_of.items()):
        if len(rows) < ROWS_MIN:
            continue
        many, prompt, output, tpot, ttft = np.array(rows).T
        terms = np.stack([np.ones_like(many), many, many * (prompt + output / 2) / 1e6, many * prompt / output / 1e3], axis=1)
        rough, _ = nnls(terms / tpot[:, None], np.ones(len(tpot)))
        flowing = ttft < SATURATED * (rough[0] + rough[3] * prompt / 1e3) + 200
        found.append(Group(model, gpu, int(tp), precision, terms, tpot, flowing, np.argsort(many * 1e6 + prompt)))
    return found


def told(errors: list[float], groups: int) -> dict[str, Any]:
    return {
        "groups": groups,
        "held_out_rows": len(errors),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.percentile(errors, 90)),
    }


def unseen_rows(groups: list[Group]) -> dict[str, Any]:
    """Relative errors of the time per output token on every other row of each group, by a law fitted to the rest of the group."""
    errors: list[float] = []
    used = 0
    for group in groups:
        training = np.zeros(len(group.tpot), bool)
        training[group.in_order[::2]] = True
        held_out = group.flowing & ~training
        training &= group.flowing
        if training.sum() < 4 or held_out.sum() < 2:
            continue
        law, _ = nnls(group.terms[training] / group.tpot[training, None], np.ones(training.sum()))
        errors += list(np.abs(group.terms[held_out] @ law / group.tpot[held_out] - 1))
        used += 1
    return told(errors, used)


def scaled_terms(group: Group) -> np.ndarray:
    """The law's terms with what its coefficients are made of, so that one fit holds for many GPUs and tensor-parallel sizes.

    Weights and KV are read at the bandwidth of all GPUs, prompts and sequences computed at their arithmetic; the rest of each
    coefficient (kernel starts, collectives, the scheduler) is the same everywhere.
    """
    bandwidth, arithmetic = (group.tp * each for each in GPUS[group.gpu])
    one, sequences, kv, prompt = group.terms[group.flowing].T
    return np.stack(
        [one, one / bandwidth, sequences, sequences / arithmetic, sequences / bandwidth, kv / bandwidth, prompt, prompt / arithmetic],
        axis=1,
    )


def unseen_groups(groups: list[Group]) -> dict[str, Any]:
    """The same errors on whole groups: predicted from other GPUs and tensor-parallel sizes of the model, none of whose rows is of this GPU and size.

    Each group counts alike in the fit; what precision the model has is the same throughout.
    """
    errors: list[float] = []
    medians: list[float] = []
    for group in groups:
        others = [
            other
            for other in groups
            if (other.model, other.precision) == (group.model, group.precision) and (other.gpu, other.tp) != (group.gpu, group.tp)
        ]
        others = [other for other in others if other.flowing.sum() >= 4]
        if len(others) < 2 or group.flowing.sum() < 4:
            continue
        terms, tpot, weights = (
            np.concatenate(parts)
            for parts in (
                [scaled_terms(other) for other in others],
                [other.tpot[other.flowing] for other in others],
                [np.full(other.flowing.sum(), other.flowing.sum() ** -0.5) for other in others],
            )
        )
        law, _ = nnls(terms / tpot[:, None] * weights[:, None], weights)
        missed = np.abs(scaled_terms(group) @ law / group.tpot[group.flowing] - 1)
        errors += list(missed)
        medians.append(float(np.median(missed)))
    return {**told(errors, len(medians)), "median_of_group_medians": float(np.median(medians)), "worst_group_median": max(medians)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="PATH", help="write the numbers as JSON; - for stdout")
    parser.add_argument("--rows-only", action="store_true", help="leave out the recorded runs, which take minutes")
    wanted = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA} is not there: measured data is not part of the repository; nothing was compared")
    groups = measured_groups()
    result: dict[str, Any] = {"silicon": unseen_rows(groups), "silicon_unseen_groups": unseen_groups(groups), "vllm_runs": {}}
    for which, words in (
        ("silicon", "rows not used for the fit"),
        ("silicon_unseen_groups", "groups left out whole, predicted from other GPUs and TPs"),
    ):
        rows = result[which]
        print(
            f"{rows['held_out_rows']} measured rows in {rows['groups']} groups, {words}: median error {rows['median_error']:.1%}, p90 {rows['p90_error']:.1%}"
        )
    rows = result["silicon_unseen_groups"]
    print(f"  by group: half of their medians within {rows['median_of_group_medians']:.1%}, the worst {rows['worst_group_median']:.1%}")
    if wanted.rows_only:
        result.pop("vllm_runs")
    for name in () if wanted.rows_only else RUNS:
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
