"""The controller's process: control loop, roster channel, admin API, and the fleet's engines as its wards.

SIGTERM replaces a controller: it leaves, the engines run on, and the next one takes them over. Only the supervisor's own
signal ends the engines too.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from forebay.app import process, wiring
from forebay.app.children import STOP_ENGINES
from forebay.app.files import saved_spec
from forebay.app.reattaching import Reattaching


async def _main(arguments: argparse.Namespace) -> int:
    spec = saved_spec(arguments.spec)
    stop, leave = process.stop_event(STOP_ENGINES), process.stop_event(signal.SIGTERM, signal.SIGINT)
    process.end_with_the_lifeline()
    clock = process.world_clock(arguments)
    system = await wiring.controller(spec, arguments.state, clock, process.lifeline_fd())
    try:
        await system.channel.start_on(process.inherited(arguments.channel_fd))
        await system.admin.start_on(process.inherited(arguments.admin_fd))
        control = asyncio.create_task(system.controller.run(system.channel.publish), name="control loop")
        reattaching = Reattaching(arguments.config, system.take, arguments.spec, system.controller)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reattaching.ask)
        configuration = asyncio.create_task(reattaching.run(), name="configuration")
        keys = asyncio.create_task(system.keys.watch(system.controller.tell, system.attached.look_again), name="engines' keys")
        told = [asyncio.create_task(event.wait(), name="signal") for event in (stop, leave)]
        await asyncio.wait({control, *told}, return_when=asyncio.FIRST_COMPLETED)
        if control.done():
            control.result()
        for task in (control, configuration, keys, *told):
            task.cancel()
        await asyncio.gather(control, configuration, keys, *told, return_exceptions=True)
        if stop.is_set():
            await system.controller.stop_all()
        system.controller.save()
    finally:
        await system.close()
    return 0


def main() -> int:
    """Parse arguments and run; the exit code."""
    parser = process.parser("controller", ("channel", "admin"))
    parser.add_argument("--config", type=Path, required=True, help="The file that --spec was made of: attached engines follow it")
    arguments = parser.parse_args()
    return process.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
