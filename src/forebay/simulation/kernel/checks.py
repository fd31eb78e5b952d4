"""The invariants of the fast fleet, asserted from its arrays: nobody lost, nobody in two places, sums that are those of their parts."""

from collections.abc import Iterator

from forebay.simulation.kernel.layout import DECODING, FREE, FRONT, PREFILLING, QUEUED, WAITING, Fleet


def _chain(fleet: Fleet, first: int) -> Iterator[int]:
    who = int(first)
    while who >= 0:
        yield who
        who = int(fleet.requests["next"][who])


def check(fleet: Fleet) -> None:
    """Raises AssertionError where a record is lost, doubled, or miscounted."""
    world = fleet.world[0]
    places = {QUEUED: [who for line in fleet.lines for who in _chain(fleet, line["head"])], FRONT: [*_chain(fleet, world["front_head"])]}
    running = list(places[FRONT])
    for row in range(int(world["rows"])):
        if fleet.replicas["live"][row]:
            running += _check_replica(fleet, row)
    everyone = places[QUEUED] + running
    free = [*_chain(fleet, world["free_request"])]
    assert sorted(everyone + free) == list(range(len(fleet.requests))), "a record is lost or doubled"
    for state, found in {**places, FREE: free}.items():
        assert all(fleet.requests["state"][who] == state for who in found), "a request is where it is not said to be"
    assert world["waiting"] == len(places[QUEUED]) <= world["queued_max"], "the lanes are miscounted"
    assert world["in_flight"] == len(running), "what is in flight is miscounted"
    tiers = fleet.promises
    ended = tiers["completed"] + tiers["shed"] + tiers["cut"]
    assert int((tiers["arrived"] - ended).sum()) == len(everyone), "requests come and end, and are here meanwhile"
    for line in range(len(fleet.lines)):
        seqs = [int(fleet.requests["seq"][who]) for who in _chain(fleet, fleet.lines[line]["head"])]
        assert seqs == sorted(seqs), "a line is out of order"


def _check_replica(fleet: Fleet, row: int) -> list[int]:
    """Returns who is in its engine."""
    world, replica = fleet.world[0], fleet.replicas[row]
    decoding: list[int] = fleet.slots["who"][row][: int(replica["decoding"])].tolist()
    prefilling = [*_chain(fleet, replica["prefill_head"])]
    waiting = [*_chain(fleet, replica["waiting_head"])]
    requests = fleet.requests
    for state, found, count in ((DECODING, decoding, "decoding"), (PREFILLING, prefilling, "prefilling"), (WAITING, waiting, "waiting")):
        assert len(found) == replica[count], f"row {row}: {count} miscounted"
        assert all(requests["state"][who] == state and requests["row"][who] == row for who in found), (
            f"row {row}: a {count} one is elsewhere"
        )
    assert len(decoding) + len(prefilling) <= world["sequences_max"], f"row {row}: more sequences than slots"
    front = [who for who in _chain(fleet, world["front_head"]) if requests["row"][who] == row]
    permits = decoding + prefilling + waiting + front
    assert replica["streams"] == len(permits), f"row {row}: permits leaked"
    assert not world["gateway_queues"] or len(permits) <= world["sequences_budget"], f"row {row}: more permits than slots"
    totals = requests["prompt"][permits].astype(int) + requests["output"][permits]
    assert replica["worst_tokens"] == totals.sum(), f"row {row}: KV estimates leaked"
    assert replica["outstanding"] == requests["outstanding"][permits].sum(), f"row {row}: prefill tokens leaked"
    block, steps = int(world["block"]), int(replica["steps"])
    held = [int(requests["base"][who]) + steps for who in decoding]
    assert replica["kv"] == sum(held), f"row {row}: KV tokens miscounted"
    blocks = sum(kv // block + 1 for kv in held) + sum(-(-int(requests["target"][who]) // block) for who in prefilling)
    assert replica["blocks_free"] >= 0, f"row {row}: more blocks taken than there are"
    assert blocks + replica["blocks_free"] == world["blocks"], f"row {row}: blocks leak"
    assert replica["run_steps"] or not (decoding or prefilling or waiting), f"row {row}: an idle engine has work"
    return decoding + prefilling + waiting
