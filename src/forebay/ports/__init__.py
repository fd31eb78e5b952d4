"""What the shells need of the world, as Protocols. Adapters and the parts in `testing` implement them."""

from forebay.ports.clock import Clock, Ids, TimerHandle
from forebay.ports.events import EventSink
from forebay.ports.fleet import Fleet
from forebay.ports.signals import EngineSignals, SignalSource
from forebay.ports.store import Store
from forebay.ports.upstream import End, Exchange, ResponseHead, ResponseSink, Upstream

__all__ = [
    "Clock",
    "End",
    "EngineSignals",
    "EventSink",
    "Exchange",
    "Fleet",
    "Ids",
    "ResponseHead",
    "ResponseSink",
    "SignalSource",
    "Store",
    "TimerHandle",
    "Upstream",
]
