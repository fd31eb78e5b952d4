"""What the controller's leases make of gateways that go silent and come back."""

from forebay.controller.gateways import GatewayBook
from forebay.controller.leasing import Leasing
from forebay.domain.roster import Hello
from forebay.testing.store import MemoryStore

LEASE_S = 15.0


def test_a_gateway_that_was_silent_for_a_lease_and_speaks_again_is_there_again_with_nothing():
    """Its process was stopped and its connection stood, so it never says hello again: it was left without replicas for ever."""
    book = GatewayBook(LEASE_S)
    leasing = Leasing(MemoryStore(), book, 2, 1.0, "key", 0.0)
    for name in ("a", "b"):
        leasing.joined(Hello(name, f"http://{name}", ("chat-1",) if name == "b" else ()), 0.0)
    now_s = 0.0
    while leasing.leases.members == {"a", "b"}:
        now_s += 1.0
        leasing.heard("a", now_s)
        leasing.leases.heard("a", now_s)
        leasing.look([], frozenset(), now_s)
    assert LEASE_S < now_s < LEASE_S + 3
    assert leasing.leases.members == {"a"}
    leasing.heard("b", now_s + 1)
    assert leasing.leases.members == {"a", "b"}
    assert leasing.leases.may_use("chat-1") == ""
    leasing.left("b")
    leasing.heard("b", now_s + 2)
    assert leasing.leases.members == {"a"}, "it said goodbye"
