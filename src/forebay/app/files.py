"""Small files that processes leave for each other and for people: written whole, or not at all."""

import os
from pathlib import Path

import msgspec

from forebay.domain.errors import BadInput, ForebayError

RUNNING_FILE = "up.json"


class Running(msgspec.Struct, frozen=True):
    """What `forebay up` says of itself in its state folder and its ready file."""

    gateway: str
    admin: str
    pid: int


def write_whole(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step; raises ForebayError where the disk refuses."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        raise ForebayError(f"can't write {path}: {error.strerror}") from None


def write_value(path: Path, value: msgspec.Struct) -> None:
    """``value`` as JSON at ``path``."""
    write_whole(path, msgspec.json.encode(value) + b"\n")


def state_folder(path: Path) -> Path:
    """``path`` as a folder that can be written to; raises BadInput where it can't."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise BadInput(f"state: can't make the folder {path} ({error.strerror}); name another with --state") from None
    return path
