"""``forebay check FILE`` (or ``-c FILE``): is this configuration right? A summary if it is, every problem at once if not."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from forebay.adapters.local.contexts import consequence, expected
from forebay.app.config import load
from forebay.app.engine_keys import engine_key_troubles
from forebay.app.keys import join_troubles, key_troubles
from forebay.app.named_files import file_troubles
from forebay.cli.output import console as output_console
from forebay.cli.output import write_json
from forebay.cli.sizing import Sizing, per_min, sizing
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration
from forebay.spec.decode import BadSpec
from forebay.spec.formats import write_listen
from forebay.spec.types import Listen, Pool, Spec

DEFAULT_FILE = Path("forebay.yaml")
COMMAND_CHARS_MAX = 60


def command(
    file: Annotated[
        Path | None,
        typer.Argument(help="The configuration; teams/*.yaml beside it are read too. Default: forebay.yaml.", show_default=False),
    ] = None,
    config: Annotated[Path | None, typer.Option("-c", "--config", metavar="FILE", help="The same, as other commands have it.")] = None,
    json_path: Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write the result as JSON; - for stdout.")] = None,
    engines: Annotated[
        bool, typer.Option("--engines", help="Ask attached engines too: is each there, does it take its key, what does it serve.")
    ] = False,
) -> None:
    """Check a configuration without starting anything: the files it names are read too, and the environment's keys looked for.

    A key or a library that isn't there is a warning only, as is what an engine says: those of the gateway may be others.
    """
    file = _the_one(file, config)
    try:
        spec = load(file)
    except BadSpec as bad:
        typer.echo(str(bad), err=True)
        if json_path is not None:
            write_json({"file": str(file), "ok": False, "problems": bad.problems}, json_path)
        raise typer.Exit(bad.exit_code) from None
    unusable, missing = file_troubles(spec)
    if unusable:
        troubles = [trouble for one in unusable for trouble in one.troubles]
        for trouble in troubles:
            typer.echo(f"{file}: {trouble}", err=True)
        if json_path is not None:
            problems = [{"file": str(file), **trouble._asdict()} for trouble in troubles]
            write_json({"file": str(file), "ok": False, "problems": problems}, json_path)
        raise typer.Exit(unusable[0].exit_code)
    if engines:
        from forebay.app.asked_engines import engine_troubles  # what speaks HTTP, where it is asked for

        missing = [*missing, *engine_troubles(spec)]
    if json_path is not None:
        write_json(summary(spec, file, missing), json_path)
    if json_path != "-":
        _print(spec, file, missing)


def _the_one(file: Path | None, config: Path | None) -> Path:
    """Which file is meant; raises BadInput where two are named."""
    if file is not None and config is not None:
        raise BadInput(f"-c: found {str(config)!r} beside {str(file)!r}, allowed: one configuration; check each by itself")
    return file or config or DEFAULT_FILE


def summary(spec: Spec, file: Path, missing: Sequence[str]) -> dict[str, Any]:
    """What a checked configuration says, without its keys. ``missing``: warnings of what its environment lacks."""
    sizes = {pool.name: sizing(pool) for pool in spec.pools}
    return {
        "file": str(file),
        "ok": True,
        "problems": [],
        "warnings": _warnings(spec, list(sizes.values()), missing),
        "pools": {
            pool.name: {
                "model": pool.model,
                "profile": pool.profile.name if pool.profile else None,
                "engine": pool.engine.kind,
                "min_replicas": pool.scaling.min_replicas,
                "max_replicas": pool.scaling.max_replicas,
                "slo": msgspec.to_builtins(pool.slo),
                **{name: value for name, value in msgspec.to_builtins(sizes[pool.name]).items() if name != "warnings"},
            }
            for pool in spec.pools
        },
        "models": {model.name: msgspec.to_builtins(model) for model in spec.models},
        "tiers": {tier.name: msgspec.to_builtins(tier) for tier in spec.tiers},
        "teams": {team.name: {"weight": team.weight, "tiers": list(team.tiers), "keys": len(team.keys)} for team in spec.teams},
        "calendar": [entry.name for entry in spec.calendar],
        "gateway": write_listen(spec.gateway),
        "admin": write_listen(spec.admin),
    }


def _print(spec: Spec, file: Path, missing: Sequence[str]) -> None:
    console = output_console()
    sizes = [sizing(pool) for pool in spec.pools]
    pools = _table("pool", "model", "replicas", "promise", "one replica serves", "buffer", "$/hour", "engine")
    for pool, size in zip(spec.pools, sizes, strict=True):
        pools.add_row(
            pool.name, pool.model, _replicas(pool), _promise(pool), _rate(size), str(size.buffer_replicas), _usd(size), _engine(pool)
        )
    tiers = _table("tier", "rank", "first token", "longest wait", "")
    for tier in spec.tiers:
        note = "preemptible" if tier.preemptible else ""
        tiers.add_row(tier.name, str(tier.rank), format_duration(tier.ttft_s), format_duration(tier.longest_wait_s), note)
    console.print(pools)
    console.print(tiers)
    for line in _explained(spec, sizes, file):
        console.print(line, style="dim", highlight=False, markup=False)
    if spec.teams:
        teams = _table("team", "weight", "tiers", "keys")
        for team in spec.teams:
            teams.add_row(team.name, f"{team.weight:g}", ", ".join(team.tiers) or "all", str(len(team.keys)))
        console.print(teams)
    else:
        console.print("No teams: no key is asked for.", highlight=False)
    for warning in _warnings(spec, sizes, missing):
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)
    start = f"forebay up -c {file}"
    if all(pool.engine.kind == "attach" for pool in spec.pools):
        start += f" (or the queue alone: forebay gateway -c {file})"
    typer.echo(f"{file} is right. Gateway {_listen(spec.gateway)}, admin {_listen(spec.admin)}; start it with: {start}")


def _explained(spec: Spec, sizes: Sequence[Sizing], file: Path) -> Iterator[str]:
    """Which of two first tokens goes where, and what the figure of one replica is."""
    first, *_ = sorted(spec.tiers, key=lambda tier: tier.rank)
    differ = [f"{pool.name} {format_duration(pool.slo.ttft_s)}" for pool in spec.pools if pool.slo.ttft_s != first.ttft_s]
    if differ:
        yield (
            f"First tokens: by the pool's ({', '.join(differ)}) replicas are sized, and {first.name} is judged in the lab; by the tiers' "
            "own it is decided who goes first in the queue, and the meters count what was kept."
        )
    if any(size.replica_rate_per_s and size.declared_replica_rate_per_s is None for size in sizes):
        yield (
            "One replica serves at most that: at a steady rate, with `shape` for every request and the mean pace just kept. Bursts, "
            f"lengths that vary and small fleets take a part of it, which forebay plan size -c {file} --trace FILE measures."
        )


def _warnings(spec: Spec, sizes: list[Sizing], missing: Sequence[str]) -> list[str]:
    told = (warning for size in sizes for warning in size.warnings)
    return [*told, *_contexts(spec), *missing, *key_troubles(spec), *engine_key_troubles(spec), *join_troubles(spec), *_idle_workers(spec)]


def _idle_workers(spec: Spec) -> Iterator[str]:
    if spec.relay_workers and spec.tls is not None:
        yield (
            f"gateway.workers is {spec.relay_workers}, but streams of clients by HTTPS stay with the gateway: its workers have nothing "
            "to do; remove workers, or tls where something in front of Forebay does that"
        )


def _contexts(spec: Spec) -> Iterator[str]:
    """An emulated engine takes its profile's context; what other engines take, they say when they run."""
    models = {model.name: model for model in spec.models}
    for pool in spec.pools:
        model, there = models.get(pool.model), pool.profile.context_tokens if pool.profile else None
        here = expected(pool, model) if model is not None else None
        if pool.engine.kind == "emulated" and here is not None and there is not None and here.tokens < there:
            yield (
                f"{here.whence}, but emulated engines of pool {pool.name} take {there} tokens, as their profile "
                f"says: {consequence(here.tokens, there)}; {here.mend(there)}, or give the profile a context of {here.tokens}"
            )


