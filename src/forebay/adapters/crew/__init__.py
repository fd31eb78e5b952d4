"""Relay workers as processes: started, watched and started again by the owner of the queue, each on a socket pair of its own."""

from forebay.adapters.crew.helper import serve
from forebay.adapters.crew.processes import ProcessCrew, available

__all__ = ["ProcessCrew", "available", "serve"]
