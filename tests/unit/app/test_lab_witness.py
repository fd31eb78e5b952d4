"""Whoever asks why at a time gets the decision that was in force then."""

from forebay.app.lab.witness import Witness
from forebay.domain.scaling import Decision, Observation


class Counting:
    def decide(self, observation):
        return Decision(observation.pool, observation.now_s, int(observation.now_s), "count", (), memory=b"kept")


def test_the_decision_in_force_is_the_last_one_until_then_without_its_memory():
    witness = Witness(Counting(), [50.0, 0.0, 15.0, 14.9, 50.0])
    for now_s in (0.0, 15.0, 30.0):
        assert witness.decide(Observation("chat", now_s, now_s, 1, ())).memory == b"kept"
    assert [(moment_s, decision.replicas, decision.memory) for moment_s, decision in witness.found()] == [
        (0.0, 0, b""),
        (14.9, 0, b""),
        (15.0, 15, b""),
        (50.0, 30, b""),
    ]


def test_nobody_who_asked_nothing_is_told_anything():
    witness = Witness(Counting(), [])
    witness.decide(Observation("chat", 0.0, 0.0, 1, ()))
    assert witness.found() == ()
