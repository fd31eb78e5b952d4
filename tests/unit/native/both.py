"""The two ways in which a stream is relayed, side by side."""

import pytest

from forebay.native import chosen, pure

BUILT, SAID = chosen()
needs_built = pytest.mark.skipif(BUILT is pure, reason=f"streams are relayed in {SAID}; build C with `python -m forebay.native.build`")
BOTH = [pytest.param(pure, id="python"), pytest.param(BUILT, id="c", marks=needs_built)]

BEFORE = b'data: {"choices":[{"index":0,"delta":{"content":"'
MID = b'"},"logprobs":null,"finish_reason":null,"token_ids":['
AFTER = b"]}]}\n\n\r\n"
END = b'"},"logprobs":null,"finish_reason":null}]}\n\n\r\n'
PLAIN_AFTER = b'"},"logprobs":null,"finish_reason":null}]}\n\n\r\n'


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def told(text, token, before=BEFORE, mid=MID, after=AFTER):
    """A read with one event that tells its token."""
    return chunk(before + text + mid + token + after[:-2])


def plain(text, before=BEFORE, after=PLAIN_AFTER):
    """A read with one event that tells none."""
    return chunk(before + text + after[:-2])


class Stream:
    """A `Takes` of either module with its shape, and all that it has done."""

    def __init__(self, module, shape, report_every=32, fails_at=None):
        self.takes = module.Takes()
        self.written, self.reports, self.ids = [], [], bytearray()
        self._every, self._fails_at = report_every, fails_at
        self.takes._write, self.takes._report = self._write, self._report
        self.takes.report_at = report_every
        if len(shape) == 2:
            self.takes._shape_plain(*shape)
            self.take = self.takes.take_plain
        else:
            self.takes._shape_told(*shape, self.ids)
            self.take = self.takes.take_told

    def _write(self, data):
        self.written.append(data)
        if len(self.written) == self._fails_at:
            raise ConnectionResetError("the client is gone")

    def _report(self):
        self.reports.append(self.takes.events)
        if len(self.reports) == self._fails_at:
            raise KeyError("no such ticket")
        self.takes.report_at = self.takes.events + self._every

    def tried(self, read):
        try:
            return self.take(read)
        except Exception as error:
            return repr(error)

    def done(self, reads):
        """What each read was answered, and all that is left of it."""
        answers = [self.tried(read) for read in reads]
        takes = self.takes
        counts = takes.events, takes.wire_bytes, takes.report_at, takes._text_start
        return answers, self.written, self.reports, bytes(self.ids), counts
