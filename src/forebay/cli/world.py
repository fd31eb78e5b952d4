"""`forebay world`: the live system in simulated worlds, faults from a seed."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from forebay.cli import output

if TYPE_CHECKING:
    from forebay.app.world.run import Verdict


def command(
    seeds: Annotated[int, typer.Option(help="How many worlds.", min=1, max=1_000_000)] = 20,
    first: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    seed: Annotated[int | None, typer.Option(help="Run only this seed, and show its log.", min=0)] = None,
    gateways: Annotated[int, typer.Option(help="Gateways that share the replicas, crash, and are cut off.", min=1, max=8)] = 1,
    workers: Annotated[
        int | None, typer.Option(help="Relay workers behind each gateway; default: some worlds have two.", min=0, max=8)
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=256)] = 2,
    json: Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write the verdicts as JSON to PATH (- for stdout).")] = None,
) -> None:
    """Run the unmodified gateway, controller and emulated engines in virtual time, with crashes, hangs, lies and cuts.

    Exit code 1 if any promise was broken: no answer lies, no permit leaks, no drain cuts a stream, Unknown never lowers.
    """
    from forebay.app.world.run import judge  # the whole system: nothing that another verb should wait for

    output.check_json(json)
    console = output.console(stderr=True)
    if seed is not None:
        verdicts = [judge(seed, gateways, workers)]
        for line in verdicts[0].log:
            console.print(line, highlight=False, markup=False)
    else:
        verdicts = _judge_all(range(first, first + seeds), gateways, workers, jobs, console)
    failed = [verdict for verdict in verdicts if not verdict.ok]
    for verdict in failed[:10]:
        for broken in verdict.broken[:5]:
            console.print(f"seed {verdict.seed} at {broken.at_s:.3f} s: {broken.promise}: {broken.detail}", markup=False, highlight=False)
        more = (f" --gateways {gateways}" if gateways > 1 else "") + (f" --workers {workers}" if workers is not None else "")
        console.print(f"  again: forebay world --seed {verdict.seed}{more}", markup=False)
    if json is not None:
        output.write_json(verdicts, json)
    console.print(summary(verdicts))
    if failed:
        raise typer.Exit(1)


def summary(verdicts: "Sequence[Verdict]") -> str:
    """One line: how many worlds, what became of their requests, and how many worlds broke a promise."""

    def told(kind: str) -> int:
        return sum(verdict.told.get(kind, 0) for verdict in verdicts)

    requests = sum(verdict.requests for verdict in verdicts)
    ends = [
        f"{told('complete')} complete",
        f"{told('error_status')} refused",
        f"{told('error_event')} told of an error",
        f"{told('gone')} clients gone",
    ]
    if told("lied"):
        ends.append(f"{told('lied')} lied to")
    failed = sum(not verdict.ok for verdict in verdicts)
    return f"{_worlds(len(verdicts))}, {requests} requests: {', '.join(ends)}; {_worlds(failed)} with a broken promise"


def _worlds(count: int) -> str:
    return f"{count} world" if count == 1 else f"{count} worlds"


def _judge_all(seeds: range, gateways: int, workers: int | None, jobs: int, console: Console) -> "list[Verdict]":
    from forebay.app.world.run import judge

    with Progress(console=console, transient=True) as progress, ProcessPoolExecutor(min(jobs, len(seeds))) as pool:
        task = progress.add_task("worlds", total=len(seeds))
        verdicts = []
        for verdict in pool.map(partial(judge, gateways=gateways, workers=workers), seeds):
            verdicts.append(verdict)
            progress.advance(task)
        return verdicts
