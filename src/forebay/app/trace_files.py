"""Trace files as blocks of whole lines, and which format they are in; plain or gzip, whatever their name."""

import gzip
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import IO, cast

from forebay.demand import named, prometheus, series, trace
from forebay.domain.errors import BadInput
from forebay.loadgen.files import GZIP_MAGIC, HEAD_BYTES, LINE_CHARS_MAX, check_text, lines
from forebay.spec.problems import did_you_mean

FORMATS = (*trace.FORMATS, *trace.RATE_FORMATS)
NAMED = ("csv", "jsonl", "ledger")
"""Formats of one's own files, whose columns may have names of their own."""
BLOCK_BYTES = 1 << 22
HEAD_LINES = 50
SERVEGEN_LENGTHS = "servegen-lengths"
_RATE_SIGNS = (("azure2024-rate", "minute,rpm"), ("o365", "minute,"), ("servegen", "t_s,rate_rps"))
_LENGTHS_SIGN = "client,t_s,requests"


def blocks(path: Path, tell: Callable[[float], None] | None = None) -> Iterator[bytes]:
    """The bytes of ``path`` in blocks that end with a whole line; raises BadInput where it can't be read.

    ``tell`` is told what fraction of the file has been read.
    """
    with ExitStack() as stack:
        try:
            binary = stack.enter_context(path.open("rb"))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise BadInput(f"trace {str(path)!r}: {why}; name a file that can be read") from None
        try:
            packed = binary.peek(2)[:2] == GZIP_MAGIC
            raw = stack.enter_context(gzip.open(binary)) if packed else binary
            check_text(raw.peek(HEAD_BYTES)[:HEAD_BYTES], str(path))
            size = max(1, path.stat().st_size)
            for block in _whole_lines(cast("IO[bytes]", raw), path):
                if tell is not None:
                    tell(min(1.0, binary.tell() / size))
                yield block
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise BadInput(f"trace {str(path)!r}: broken gzip data ({error})") from None
        except OSError as error:
            raise BadInput(f"trace {str(path)!r}: {error.strerror or error}") from None


def _whole_lines(raw: IO[bytes], path: Path) -> Iterator[bytes]:
    rest = b""
    while read := raw.read(BLOCK_BYTES):
        block, newline, after = read.rpartition(b"\n")
        if newline:
            yield rest + block + newline
            rest = after
        elif len(rest) > LINE_CHARS_MAX:
            raise BadInput(f"trace {str(path)!r}: a line of more than {LINE_CHARS_MAX} characters; is it a trace at all?")
        else:
            rest += read
    if rest:
        yield rest + b"\n"


def first_line(path: Path) -> str:
    """The first line of data (no comment) among the first ``HEAD_LINES``; "" for none."""
    with closing(cast("Generator[str]", lines(str(path)))) as text:
        return series.first_data_line(list(islice(text, HEAD_LINES)))


def format_of(path: Path, asked: str = "auto", column: str = "") -> str:
    """The format to read ``path`` in: ``asked``, or what its first line looks like with the names that ``column`` says.

    Raises BadInput for one that is not known.
    """
    if str(path) == "-":
        raise BadInput("trace '-': a trace is read more than once here, which stdin can't be; name a file")
    if asked in FORMATS:
        return asked
    if asked != "auto":
        raise BadInput(f"trace format {asked!r}; allowed: auto, {', '.join(FORMATS)}{did_you_mean(asked, FORMATS)}")
    line = first_line(path)
    name = guess(line, renames(column))
    if name == SERVEGEN_LENGTHS:
        raise BadInput(f"{path}: these are lengths, not a trace: give them as --lengths beside a trace of rates")
    if not name:
        if not line:
            raise BadInput(f"{path}: {_without_rows(path)}; allowed: a trace of one row or more")
        raise BadInput(f"{path}: {trace.unknown(line, FORMATS)}")
    return name


def _without_rows(path: Path) -> str:
    """Why there is no first line of data in ``path``."""
    with closing(cast("Generator[str]", lines(str(path)))) as text:
        head = list(islice(text, HEAD_LINES + 1))
    if not head:
        return "the file is empty"
    if len(head) <= HEAD_LINES:
        return "the file has no rows, only comments and empty lines"
    return f"its first {HEAD_LINES} lines are comments or empty, where a header or row is looked for; remove some"


def guess(line: str, renamed: Mapping[str, str] | None = None) -> str:
    """The format that a first line looks like, rates and ServeGen's lengths included, or "".

    ``renamed``: what a file of one's own calls our columns.
    """
    if line.startswith(_LENGTHS_SIGN):
        return SERVEGEN_LENGTHS
    if prometheus.SIGN in line:
        return "prometheus"
    of_requests = trace.guess(line, renamed)
    return of_requests or next((name for name, sign in _RATE_SIGNS if line.startswith(sign) or f",{sign}" in line), "")


def is_clients(path: Path) -> bool:
    """Whether a ServeGen file has a row a client, not totals."""
    return "client" in first_line(path).split(",")


def renames(column: str) -> dict[str, str]:
    """``at_s=when,prompt_tokens=in`` as a mapping; empty for the name of one column. Raises BadInput for one that isn't ours."""
    return named.renamed(column) if "=" in column else {}
