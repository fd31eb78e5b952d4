"""What the policy gets to see of the engines' own words."""

import pytest

from forebay.controller.gateways import GatewayBook
from forebay.controller.observing import PoolFacts, observation
from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.domain.signal import Known, Unknown
from forebay.ports import EngineSignals


@pytest.mark.parametrize(
    ("waiting", "deferred", "wanted"),
    [
        (Known(5.0, 0.0), Known(3.0, 0.0), Known(2.0, 0.0)),
        (Known(5.0, 0.0), Known(6.0, 0.0), Known(0.0, 0.0)),
        (Known(5.0, 0.0), Unknown("missing"), Known(5.0, 0.0)),
        (Unknown("timeout"), Known(3.0, 0.0), Unknown("timeout")),
    ],
)
def test_only_what_waits_for_a_place_is_a_reason_for_more(waiting, deferred, wanted):
    """A request that waits for a LoRA adapter's turn or a KV transfer would wait on more replicas as well."""
    views = (ReplicaView("chat-0", "chat", ReplicaState.READY, 0.0, 0.0),)
    facts = PoolFacts("chat", 1, b"", None, Unknown(), 10.0, ())
    seen = observation(facts, views, {"chat-0": EngineSignals(waiting=waiting, deferred=deferred)}, GatewayBook(10.0), 1.0, 1e9)
    assert seen.replicas[0].waiting == wanted
