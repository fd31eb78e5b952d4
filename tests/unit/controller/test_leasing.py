"""What the controller's leases make of gateways that go silent and come back."""

from forebay.controller.gateways import GatewayBook
from forebay.controller.leasing import Leasing
from forebay.domain.roster import Capacity, Hello, LaneLoad, PeerPool, PoolLoad, Roster, RosterPool, RosterReplica, Snapshot
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


def test_gateways_are_told_what_others_have_in_routing_and_what_they_have_ejected():
    """Those were told as if they served, so that requests were forwarded to a gateway that had nothing to send them to."""
    book = GatewayBook(LEASE_S)
    leasing = Leasing(MemoryStore(), book, 2, 1.0, "key", 0.0)
    for name in ("a", "b"):
        leasing.joined(Hello(name, f"http://{name}"), 0.0)
        leasing.heard(name, 0.0)
        book.hello(name, 0.0)
    capacity = Capacity(1000, 8, 1000, 1000.0, 50.0, 1000)
    replicas = tuple(RosterReplica(f"r{number}", f"http://r{number}", capacity, "ab"[number > 0]) for number in range(4))
    roster = Roster(1, 1, LEASE_S, (RosterPool("chat", replicas),), leased=True)

    def says(name, *ejected):
        load = PoolLoad("chat", (LaneLoad("interactive", False, 1, 100, 0.0),), (), (), ejected)
        snapshot = Snapshot(name, 1.0, 1, 1, (load,))
        book.snapshot(snapshot, 1.0)
        return leasing.answer(snapshot, roster, 1.0).peers[0].pools

    assert says("a", "r0") == (PeerPool("chat", 3, 0.0, 150.0, 0),), "b has not said anything yet"
    assert says("b", "r1", "r2", "left") == (PeerPool("chat", 0, 0.0, 0.0, 1),)
    assert says("a") == (PeerPool("chat", 1, 2.0, 50.0, 2),), "what waits there waits for what is in routing"
