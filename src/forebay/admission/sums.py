"""Whether what a replica has added up is the sum of its permits: asked by tests and by worlds, each second."""

from forebay.admission.budget import Replica


def check_sums(replica: Replica) -> None:
    """Raises AssertionError unless the sums are those of the permits and no slot was given twice."""
    permits = replica.permits.values()
    assert all(ticket.replica is replica and ticket.queued_seq == 0 for ticket in permits), f"{replica.id}: a permit is also elsewhere"
    assert all(ticket.expected >= ticket.emitted for ticket in permits), f"{replica.id}: a permit has less than nothing left"
    assert replica.sequences == sum(ticket.sequences for ticket in permits), f"{replica.id}: slots leaked"
    replica.shared.check(replica.permits)
    beside_tokens = replica.shared.beside_tokens
    assert replica.held_tokens == beside_tokens + sum(ticket.held_tokens() for ticket in permits), f"{replica.id}: KV tokens leaked"
    worst_tokens = beside_tokens + sum(ticket.prompt - ticket.beside + ticket.expected for ticket in permits)
    assert replica.worst_tokens == worst_tokens, f"{replica.id}: KV estimates leaked"
    spared_tokens = sum(ticket.beside for ticket in permits) - beside_tokens
    assert replica.spared_tokens == spared_tokens >= 0, f"{replica.id}: what is spared by sharing leaked"
    assert replica.prefill_tokens == sum(ticket.outstanding for ticket in permits), f"{replica.id}: prefill tokens leaked"
    assert replica.preemptible == sum(ticket.lane.preemptible for ticket in permits), f"{replica.id}: preemptible permits leaked"
    assert replica.sequences <= replica.sequences_allowed, f"{replica.id}: more sequences than slots"
    assert replica.listed or permits, f"{replica.id}: left the roster, has no permit, and is still kept"
    assert all(ticket.replica is replica for ticket in replica.young), f"{replica.id}: one that left is thought to be young"
