"""What a verb leaves where its user said: a file that is written whole or not at all; a device or a pipe is written to.

What can be known before the work is known before it: a folder that isn't there, a place that may not be written, two results for
one place, and a result in the place of what it is made from.
"""

import contextlib
import gzip
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

from forebay.domain.errors import BadInput, ForebayError

GZIP_LEVEL = 1
"""Rows come faster than a higher level can pack them."""
A_FILE = "name a file in a folder that exists"


def check(option: str, path: Path, allowed: str = A_FILE) -> None:
    """Raises BadInput where ``leave`` could not leave anything at ``path``, before work is done whose result would be lost."""
    folder = Path(os.path.realpath(path)).parent
    if path.is_dir():
        raise _unwritable(option, path, "Is a directory", allowed)
    if not folder.is_dir() and not path.exists():
        raise _unwritable(option, path, "No such file or directory", allowed)
    # A file is replaced by a new one, which its folder has to allow, and who guards the file means it; what is no file is written to.
    asked = [path] if path.exists() else []
    if not asked or path.is_file():
        asked.append(folder)
    if not all(os.access(place, os.W_OK) for place in asked):
        raise _unwritable(option, path, "Permission denied", allowed)


def check_apart(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Raises BadInput where two of ``outputs`` (by option) are one file, or one of them is a file that is read."""
    taken = {os.path.realpath(path): what for what, path in inputs.items() if path is not None}
    for option, path in outputs.items():
        if path is None or (path.exists() and not path.is_file()):
            continue
        real = os.path.realpath(path)
        if real in taken:
            raise BadInput(f"{option}: found {str(path)!r}, which is {taken[real]}; allowed: a file of its own")
        taken[real] = f"what {option} names"


def leave(option: str, path: Path, content: bytes, allowed: str = A_FILE) -> None:
    """Write ``content`` to ``path``; raises BadInput where it can't be written, and then leaves what was there."""
    try:
        with _whole(path) as file:
            file.write(content)
    except OSError as error:
        raise _unwritable(option, path, error.strerror or str(error), allowed) from None


@contextlib.contextmanager
def whole(path: Path, packed: bool) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when all went well. Raises ForebayError where the disk refuses.

    A gzip header (``packed``) has no time in it: the same rows, the same bytes.
    """
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(_whole(path))
            yield cast("IO[bytes]", stack.enter_context(gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0))) if packed else raw
    except OSError as error:
        raise ForebayError(f"can't write {path}: {error.strerror or error}; nothing was left there") from None


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    real = Path(os.path.realpath(path))
    if path.exists() and not real.is_file():
        # A device or a pipe (or a folder, which says so): a file put in its place would be the end of it.
        with path.open("wb") as file:
            yield file
        return
    # Two runs that leave the same file each have their own unfinished one.
    part = real.with_name(f"{real.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        os.replace(part, real)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _unwritable(option: str, path: Path, why: str, allowed: str) -> BadInput:
    return BadInput(f"{option}: can't write {str(path)!r} ({why}); {allowed}")
