"""The controller's process: control loop, roster channel, admin API, and the fleet's engines as its wards."""

import argparse
import asyncio
import sys

from forebay.app import process, wiring
from forebay.app.files import saved_spec


async def _main(arguments: argparse.Namespace) -> int:
    spec = saved_spec(arguments.spec)
    stop = process.stop_event()
    process.end_with_the_lifeline()
    clock = process.world_clock(arguments)
    system = await wiring.controller(spec, arguments.state, clock, process.lifeline_fd())
    try:
        await system.channel.start_on(process.inherited(arguments.channel_fd))
        await system.admin.start_on(process.inherited(arguments.admin_fd))
        control = asyncio.create_task(system.controller.run(system.channel.publish), name="control loop")
        stopping = asyncio.create_task(stop.wait(), name="stop signal")
        await asyncio.wait({control, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if control.done():
            control.result()
        control.cancel()
        await asyncio.gather(control, return_exceptions=True)
        await system.controller.stop_all()
    finally:
        await system.close()
    return 0


def main() -> int:
    """Parse arguments and run; the exit code."""
    arguments = process.parser("controller", ("channel", "admin")).parse_args()
    return process.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
