"""Somebody was heard for long enough to have been asked, without a gap: half a lease, of which no fifth is silent."""

from forebay.admission.witness import WITNESS_FRACTION, WITNESS_GAP_FRACTION, Witness

LEASE_S = 15.0
LONG_S, GAP_S = WITNESS_FRACTION * LEASE_S, WITNESS_GAP_FRACTION * LEASE_S


def heard(begin_s, end_s, step_s=1.0, witness=None):
    witness = witness or Witness(LEASE_S)
    while begin_s <= end_s:
        witness.heard(begin_s)
        begin_s += step_s
    return witness


def test_nobody_is_no_witness():
    assert not Witness(LEASE_S).stands(0.0)
    assert not Witness(LEASE_S).stands(1000.0)


def test_it_takes_half_a_lease_and_the_last_word_is_fresh():
    witness = heard(100.0, 107.0)
    assert not witness.stands(107.0)
    assert witness.stands(100.0 + LONG_S)
    assert witness.stands(107.0 + GAP_S)
    assert not witness.stands(107.1 + GAP_S)


def test_after_a_gap_it_begins_anew():
    witness = heard(100.0, 110.0)
    witness.heard(110.5 + GAP_S)
    assert not witness.stands(110.5 + GAP_S)
    heard(111.0 + GAP_S, 120.0 + GAP_S, witness=witness)
    assert witness.stands(120.0 + GAP_S)
