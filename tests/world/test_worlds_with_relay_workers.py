"""Worlds whose gateways have relay workers, some of them killed: every promise holds; and a worker that errs is found out."""

import pytest

from forebay.app.world.run import judge
from forebay.gateway.answers import LAST_CHUNK
from forebay.gateway.carrying import Carried
from forebay.gateway.lent import LentCall
from forebay.gateway.meters import Outcome

SABOTAGE_SEEDS = range(6)


@pytest.mark.parametrize("seed", range(8))
def test_a_world_with_relay_workers_holds_its_promises(seed):
    verdict = judge(seed, workers=2)
    assert verdict.ok, verdict.broken
    assert verdict.told["complete"] > 0


@pytest.mark.parametrize("seed", [1, 4])
def test_several_gateways_with_workers_of_their_own_hold_theirs(seed):
    verdict = judge(seed, gateways=2, workers=1)
    assert verdict.ok, verdict.broken


def test_the_same_seed_is_the_same_world_with_workers_too():
    assert judge(3, workers=2).digest == judge(3, workers=2).digest != judge(3, workers=0).digest


def broken_promises():
    """Of the first worlds in which any is broken."""
    for seed in SABOTAGE_SEEDS:
        promises = {broken.promise for broken in judge(seed, workers=2).broken}
        if promises:
            return promises
    return set()


def test_a_worker_that_loses_what_came_last_is_found_out(monkeypatch):
    left = Carried._left

    def forgetful(self):
        self._rest = b""
        left(self)

    monkeypatch.setattr(Carried, "_left", forgetful)
    assert broken_promises()


def test_a_worker_that_counts_twice_is_found_out(monkeypatch):
    counts = Carried.counts
    monkeypatch.setattr(Carried, "counts", lambda self: [*(told := counts(self)), *told])
    assert "no answer lies" in broken_promises(), "a stream that goes on elsewhere goes on from what was counted"


def test_a_worker_that_does_not_tell_of_clients_that_left_is_found_out(monkeypatch):
    monkeypatch.setattr(Carried, "client_gone", Carried.end)
    assert broken_promises() & {"nothing is left inside", "permits are conserved", "the world runs", "work gets done"}


def test_a_stream_that_ends_cleanly_when_its_worker_is_killed_is_found_out(monkeypatch):
    def lost(self, why, reclaim):
        self._lent = None
        reclaim(self._connection.transport)
        self._end(Outcome.COMPLETED, self._counted_usage())
        self._connection.write(LAST_CHUNK)
        self._connection.finish(False)

    monkeypatch.setattr(LentCall, "lost", lost)
    assert "no answer lies" in broken_promises()


def test_a_stream_that_is_given_back_before_all_is_sent_is_found_out(monkeypatch):
    leave = Carried.leave

    def at_once(self):
        if not self.leaving and self.client.transport is not None:
            self.leaving = True
            self._rest = self._rest[len(self._rest) // 2 :]
            self._left()
        else:
            leave(self)

    monkeypatch.setattr(Carried, "leave", at_once)
    assert broken_promises()
