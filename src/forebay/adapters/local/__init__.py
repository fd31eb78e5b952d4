"""The fleet of one machine: engines as child processes under a shim, and engines that already run somewhere."""

from forebay.adapters.local.attached import AttachedFleet
from forebay.adapters.local.composite import CompositeFleet
from forebay.adapters.local.contexts import Contexts
from forebay.adapters.local.fleet import FleetTaken, LocalFleet
from forebay.adapters.local.keeper import Pace

__all__ = ["AttachedFleet", "CompositeFleet", "Contexts", "FleetTaken", "LocalFleet", "Pace"]
