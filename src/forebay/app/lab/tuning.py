"""Tuning that can be believed: settings are chosen on a training span and judged on what came after, which they have not seen."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from forebay.app.lab import candidates
from forebay.app.lab.candidates import Candidate, Told, described
from forebay.app.lab.comparing import TUNED, Comparison, played
from forebay.app.lab.over_cores import over_cores
from forebay.app.lab.playing import play_one
from forebay.app.lab.policies import parted
from forebay.app.lab.request import LabRequest
from forebay.app.lab.summaries import FAVOURITE
from forebay.app.lab.training_span import training_span
from forebay.app.lab.world import Prepared, opened, prepared, scenario
from forebay.demand.arrays import ArrivalSource
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration
from forebay.scaling.capacity import pool_capacity
from forebay.simulation import tune
from forebay.simulation.tune import Row, Tuned

Tell = Callable[[float], None]


class Trial(msgspec.Struct, frozen=True):
    """One setting on the training span."""

    ready: Prepared
    candidate: Candidate


class Choice(msgspec.Struct, frozen=True):
    """What was chosen for one policy, and everything that was tried."""

    policy: str
    chosen: Candidate
    because: str
    tried: tuple[tuple[Candidate, Row], ...]
    told: Told
    """What was chosen, to be pasted."""

    @property
    def settings(self) -> str:
        """In words; the defaults where nothing else was better."""
        return self.told.words


class Tuning(msgspec.Struct, frozen=True):
    """The choices, and how they and the defaults did on the span that was held out."""

    trained: Prepared
    choices: tuple[Choice, ...]
    held_out: Comparison


class Rivals(msgspec.Struct, frozen=True):
    """Other autoscalers as tuned for a comparison, and where (``said``, in words)."""

    trained: Prepared
    said: str
    choices: tuple[Choice, ...]
    as_given: bool = False
    """Some of the others came with settings, and were not tuned."""

    @property
    def note(self) -> str:
        """For whoever reads the comparison."""
        requests = min(self.trained.survey.requests, tune.REQUESTS_MAX)
        return (
            f"Rows named {TUNED.strip()} have the settings that were cheapest while they kept the promise on {self.said} "
            f"({requests:,} requests a run).{' Rows with settings of their own are played as they were given.' if self.as_given else ''}"
        )


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
            request,
            trace=msgspec.structs.replace(
                trace, start_s=trace.start_s + first_s, duration_s=(whole_s if trace.duration_s is None else trace.duration_s) - first_s
            ),
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
    trained = bounded(prepared(first, doing, tell))
    rate = pool_capacity(request.pool).rate_per_s
    hourly = tuple(tune.hourly_need(scenario(trained, request.seed), _arrivals(trained), rate)) if rate else ()
    choices = choose(trained, names, hourly, jobs=jobs, doing=doing, tell=lambda share: tell(share / 2))
    doing("the held-out span")
    held = prepared(rest, doing, tell)
    return Tuning(trained, choices, _held_out(held, choices, jobs, timelines, doing, lambda share: tell(0.5 + share / 2)))


def bounded(ready: Prepared) -> Prepared:
    """``ready`` cut where a run has seen enough: what is learned after a million requests is not worth the wait."""
    world = tune.training(scenario(ready, ready.request.seed), _arrivals(ready), tune.REQUESTS_MAX)
    return msgspec.structs.replace(ready, duration_s=world.duration_s)


def tunable(names: Sequence[str]) -> list[str]:
    """Those of ``names`` that `compare` tunes: other people's, without settings of their own."""
    return [name for name in names if name != FAVOURITE and not parted(name)[1]]


def require_tunable(option: str, names: Sequence[str]) -> None:
    """Raises BadInput where none of ``names`` can be tuned."""
    if not tunable(names):
        raise BadInput(
            f"{option}: found nothing to tune among {', '.join(names)}, allowed: another autoscaler without settings beside them; "
            "`forebay tune` looks for Forebay's own"
        )


