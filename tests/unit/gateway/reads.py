"""Reads of an engine's chunked answer, handed on as a connection does it."""


def taking(data):
    """``data`` as a connection calls it: a whole read is first offered to what ``data`` last named for that."""
    taker = None

    def read(wire, body, whole, last):
        nonlocal taker
        if taker is None or not taker(wire):
            taker = data(wire, body, whole, last)
            if not whole:
                taker = None

    return read
