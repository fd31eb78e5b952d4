"""Packets between the owner of the queue and its workers: none is too long, and what was told in parts is the whole."""

import random

import pytest

from forebay.gateway.emitted import Emitted
from forebay.gateway.handing import PIECE_BYTES_MAX, Back, Count, Piece, decode_news, encode, reports
from forebay.ports.crew import PACKET_BYTES_MAX


def test_reports_tell_all_in_order_and_none_is_too_long():
    chance = random.Random(1)
    counts = [
        Count(
            number,
            number,
            number,
            b"7," * chance.choice([0, 5, 4000, PIECE_BYTES_MAX // 2]),
            0,
            b"x" * chance.choice([0, 0, PIECE_BYTES_MAX]),
        )
        for number in range(300)
    ]
    packets = reports(counts)
    assert all(len(packet) <= PACKET_BYTES_MAX for packet in packets)
    assert [count for packet in packets for count in decode_news(packet).counts] == counts
    assert len(packets) < 200
    assert reports([]) == []


def test_the_longest_of_each_kind_fits():
    whole = b"x" * PIECE_BYTES_MAX
    longest = Count(1 << 62, 1 << 62, 1 << 62, whole, 1 << 62, whole)
    assert len(encode(Back(longest, True, "it is reasoning", b"7," * 2048))) <= PACKET_BYTES_MAX
    assert len(encode(Back(Count(1), last=whole))) <= PACKET_BYTES_MAX
    assert len(encode(Piece(1 << 62, True, whole))) <= PACKET_BYTES_MAX


@pytest.mark.parametrize("seed", range(20))
def test_a_log_that_is_told_by_differences_is_the_log(seed):
    """Tokens with text, without, and such as are reasoning, told in any batches: the owner's log is the worker's."""
    chance = random.Random(seed)
    alone, owner, worker = Emitted(), Emitted(), Emitted()
    for log in (alone, owner):
        log.add([1], "a")
        log.add([2], "")
    worker.pending += owner.pending
    known = len(worker.pending)
    for number in range(3, 60):
        text = chance.choice(["x", "x", ""])
        for log in (alone, worker):
            log.add([number], text)
        if chance.random() < 0.3:
            every = bytes(worker.ids + worker.pending)
            owner.took(every[known:], len(worker.pending))
            worker.ids.clear()
            known = len(worker.pending)
            assert (owner.ids, owner.pending) == (alone.ids, alone.pending)
            assert owner.tokens == alone.tokens