def require_defaults(option: str, names: Sequence[str]) -> None:
    """Raises BadInput where one of ``names`` carries settings: then there is nothing to be looked for."""
    for name in names:
        if parted(name)[1]:
            raise BadInput(f"{option}: found {name!r}, allowed: names without settings: those are what is looked for; `compare` plays it")


def rivals(ready: Prepared, names: Sequence[str], *, jobs: int, doing: Callable[[str], None], tell: Tell) -> Rivals:
    """What `compare` plays beside the defaults: the best settings of ``names`` that are `tunable`, as far as they have any."""
    doing("the training span")
    span = training_span(ready, pool_capacity(ready.request.pool).rate_per_s or 0.0)
    trained = bounded(prepared(span.request, doing, tell))
    choices = choose(trained, tunable(names), span.hourly, jobs=jobs, doing=doing, tell=tell)
    given = any(parted(name)[1] for name in names)
    return Rivals(trained, span.said, tuple(choice for choice in choices if len(choice.tried) > 1), given)


def choose(
    trained: Prepared, names: Sequence[str], hourly: tuple[float, ...], *, jobs: int, doing: Callable[[str], None], tell: Tell
) -> tuple[Choice, ...]:
    """The best settings of each of ``names`` on ``trained``; ``hourly``: what `simulation.tune.hourly_need` gives, or nothing."""
    trials = [Trial(trained, candidate) for name in names for candidate in candidates.listed(name, trained, hourly)]
    doing(f"{len(trials)} settings on {format_duration(trained.duration_s)}")
    rows = dict(over_cores(train, trials, jobs, tell))
    return tuple(_choice(name, trials, rows, trained) for name in names)


def train(trial: Trial, tell: Tell) -> Row:
    """One run on the training span."""
    ready = trial.ready
    world = scenario(ready, ready.request.seed)
    run = play_one(ready, world, candidates.make(trial.candidate, ready), trial.candidate.policy, ready.request.seed, tell)
    return Row(described(trial.candidate), run.gpu_hours, tune.kept(run, world), run.scale_actions)


def choices_as_json(trained: Prepared, choices: Sequence[Choice]) -> dict[str, Any]:
    """What was chosen, on what, and everything that was tried; ``name`` with `TUNED` behind it is its row in the comparison."""
    return {
        "train_s": trained.duration_s,
        "train_requests": min(trained.survey.requests, tune.REQUESTS_MAX),
        "train_start_s": trained.request.trace.start_s,
        "choices": [
            {
                "name": choice.policy,
                "settings": dict(choice.chosen.settings),
                "policy": choice.told.policy or None,
                **({"spec": {"scaling": choice.told.spec}} if choice.told.spec else {}),
                "because": choice.because,
                "tried": [
                    {"settings": dict(each.settings), "gpu_hours": row.gpu_hours, "attainment": row.attainment}
                    for each, row in choice.tried
                ],
            }
            for choice in choices
        ],
    }


def _held_out(
    ready: Prepared, choices: Sequence[Choice], jobs: int, timelines: bool, doing: Callable[[str], None], tell: Tell
) -> Comparison:
    rows: list[tuple[str, Candidate | None]] = []
    for choice in choices:
        default = choice.tried[0][0]
        rows.append((choice.policy, default))
        if choice.chosen != default:
            rows.append((choice.policy + TUNED, choice.chosen))
    title = "default and tuned settings on what was held out"
    return played(ready, rows, seeds=1, jobs=jobs, bound=True, timelines=timelines, tell=tell, doing=doing, title=title)


def _choice(name: str, trials: Sequence[Trial], rows: dict[int, Row], trained: Prepared) -> Choice:
    mine = [(trial.candidate, rows[place]) for place, trial in enumerate(trials) if trial.candidate.policy == name]
    found: Tuned = tune.best([row for _, row in mine], trained.request.pool.slo.attainment)
    chosen = mine[found.index][0]
    return Choice(name, chosen, found.because, tuple(mine), candidates.told(chosen, trained))


def _arrivals(ready: Prepared) -> ArrivalSource:
    trace = ready.request.trace
    return opened(ready.request, ready.request.seed, trace.start_s, trace.duration_s).source()
