"""What the shells need of the world, as Protocols. Adapters and the parts in `testing` implement them."""

from forebay.ports.clock import Clock, EventLoopClock, Ids, TimerHandle
from forebay.ports.events import EventSink
from forebay.ports.fleet import Fleet
from forebay.ports.journal import Journal, NoJournal
from forebay.ports.signals import EngineSignals, SignalSource
from forebay.ports.store import DEMAND_BUCKETS_MAX, DecisionRecord, DemandBucket, Store
from forebay.ports.upstream import End, Exchange, FetchFailed, ResponseHead, ResponseSink, Upstream, fetch, get_request

__all__ = [
    "DEMAND_BUCKETS_MAX",
    "Clock",
    "DecisionRecord",
    "DemandBucket",
    "End",
    "EngineSignals",
    "EventLoopClock",
    "EventSink",
    "Exchange",
    "FetchFailed",
    "Fleet",
    "Ids",
    "Journal",
    "NoJournal",
    "ResponseHead",
    "ResponseSink",
    "SignalSource",
    "Store",
    "TimerHandle",
    "Upstream",
    "fetch",
    "get_request",
]
