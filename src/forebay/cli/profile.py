"""``forebay profile``: the profiles that ship, where their numbers come from, and how many requests a replica of each can serve."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from forebay.app.config import load_profiles
from forebay.cli.output import console as output_console
from forebay.cli.output import write_json
from forebay.domain.errors import BadInput
from forebay.domain.profile import ColdStart, Profile, StepSpread, WarmUp
from forebay.domain.units import format_bytes, format_duration, parse_duration_s, parse_rate_per_s
from forebay.engine.capacity import CapacityAtSlo, ContextRow, FallsOver, at_slo, by_context, falls_over
from forebay.engine.catalogue import PROFILES
from forebay.scaling.capacity import whole_replicas
from forebay.spec.problems import did_you_mean

app = typer.Typer(
    name="profile", help="The physics of models on hardware: list, show, and the capacity that follows.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A profile; `forebay profile list` has the names.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Take in the profiles of this file: a configuration, or what `forebay calibrate` wrote."
    ),
]
Json = Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write the result as JSON; - for stdout.")]


@app.command("list")
def list_profiles(config: Config = None, json_path: Json = None) -> None:
    """The profiles that ship, and with ``-c`` those of a file."""
    profiles = _profiles(config).values()
    if json_path is not None:
        write_json([msgspec.to_builtins(profile) for profile in profiles], json_path)
    if json_path == "-":
        return
    table = _table("profile", "model", "hardware", right=("KV tokens", "sequences", "cold start", "$/hour"))
    for profile in profiles:
        table.add_row(
            profile.name,
            profile.model,
            profile.hardware,
            f"{profile.kv_tokens:,}",
            str(profile.sequences_max),
            format_duration(round(profile.cold_start.total_s)),
            f"{profile.gpu_hour_usd * profile.gpus:.2f}",
        )
    output_console().print(table)


@app.command("show")
def show(name: Name, config: Config = None, json_path: Json = None) -> None:
    """Every number of one profile, and the source of each."""
    profile = _find(name, config)
    if json_path is not None:
        write_json(profile, json_path)
    if json_path == "-":
        return
    console = output_console(highlight=False)
    numbers = _table(profile.name, "")
    for what, value in _numbers(profile):
        numbers.add_row(what, value)
    sources = _table("source of", "origin")
    for source in profile.sources:
        sources.add_row(source.what, source.origin)
    console.print(numbers)
    console.print()
    console.print(sources)


@app.command("capacity")
def capacity(
    name: Name,
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="Mean prompt tokens of a request.")] = 1000,
    output: Annotated[int, typer.Option("--output", min=1, help="Mean output tokens of a request.")] = 200,
    ttft: Annotated[str, typer.Option("--ttft", help="The promise: 95 % of first tokens within this time.")] = "1s",
    itl: Annotated[str, typer.Option("--itl", help="The promise: mean time between tokens.")] = "50ms",
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Replicas of the fleet.")] = 1,
    rate: Annotated[str | None, typer.Option("--rate", help="Requests the fleet must serve, such as 50/s or 400/min.")] = None,
    config: Config = None,
    json_path: Json = None,
) -> None:
    """How much one replica serves within its promises, which limit binds, and at which context a fleet falls over."""
    profile = _find(name, config)
    ttft_s, itl_s = _duration_s("--ttft", ttft), _duration_s("--itl", itl)
    rate_per_s = _rate_per_s(rate)
    state = at_slo(profile, prompt, output, ttft_s, itl_s)
    rows = by_context(profile, output, ttft_s, itl_s)
    fall = None if rate_per_s is None else falls_over(profile, replicas, rate_per_s, output, ttft_s, itl_s)
    needs = None if rate_per_s is None else _needs(profile, rate_per_s, state)
    if json_path is not None:
        shape = {"prompt_tokens": prompt, "output_tokens": output, "ttft_s": ttft_s, "itl_s": itl_s, "replicas": replicas}
        write_json({**_result(profile, shape, state, rows, fall), **msgspec.to_builtins(needs or Needs())}, json_path)
    if json_path == "-":
        return
    words = f"{prompt:,} prompt + {output:,} output tokens, TTFT {ttft}, ITL {itl}"
    _print_capacity(profile, words, replicas, state, None if needs is None else _needs_words(needs, rate or ""))
    _print_contexts(rows, fall, replicas, output)
    if profile.doubt:
        output_console(stderr=True).print(f"warning: {profile.doubt}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _profiles(config: Path | None) -> dict[str, Profile]:
    """The shipped profiles, and those of ``config``; as its pools use them, they hide shipped ones of the same name."""
    return {**PROFILES, **({} if config is None else load_profiles(config))}


def _find(name: str, config: Path | None) -> Profile:
    profiles = _profiles(config)
    if name in profiles:
        return profiles[name]
    hint = did_you_mean(name, profiles)
    raise BadInput(f"no profile is called {name!r}; allowed: {', '.join(profiles)}" + (f"; {hint}" if hint else ""))


def _duration_s(option: str, text: str) -> float:
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None
    if seconds <= 0:
        raise BadInput(f"{option}: found {text!r}; allowed: a time of more than 0")
    return seconds


def _rate_per_s(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = parse_rate_per_s(text)
    except ValueError as error:
        raise BadInput(f"--rate: {error}") from None
    if rate <= 0:
        raise BadInput(f"--rate: found {text!r}; allowed: a rate of more than 0")
    return rate


def _numbers(profile: Profile) -> list[tuple[str, str]]:
    law, cold = profile.law, profile.cold_start
    unsure = [("not measured", ", ".join(f"step.{key}" for key in profile.not_measured))] if profile.not_measured else []
    return [
        ("model", profile.model),
        ("hardware", f"{profile.hardware} ({profile.gpus} GPU{'s' if profile.gpus > 1 else ''}, ${profile.gpu_hour_usd:.2f} per GPU-hour)"),
        ("step: base", f"{law.base_s * 1e3:.2f} ms"),
        ("step: per decoding sequence", f"{law.per_sequence_s * 1e6:.1f} µs"),
        ("step: per 1,000 KV tokens read", f"{law.per_kv_token_s * 1e9:.1f} µs"),
        ("step: per prompt token", f"{law.per_prefill_token_s * 1e6:.1f} µs"),
        *unsure,
        *([] if profile.spread.steady else [("step: spread", _spread(profile.spread))]),
        *([("step: warm-up", _warm_up(profile.warm_up))] if profile.warm_up.passes else []),
        ("token budget of a step", f"{profile.prefill_chunk_tokens:,}"),
        ("sequences at once", str(profile.sequences_max)),
        ("KV", f"{profile.kv_tokens:,} tokens in blocks of {profile.block_tokens}, {profile.kv_bytes_per_token:,} bytes each"),
        ("context", f"{profile.context_tokens:,} tokens"),
        ("front end", f"{profile.front_end_s * 1e3:.1f} ms per request, {profile.front_end_per_token_s * 1e6:.1f} µs per output token"),
        ("cold start", f"{format_duration(round(cold.total_s))}; on a warm node {format_duration(round(cold.warm_s))}"),
        ("its stages", _stages(cold)),
    ]


def _spread(spread: StepSpread) -> str:
    return f"{spread.p5:.0%} to {spread.p95:.0%} of that in nine steps of ten, {spread.p99:.0%} or more in one of a hundred"


def _warm_up(warm_up: WarmUp) -> str:
    return f"the first {warm_up.passes:,} of each engine that starts take {warm_up.factor:g} times as long"


def _stages(cold: ColdStart) -> str:
    weights = f"{format_bytes(cold.weights_bytes)} of weights in {format_duration(round(cold.weights_s))}"
    return f"node {format_duration(round(cold.provision_s))}, {weights}, engine {format_duration(round(cold.init_s))}"


class Needs(msgspec.Struct, frozen=True):
    """What a rate takes; None where no rate was given, no replica can keep the promise, or the price isn't known."""

    replicas_needed: int | None = None
    gpus_needed: int | None = None
    usd_per_hour: float | None = None


