"""``forebay calibrate``: measure a live engine, fit its profile, say what was not measured, and write it for ``forebay.yaml``."""

import asyncio
import math
import random
import re
import secrets
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from forebay.adapters.clock import MeasuringClock
from forebay.app import outputs
from forebay.cli import output
from forebay.cli.stopping import stoppable
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, parse_duration_s
from forebay.engine.catalogue import PROFILES
from forebay.engine.fitting import Fitted, fit
from forebay.loadgen.calibration import BYTES_PER_TOKEN, Measured, Plan, Sweep
from forebay.loadgen.http import Target, parse_target
from forebay.spec.fields import PROFILE_NAME
from forebay.spec.problems import did_you_mean

UNITS = {
    "base_s": (1e3, "ms", "base of a step"),
    "per_sequence_s": (1e6, "µs", "per decoding sequence"),
    "per_kv_token_s": (1e9, "µs", "per 1,000 KV tokens"),
    "per_prefill_token_s": (1e6, "µs", "per prompt token"),
}

DURATIONS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
DIGITS = 7
BYTES_NOTED = 0.05
SEEDS = 2**32
TIMEOUT_S_MAX = 86_400.0


@stoppable()
def command(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="A live engine, such as http://127.0.0.1:8000. Nothing else should use it meanwhile.")
    ],
    model: Annotated[str, typer.Option(help="Model to ask for. Default: the first of /v1/models.")] = "",
    key: Annotated[str, typer.Option(help="API key.")] = "",
    sequences: Annotated[
        str, typer.Option(help="Requests at once, a list; stay within the engine's slots (vLLM: --max-num-seqs).")
    ] = "1,2,4,8,16,32",
    prompts: Annotated[str, typer.Option(help="Prompt lengths in tokens, a list; stay within its context.")] = "64,512,1500",
    output_tokens: Annotated[int, typer.Option("--output", min=32, max=4096, help="Tokens of each answer.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, max=20, help="Times each cell is measured.")] = 3,
    chunk: Annotated[int, typer.Option(min=16, max=1_000_000, help="Token budget of a step (vLLM: --max-num-batched-tokens).")] = 2048,
    timeout: Annotated[str, typer.Option(help="Patience with one cell.")] = "5m",
    base: Annotated[str, typer.Option(help="Profile that the rest (KV, slots, cold start, price) is taken from in the file written.")] = "",
    name: Annotated[str, typer.Option(help="Name of the profile written.")] = "calibrated",
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the profile as YAML, to be put under `profiles:`.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Of prompts and of the bootstrap. Default: drawn anew, as an engine may have prompts that it has seen in its cache."
        ),
    ] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write the result as JSON; - for stdout.")] = None,
) -> None:
    """Drive a live engine through a designed sweep and fit the step law: base, per sequence, per KV token, per prompt token.

    Each coefficient comes with its interval; one that the measurements can't tell is said to be so. Takes some minutes.
    """
    output.check_json(json)
    if write is not None:
        outputs.check("--write", write)
    outputs.check_apart({"--write": write, "--json": output.file_of(json)}, {})
    if base and base not in PROFILES:
        hint = did_you_mean(base, PROFILES)
        raise BadInput(f"--base: no profile is called {base!r}; allowed: {', '.join(PROFILES)}" + (f"; {hint}" if hint else ""))
    if not re.fullmatch(PROFILE_NAME.pattern, name):
        raise BadInput(f"--name: found {name!r}; allowed: {PROFILE_NAME.words}, such as {PROFILE_NAME.example}")
    plan = Plan(
        _numbers("--sequences", sequences, 1, 4096), _numbers("--prompts", prompts, 1, 1_000_000), output_tokens, repeats, _seconds(timeout)
    )
    if len(plan.sequences) * len(plan.prompts) < 3 or len(plan.prompts) < 2:
        raise BadInput(
            "--sequences and --prompts: found too few to fit a law; allowed: two prompt lengths or more, and three cells or more in all"
        )
    target = parse_target(url)
    seed = secrets.randbelow(SEEDS) if seed is None else seed
    measured = _measure(target, plan, seed, model, key)
    found = fit(measured.decode, measured.prefill, chunk, np.random.default_rng(seed))
    text = _yaml(found, measured, name, base)
    if write is not None:
        outputs.leave("--write", write, text.encode())
    if json is not None:
        output.write_json(_result(found, measured), json)
    if json != "-":
        _print(found, measured, text if write is None else f"written to {write}")


def _measure(target: Target, plan: Plan, seed: int, model: str, key: str) -> Measured:
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=output.console(stderr=True), transient=True) as bar:
        task = bar.add_task("cells", total=None)

        async def main() -> Measured:
            sweep = Sweep(target, plan, random.Random(seed), MeasuringClock(1.0).now_s, model=model, key=key)
            return await sweep.play(lambda done, of: bar.update(task, completed=done, total=of))

        return asyncio.run(main())


def _numbers(option: str, text: str, least: int, most: int) -> tuple[int, ...]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < least or found[-1] > most:
        raise BadInput(f"{option}: found {text!r}; allowed: whole numbers from {least} to {most} with commas between, such as 1,4,16")
    return tuple(found)


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise BadInput(f"--timeout: {error}") from None
    if not 0 < seconds <= TIMEOUT_S_MAX:
        raise BadInput(f"--timeout: found {text!r}, allowed: more than 0, at most {format_duration(TIMEOUT_S_MAX)}")
    return seconds


