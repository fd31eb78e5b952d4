"""`forebay emulate`: engines without a GPU, one port each, that behave by a profile."""

from pathlib import Path
from typing import Annotated

import typer

from forebay.emulator.behaviour import Behaviour, adapter_names
from forebay.emulator.process import DEFAULT_PROFILE, Options, run


def command(
    profile: Annotated[
        str, typer.Option(help=f"A shipped profile (`forebay profile list`). Default: {DEFAULT_PROFILE}.", show_default=False)
    ] = "",
    profile_json: Annotated[str, typer.Option(help="A whole profile as JSON, instead of a name.", show_default=False)] = "",
    model: Annotated[str, typer.Option(help="The served name. Default: the profile's model.", show_default=False)] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the first engine; the others follow. 0: free ones.", min=0, max=65535)] = 0,
    engines: Annotated[int, typer.Option(help="How many engines to serve from this process.", min=1)] = 1,
    speed: Annotated[float, typer.Option(help="World seconds per real second.")] = 1.0,
    cold: Annotated[bool, typer.Option("--cold", help="Pass through provision, weights and init.")] = False,
    warm: Annotated[bool, typer.Option("--warm", help="Pass through weights and init.")] = False,
    report_stages: Annotated[bool, typer.Option("--report-stages", help="Listen at once and answer /health with the stage.")] = False,
    seed: Annotated[int, typer.Option(help="Decides answer lengths, ids and jitter.")] = 0,
    ready_file: Annotated[Path | None, typer.Option(help="Write {urls, pid} here as JSON once all engines listen.")] = None,
    shutdown_timeout: Annotated[float, typer.Option(help="World seconds that SIGTERM lets requests run on.", min=0)] = 0.0,
    max_model_len: Annotated[int | None, typer.Option(help="Context limit in tokens. Default: the profile's.", min=2)] = None,
    max_num_queued_reqs: Annotated[int | None, typer.Option(help="Refuse requests beyond this many running and waiting.", min=0)] = None,
    lora_modules: Annotated[list[str] | None, typer.Option(help="An adapter that is served beside the model; may be repeated.")] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help="A key that requests below /v1 must show, as with vLLM; may be repeated: any one of them does.")
    ] = None,
    start_jitter: Annotated[float, typer.Option(help="Fraction by which each stage's time varies.", min=0, max=0.99)] = 0.0,
    output_tokens: Annotated[
        float, typer.Option(help="Median length of answers without max_tokens.", min=1)
    ] = Behaviour().output_tokens_median,
    fault: Annotated[list[str] | None, typer.Option(help='A fault from the start, as JSON: \'{"kind": "slow", "factor": 3}\'.')] = None,
) -> None:
    """Serve emulated vLLM engines: no GPU, vLLM's HTTP API and metrics, a profile's physics.

    Prints one URL per engine. Faults are switched on and off with POST /emulator/fault.
    """
    behaviour = Behaviour(
        max_queued_requests=max_num_queued_reqs,
        start_jitter=start_jitter,
        output_tokens_median=output_tokens,
        api_keys=tuple(api_key or ()),
        adapters=adapter_names(lora_modules or ()),
    )
    options = Options(
        profile=profile,
        profile_json=profile_json,
        model=model,
        host=host,
        port=port,
        engines=engines,
        speed=speed,
        cold=cold,
        warm=warm,
        report_stages=report_stages,
        seed=seed,
        ready_file="" if ready_file is None else str(ready_file),
        shutdown_timeout_s=shutdown_timeout,
        max_model_len=max_model_len,
        faults=tuple(fault or ()),
        behaviour=behaviour,
    )
    raise typer.Exit(run(options, typer.echo))
