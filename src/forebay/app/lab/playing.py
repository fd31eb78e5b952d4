"""One policy in one world, played in whatever process asks: the trace is opened anew and streamed."""

import time

from forebay.app.lab.world import Prepared, Tell, opened
from forebay.domain.scaling import Policy
from forebay.simulation.fast import FastFleet
from forebay.simulation.lab import FleetFactory, play
from forebay.simulation.values import RunResult, Scenario


def play_one(
    ready: Prepared, world: Scenario, policy: Policy, name: str, seed: int, tell: Tell, fleet: FleetFactory = FastFleet
) -> RunResult:
    """``policy`` in ``world``, over the arrivals of ``ready``; what ``tell`` or ``fleet`` raise ends it."""
    request = ready.request
    return play(
        world,
        policy,
        opened(request, seed, request.trace.start_s, request.trace.duration_s).source(),
        name=name,
        fleet=fleet,
        cpu_clock=time.process_time,
        progress=tell,
        past=ready.past,
        pool=request.pool.name,
    )