def _needs(profile: Profile, rate_per_s: float, state: CapacityAtSlo) -> Needs:
    if not state.requests_per_s:
        return Needs()
    replicas = max(1, whole_replicas(rate_per_s / state.requests_per_s))
    gpus = replicas * profile.gpus
    return Needs(replicas, gpus, gpus * profile.gpu_hour_usd if profile.gpu_hour_usd else None)


def _needs_words(needs: Needs, rate: str) -> tuple[str, str]:
    if needs.replicas_needed is None:
        return f"for {rate}", "no number of replicas keeps this promise"
    replicas, gpus = needs.replicas_needed, needs.gpus_needed
    words = f"[bold]{replicas} replica{'' if replicas == 1 else 's'}[/bold], {gpus} GPU{'' if gpus == 1 else 's'}"
    return f"for {rate}", words + ("" if needs.usd_per_hour is None else f", ${needs.usd_per_hour:.2f} per hour")


def _result(
    profile: Profile, shape: dict[str, Any], state: CapacityAtSlo, rows: tuple[ContextRow, ...], fall: FallsOver | None
) -> dict[str, Any]:
    return {
        "profile": profile.name,
        "not_measured": list(profile.not_measured),
        **shape,
        "capacity": msgspec.to_builtins(state),
        "fleet_requests_per_s": state.requests_per_s * shape["replicas"],
        "usd_per_million_output_tokens": _usd_per_million(profile, state),
        "by_context": [msgspec.to_builtins(row) for row in rows],
        "falls_over": None if fall is None else msgspec.to_builtins(fall),
    }


