"""A comparison as the page shows it: the facts of the world under its title, the schedule as a line, what to know before trusting it."""

from pathlib import Path

from forebay.app import outputs
from forebay.app.lab import lead_in
from forebay.app.lab.comparing import Comparison
from forebay.app.lab.fault_spans import spans
from forebay.app.lab.world import scenario
from forebay.app.report.content import BoundDrawn, Content, Played
from forebay.app.report.page import render
from forebay.domain.units import format_duration, format_share


def write_page(comparison: Comparison, path: Path) -> None:
    """The page at ``path``, whole or not at all; raises BadInput where it can't be written."""
    outputs.leave("--html", path, render(content(comparison)).encode())


def content(comparison: Comparison) -> Content:
    """What the page says."""
    ready, bound = comparison.ready, comparison.bound
    pool = ready.request.pool
    profile = pool.profile
    assert profile is not None
    # What keeps the promise first, each part by cost.
    lines = sorted(comparison.summaries, key=lambda line: not line.holds_slo)
    played = tuple(Played(line, comparison.runs[line.name][0], comparison.attained(line.name)) for line in lines)
    drawn = None
    if bound is not None:
        drawn = BoundDrawn(
            bound.gpu_hours,
            bound.schedule,
            "loose" if bound.loose else "" if bound.attainment >= pool.slo.attainment else "≈",
            bound.attainment,
        )
    return Content(
        title=f"{pool.name} on {_short_name(ready.name)}, {format_duration(ready.duration_s)}",
        facts=_facts(comparison),
        verdict=f"{comparison.verdict()} {comparison.advice()}".rstrip().replace("`", ""),
        start_wall_s=ready.start_wall_s,
        zone=ready.clock.zone,
        offsets=tuple(ready.clock.offsets(ready.duration_s)) if ready.clock.dated else ((0.0, 0.0),),
        faults=spans(scenario(ready, ready.request.seed)),
        ttft_s=pool.slo.ttft_s,
        itl_s=pool.slo.itl_s,
        attainment=pool.slo.attainment,
        gpus_per_replica=profile.gpus,
        gpu_hour_usd=profile.gpu_hour_usd,
        played=played,
        bound=drawn,
        notes=(*ready.notes, *_notes(comparison)),
    )


def _facts(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    ready = comparison.ready
    request, found = ready.request, ready.survey
    pool, profile = request.pool, request.pool.profile
    assert profile is not None
    cold_start_s = scenario(ready, request.seed).cold_start.unshared_s
    bounds = pool.scaling
    facts = [
        ("pool", f"{profile.name}, {bounds.min_replicas} to {bounds.max_replicas} replicas"),
        ("trace", f"{found.requests:,} requests, {found.mean_per_s:.4g}/s on average, {found.peak_per_s:.4g}/s in the busiest minute"),
        ("lengths", f"{found.prompt_tokens_mean:,.0f} + {found.output_tokens_mean:,.0f} tokens on average"),
        (
            "promise",
            f"{100 * pool.slo.attainment:g} %: first token {format_duration(pool.slo.ttft_s)}, {format_duration(pool.slo.itl_s)} a token",
        ),
        ("cold start", format_duration(cold_start_s)),
    ]
    if ready.clock.dated:
        facts.append(("begins", f"{ready.clock.date(0.0, zone=False)}; all times by the clock of {ready.clock.zone}"))
    if lead_s := lead_in.length_s(ready.past):
        facts.append(("lead-in", f"{format_duration(lead_s)} before, not counted"))
    seeds = max(len(runs) for runs in comparison.runs.values())
    if seeds > 1:
        facts.append(("seeds", str(seeds)))
    if request.faults_text:
        facts.append(("faults", request.faults_text))
    if request.actuator.kind != "direct":
        facts.append(("actuator", request.actuator_text))
    return tuple(facts)


def _notes(comparison: Comparison) -> list[str]:
    ready, bound = comparison.ready, comparison.bound
    notes = [
        "GPU-hours count from a node requested to the node released, whatever the replica did meanwhile: starting, draining, failed and "
        "spare ones are paid for.",
        f"Savings are against {ready.peak_replicas} replicas all the time, which keep the promise through the busiest hour; only GPUs "
        "that were given back save anything, and only where the promise is kept (–: it isn't).",
        "A breach is a run of consecutive minutes in which fewer requests than promised got their first token and their pace in time. "
        "Lines show the worst minute of each point.",
    ]
    if bound is not None:
        kept = format_share(bound.attainment, comparison.yardstick.promise)
        notes.append(
            f"The clairvoyant schedule knows the future and keeps the promise ({kept}) with the fewest GPU-hours that are known to do; it "
            f"is proven that none needs fewer than {bound.lower_bound_gpu_hours:,.1f}. {bound.note}".rstrip()
        )
    if any(len(runs) > 1 for runs in comparison.runs.values()):
        notes.append(
            "± is half the width of the 95 % confidence interval of a mean over seeds (Student's t). Pictures are of the first seed."
        )
    return notes


def _short_name(name: str) -> str:
    """A trace's name without its folders."""
    path, _, column = name.partition(" ")
    short = Path(path).name
    for suffix in (".gz", ".csv", ".jsonl"):
        short = short.removesuffix(suffix)
    return f"{short} {column}".rstrip()