def _result(found: Fitted, measured: Measured) -> dict[str, Any]:
    return {
        "model": measured.model,
        "law": msgspec.to_builtins(found.law),
        "front_end_s": found.front_end_s,
        "spread": None if found.spread.steady else msgspec.to_builtins(found.spread),
        "coefficients": [msgspec.to_builtins(each) for each in found.coefficients],
        "held_out_error_median": found.error_median,
        "held_out_error_worst": found.error_worst,
        "coverage": msgspec.to_builtins(found.coverage),
        "not_covered": list(found.not_covered),
        "left_out": list(measured.left_out),
        "windows": len(measured.decode),
        "bytes_per_token": measured.bytes_per_token,
    }


def _yaml(found: Fitted, measured: Measured, name: str, base: str) -> str:
    law, covers = found.law, found.coverage
    lines = [
        f"# Measured by `forebay calibrate` on {measured.model}: {len(measured.decode)} windows,",
        f"# {found.error_median:.1%} off where the fit had not looked. Covers {covers.sequences[0]}-{covers.sequences[1]} sequences,",
        f"# up to {covers.kv_tokens[1]:.0f} KV tokens, prompts up to {covers.prompt_tokens[1]} tokens.",
        "profiles:",
        f"  {name}:",
    ]
    lines += (
        [f"    base: {base}"]
        if base
        else ["    # base: take KV, slots, chunk, cold start and price from a shipped profile, or add them here"]
    )
    step = {
        "base": law.base_s,
        "per_sequence": law.per_sequence_s,
        "per_kv_token": law.per_kv_token_s,
        "per_prefill_token": law.per_prefill_token_s,
    }
    unknown = [each.name.removesuffix("_s") for each in found.coefficients if not each.identified]
    lines += ["    step:"]
    for field, value in step.items():
        if field not in unknown:
            lines.append(f"      {field}: {_duration(value)}")
        elif base:
            lines.append(f"      # {field}: the base's ({_duration(value)} here, which these measurements do not tell)")
        else:
            lines.append(f"      {field}: {_duration(value)} # not told by these measurements")
    lines += [f"    not_measured: [{', '.join(unknown)}]"] if unknown else []
    lines.append(f"    front_end: {_duration(round(found.front_end_s, 6))}")
    if not found.spread.steady:
        quantiles = ", ".join(f"{name}: {value:.4f}" for name, value in msgspec.to_builtins(found.spread).items())
        lines.append(f"    spread: {{{quantiles}}}")
    loose = [each.name.removesuffix("_s") for each in found.coefficients if each.loose]
    lines += [f"    # told loosely: {', '.join(loose)}"] if loose else []
    return "\n".join(lines) + "\n"


def _duration(seconds: float) -> str:
    """Seven digits in the unit that suits them, without an exponent: within a millionth when it is read back."""
    size, unit = next(((size, unit) for size, unit in DURATIONS if seconds >= size), DURATIONS[-1])
    value = seconds / size
    places = max(0, DIGITS - 1 - math.floor(math.log10(value))) if value > 0 else 0
    text = f"{value:.{places}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{unit}"


def _spread(found: Fitted) -> str:
    spread = found.spread
    if spread.steady:
        return "No spread of single steps: they are steady, or gaps tell more of the way to here than of the engine."
    usual = f"{spread.p5:.0%} to {spread.p95:.0%} of what the law says"
    return f"Single steps take {usual} in nine cases of ten, {spread.p99:.0%} or more in one of a hundred."


def _print(found: Fitted, measured: Measured, ending: str) -> None:
    console = output.console(highlight=False)
    console.print(
        f"{measured.model}: {len(measured.decode)} windows of lockstep decoding, {len(measured.prefill)} lone prompts", markup=False
    )
    table = Table()
    for column in ("coefficient", "value", "90 % interval", "told?"):
        table.add_column(column, no_wrap=True)
    unsure = []
    for each in found.coefficients:
        scale, unit, words = UNITS[each.name]
        note = "not identified" if not each.identified else "loosely" if each.loose else "yes"
        table.add_row(words, f"{each.value * scale:.3f} {unit}", f"{each.low * scale:.3f} to {each.high * scale:.3f}", note)
        unsure += [] if each.identified else [f"Not identified, {words}: {each.because}."]
        unsure += [f"Loosely told, {words}: its interval is {(each.high - each.low) / each.value:.0%} of it."] if each.loose else []
    table.add_row("front end", f"{found.front_end_s * 1e3:.2f} ms")
    console.print(table)
    for line in unsure:
        console.print(line, markup=False)
    console.print("The front end is HTTP, tokenising and scheduling before the first token.")
    console.print(f"Step times where the fit had not looked: {found.error_median:.1%} off in the median, {found.error_worst:.1%} at worst.")
    console.print(_spread(found))
    covers = found.coverage
    console.print(
        f"Covers {covers.sequences[0]}-{covers.sequences[1]} sequences, {covers.kv_tokens[0]:.0f}-{covers.kv_tokens[1]:.0f} KV tokens."
    )
    if abs(measured.bytes_per_token / BYTES_PER_TOKEN - 1) > BYTES_NOTED:
        console.print(f"Its tokens are {measured.bytes_per_token:.2f} bytes of our prompts: say so to `forebay replay --bytes-per-token`.")
    console.print("Not covered: " + "; ".join(found.not_covered) + ".")
    for cell in measured.left_out:
        console.print(f"left out: {cell}")
    console.print()
    # Whole lines, however wide the terminal: a copy of them is a file.
    console.print(ending, markup=False, soft_wrap=True)