def _usd_per_million(profile: Profile, state: CapacityAtSlo) -> float | None:
    per_hour = state.output_tokens_per_s * 3600
    return profile.gpu_hour_usd * profile.gpus / per_hour * 1e6 if per_hour else None


def _print_capacity(profile: Profile, shape: str, replicas: int, state: CapacityAtSlo, needs: tuple[str, str] | None) -> None:
    console = output_console(highlight=False)
    console.print(f"[bold]One replica of {profile.name}[/bold] ({profile.hardware}), {shape}:")
    table = _table("", "")
    table.show_header = False
    table.add_row("requests/s", f"[bold]{state.requests_per_s:.2f}[/bold]  ({state.requests_per_s * 60:.0f} per minute)")
    if replicas > 1:
        table.add_row(f"{replicas} replicas", f"{state.requests_per_s * replicas:.2f} requests/s")
    if needs is not None:
        table.add_row(*needs)
    table.add_row("tokens/s", f"{state.prompt_tokens_per_s:,.0f} prompt, {state.output_tokens_per_s:,.0f} output")
    table.add_row("in flight", f"{state.sequences:.0f} sequences, KV {state.kv_usage:.0%}, step {state.step_s * 1e3:.1f} ms")
    table.add_row("TTFT p95", format_duration(round(state.ttft_s, 3)) if state.ttft_s < 1e6 else "grows without end")
    usd = _usd_per_million(profile, state)
    if usd is not None:
        table.add_row("cost at this load", f"${usd:.2f} per million output tokens")
    table.add_row("binding limit", f"[bold]{state.binding}[/bold]")
    console.print(table)
    console.print(state.because)
    console.print()


def _print_contexts(rows: tuple[ContextRow, ...], fall: FallsOver | None, replicas: int, output: int) -> None:
    console = output_console(highlight=False)
    console.print(f"If every request ended at the same context ({output:,} tokens of it output):")
    table = _table(right=("context", "sequences that fit", "requests/s"))
    table.add_column("binding limit")
    for row in rows:
        table.add_row(f"{row.context_tokens:,}", str(row.sequences_fit), f"{row.requests_per_s:.3g}", str(row.binding))
    console.print(table)
    if fall is None:
        return
    fleet = f"{replicas} replica{'s' if replicas > 1 else ''} at {fall.rate_per_s:.4g} requests/s"
    if fall.holds_to_the_end:
        console.print(f"{fleet} hold even where every request fills the whole context of {fall.context_tokens:,} tokens.")
    elif fall.context_tokens is None:
        console.print(f"{fleet} do not hold at any context; the limit is {fall.binding}.")
    else:
        console.print(
            f"[bold]{fleet} fall over beyond a context of {fall.context_tokens:,} tokens[/bold]; the limit there is {fall.binding}."
        )


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # Names stay whole: other columns give way.
        table.add_column(column, overflow="fold", no_wrap=column == "profile")
    for column in right:
        table.add_column(column, justify="right", overflow="fold")
    return table
