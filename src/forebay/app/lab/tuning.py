"""Tuning that can be believed: settings are chosen on a training span and judged on what came after, which they have not seen."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from forebay.app.lab import candidates, comparing
from forebay.app.lab.candidates import Candidate
from forebay.app.lab.comparing import Comparison, Task, play_one, summed
from forebay.app.lab.over_cores import over_cores
from forebay.app.lab.request import LabRequest
from forebay.app.lab.world import Prepared, opened, prepared, scenario
from forebay.demand.arrays import ArrivalSource
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration
from forebay.scaling.capacity import pool_capacity
from forebay.simulation import tune
from forebay.simulation.clairvoyant import Bound
from forebay.simulation.tune import Row, Tuned
from forebay.simulation.values import RunResult

Tell = Callable[[float], None]
SUFFIX = " tuned"


class Trial(msgspec.Struct, frozen=True):
    """One setting on the training span."""

    ready: Prepared
    candidate: Candidate
    hourly: tuple[float, ...]


class Choice(msgspec.Struct, frozen=True):
    """What was chosen for one policy, and everything that was tried."""

    policy: str
    chosen: Candidate
    because: str
    tried: tuple[tuple[Candidate, Row], ...]

    @property
    def settings(self) -> str:
        """In words; the defaults where nothing else was better."""
        return described(self.chosen)


class Tuning(msgspec.Struct, frozen=True):
    """The choices, and how they and the defaults did on the span that was held out."""

    trained: Prepared
    choices: tuple[Choice, ...]
    held_out: Comparison


def spans(request: LabRequest, train_s: float | None) -> tuple[LabRequest, LabRequest]:
    """(training, held out): the first ``train_s`` (None: half) of the span, and the rest. Raises BadInput where nothing is left."""
    trace = request.trace
    whole_s = opened(request, request.seed, trace.start_s, trace.duration_s).duration_s
    first_s = whole_s / 2 if train_s is None else train_s
    if not 0 < first_s < whole_s:
        raise BadInput(
            f"--train: found {format_duration(first_s)}, allowed: less than the span of {format_duration(whole_s)}: some must be held out"
        )
    return (
        msgspec.structs.replace(request, trace=msgspec.structs.replace(trace, duration_s=first_s)),
        msgspec.structs.replace(
            request, trace=msgspec.structs.replace(trace, start_s=trace.start_s + first_s, duration_s=whole_s - first_s)
        ),
    )


def tuned(
    request: LabRequest,
    names: Sequence[str],
    train_s: float | None,
    *,
    jobs: int,
    timelines: bool,
    doing: Callable[[str], None],
    tell: Tell,
) -> Tuning:
    """Choose settings for ``names`` on the first part of the span, and play the rest with the defaults and with what was chosen."""
    first, rest = spans(request, train_s)
    doing("the training span")
    trained = prepared(first, doing)
    world = scenario(trained, request.seed)
    # A run is bounded in requests: what is learned after a million of them is not worth the wait.
    world = tune.training(world, _arrivals(trained), tune.REQUESTS_MAX)
    trained = msgspec.structs.replace(trained, duration_s=world.duration_s)
    rate = pool_capacity(request.pool).rate_per_s
    hourly = tuple(tune.hourly_need(world, _arrivals(trained), rate)) if rate else ()
    trials = [Trial(trained, candidate, hourly) for name in names for candidate in candidates.listed(name, trained, hourly)]
    doing(f"{len(trials)} settings on {format_duration(trained.duration_s)}")
    rows = dict(over_cores(train, trials, jobs, lambda share: tell(share / 2)))
    choices = tuple(_choice(name, trials, rows, world.promise_attainment) for name in names)
    doing("the held-out span")
    held = prepared(rest, doing)
    doing("default and tuned settings on what was held out")
    return Tuning(trained, choices, _held_out(held, choices, hourly, jobs, timelines, lambda share: tell(0.5 + share / 2)))


def train(trial: Trial, tell: Tell) -> Row:
    """One run on the training span."""
    ready = trial.ready
    world = scenario(ready, ready.request.seed)
    policy = candidates.make(trial.candidate, ready, trial.hourly)
    run = play_one(ready, world, policy, trial.candidate.policy, ready.request.seed, tell)
    return Row(described(trial.candidate), run.gpu_hours, tune.kept(run, world), run.scale_actions)


class Retrial(msgspec.Struct, frozen=True):
    """One setting, or (None) the clairvoyant schedule, on the held-out span."""

    ready: Prepared
    candidate: Candidate | None
    hourly: tuple[float, ...]
    name: str
    timeline: bool


def judge(trial: Retrial, tell: Tell) -> RunResult | Bound:
    """One run on the held-out span."""
    ready = trial.ready
    if trial.candidate is None:
        return comparing.work(Task(ready, None, ready.request.seed), tell)
    world = scenario(ready, ready.request.seed)
    run = play_one(ready, world, candidates.make(trial.candidate, ready, trial.hourly), trial.name, ready.request.seed, tell)
    return run if trial.timeline else msgspec.structs.replace(run, timeline=())


def described(candidate: Candidate) -> str:
    """``target 26, down 300``; ``defaults`` where nothing is set."""
    return ", ".join(f"{key} {value:.4g}" for key, value in candidate.settings.items()) or "defaults"


def as_json(tuning: Tuning) -> dict[str, Any]:
    """For scripts: the comparison on the held-out span, and what was chosen."""
    return {
        **comparing.as_json(tuning.held_out),
        "train_s": tuning.trained.duration_s,
        "train_requests": tuning.trained.survey.requests,
        "choices": [
            {
                "name": choice.policy,
                "settings": dict(choice.chosen.settings),
                "because": choice.because,
                "tried": [
                    {"settings": dict(each.settings), "gpu_hours": row.gpu_hours, "attainment": row.attainment}
                    for each, row in choice.tried
                ],
            }
            for choice in tuning.choices
        ],
    }


def _held_out(ready: Prepared, choices: Sequence[Choice], hourly: tuple[float, ...], jobs: int, timelines: bool, tell: Tell) -> Comparison:
    retrials = [Retrial(ready, None, hourly, "", False)]
    for choice in choices:
        default = choice.tried[0][0]
        retrials.append(Retrial(ready, default, hourly, choice.policy, timelines))
        if choice.chosen != default:
            retrials.append(Retrial(ready, choice.chosen, hourly, choice.policy + SUFFIX, timelines))
    results = dict(over_cores(judge, retrials, jobs, tell))
    bound = next((result for result in results.values() if isinstance(result, Bound)), None)
    runs: dict[str, tuple[RunResult, ...]] = {
        result.policy: (result,) for _, result in sorted(results.items()) if isinstance(result, RunResult)
    }
    return summed(ready, bound, runs)


def _choice(name: str, trials: Sequence[Trial], rows: dict[int, Row], promise: float) -> Choice:
    mine = [(trial.candidate, rows[place]) for place, trial in enumerate(trials) if trial.candidate.policy == name]
    found: Tuned = tune.best([row for _, row in mine], promise)
    return Choice(name, mine[found.index][0], found.because, tuple(mine))


def _arrivals(ready: Prepared) -> ArrivalSource:
    trace = ready.request.trace
    return opened(ready.request, ready.request.seed, trace.start_s, trace.duration_s).source()
