"""``python -m forebay.emulator``: the emulator's own command line, on argparse, since each replica of a fleet starts one."""

import argparse
import contextlib
import os
import sys

from forebay.domain.errors import ForebayError
from forebay.emulator.behaviour import Behaviour, adapter_names
from forebay.emulator.process import DEFAULT_PROFILE, Options, run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m forebay.emulator", description="Emulated vLLM engines, one port each, no GPU.")
    parser.add_argument("--profile", default="", help=f"a shipped profile (default: {DEFAULT_PROFILE})")
    parser.add_argument("--profile-json", default="", help="a whole profile as JSON")
    parser.add_argument("--model", default="", help="the served name (default: the profile's model)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="of the first engine, the others follow; 0: free ones")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--speed", type=float, default=1.0, help="world seconds per real second")
    parser.add_argument("--cold", action="store_true", help="pass through provision, weights and init")
    parser.add_argument("--warm", action="store_true", help="pass through weights and init")
    parser.add_argument("--report-stages", action="store_true", help="listen at once and answer /health with the stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ready-file", default="", metavar="PATH", help='write {"urls", "pid"} here once all listen')
    parser.add_argument("--shutdown-timeout", type=float, default=0.0, metavar="S", help="world seconds that SIGTERM lets requests run on")
    parser.add_argument("--max-model-len", type=int, default=None, metavar="TOKENS")
    parser.add_argument("--max-num-queued-reqs", type=int, default=None, metavar="N")
    parser.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME", help="adapters that are served beside the model")
    parser.add_argument("--api-key", nargs="+", default=[], metavar="KEY", help="what requests below /v1 must show, any one of them")
    parser.add_argument("--start-jitter", type=float, default=0.0, metavar="FRACTION", help="of each stage's time, from the seed")
    parser.add_argument(
        "--output-tokens", type=float, default=Behaviour().output_tokens_median, metavar="N", help="median, without max_tokens"
    )
    parser.add_argument("--fault", action="append", default=[], metavar="JSON", help="a fault from the start; may be repeated")
    return parser


def _say(line: str) -> None:
    """To standard output. A log on a full disk is no reason not to serve, nor (what a buffer would be at the end) to fail."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


def main(arguments: list[str] | None = None) -> int:
    """Parse, serve, and return the exit code."""
    given = _parser().parse_args(arguments)
    behaviour = Behaviour(
        max_queued_requests=given.max_num_queued_reqs,
        start_jitter=given.start_jitter,
        output_tokens_median=given.output_tokens,
        api_keys=tuple(given.api_key),
        adapters=adapter_names(given.lora_modules),
    )
    options = Options(
        profile=given.profile,
        profile_json=given.profile_json,
        model=given.model,
        host=given.host,
        port=given.port,
        engines=given.engines,
        speed=given.speed,
        cold=given.cold,
        warm=given.warm,
        report_stages=given.report_stages,
        seed=given.seed,
        ready_file=given.ready_file,
        shutdown_timeout_s=given.shutdown_timeout,
        max_model_len=given.max_model_len,
        faults=tuple(given.fault),
        behaviour=behaviour,
    )
    try:
        return run(options, _say)
    except ForebayError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