def _listen(listen: Listen) -> str:
    return write_listen(listen) if listen.port else f"{write_listen(listen).rpartition(':')[0]} on a free port"


def _rate(size: Sizing) -> str:
    if size.declared_replica_rate_per_s is not None:
        return f"{per_min(size.declared_replica_rate_per_s)} (declared)"
    return "–" if size.replica_rate_per_s is None else per_min(size.replica_rate_per_s)


def _usd(size: Sizing) -> str:
    least, most = size.usd_per_hour_min, size.usd_per_hour_max
    if least is None or most is None:
        return "–"
    return f"{least:.2f}" if least == most else f"{least:.2f} to {most:.2f}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _replicas(pool: Pool) -> str:
    scaling = pool.scaling
    if scaling.min_replicas == scaling.max_replicas:
        return str(scaling.min_replicas)
    return f"{scaling.min_replicas} to {scaling.max_replicas}"


def _promise(pool: Pool) -> str:
    slo = pool.slo
    return f"{slo.attainment * 100:g}%: first token {format_duration(slo.ttft_s)}, then {format_duration(slo.itl_s)}"


def _engine(pool: Pool) -> str:
    engine = pool.engine
    if engine.kind == "attach":
        return "attached: " + ", ".join(engine.attach)
    profile = pool.profile.name if pool.profile else ""
    if engine.kind == "emulated":
        return f"emulated {profile}"
    line = " ".join(engine.command)
    return f"{line[:COMMAND_CHARS_MAX]}{'…' if len(line) > COMMAND_CHARS_MAX else ''} ({profile})"
