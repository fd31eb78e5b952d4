"""Small files that processes leave for each other and for people: written whole, or not at all."""

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec

from forebay.domain.errors import BadInput, ForebayError
from forebay.spec.types import Spec

RUNNING_FILE = "up.json"
SPEC_FILE = "spec.msgpack"
LOCK_FILE = "lock"
"""Locked by the `forebay up` whose state folder it is."""
STORE_FILE = "forebay.db"
"""The history: decisions, events, the ledger."""
RUNNING_READ_MAX = 256
TEAMS_FOLDER = "teams"
"""Beside a configuration: a file for each team."""
TEAM_FILES_MAX = 1000
_PRIVATE = 0o600


class Running(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `forebay up` says of itself in its state folder and its ready file."""

    gateway: str
    admin: str
    pid: int
    gateways: dict[str, str] = {}
    """Where there are several behind the address of ``gateway``: each one's name, and the address that is its alone."""


class Announced(msgspec.Struct, frozen=True):
    """What `forebay up` says of itself to whoever looks for it on this machine."""

    state: str
    """Its state folder."""
    running: Running


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace ``path`` in one step; raises ForebayError where the disk refuses."""
    # Several gateways write the same file when they take the same configuration: each has its own unfinished one.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise ForebayError(f"can't write {path}: {error.strerror}") from None


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that have ended left unfinished in ``folder``: they were killed while they wrote a file."""
    for part in folder.glob("*.part"):
        pid = part.name.split(".")[-2]
        if not pid.isdigit():
            continue
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            with contextlib.suppress(OSError):
                part.unlink()
        except (OSError, OverflowError):
            continue  # somebody else's, and it lives


def write_value(path: Path, value: msgspec.Struct) -> None:
    """``value`` as JSON at ``path``."""
    write_whole(path, msgspec.json.encode(value) + b"\n")


def check_ready_file(path: Path | None) -> None:
    """Raises BadInput, before anything starts, where a ready file could not be left at ``path``."""
    if path is not None and ((path.exists() and not path.is_file()) or not path.resolve().parent.is_dir()):
        raise BadInput(f"--ready-file: found {str(path)!r}; allowed: a file in a folder that exists")


def state_folder(path: Path) -> Path:
    """``path`` as a folder that can be written to; raises BadInput where it can't."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "logs").mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BadInput(f"state: can't write to the folder {path} ({error.strerror}); name another with --state") from None
    return path


def save_spec(spec: Spec, state: Path) -> Path:
    """Leave ``spec`` for the processes of this run, so that a restarted one never reads a half edited file; it holds keys.

    Raises ForebayError where the disk refuses.
    """
    path = state / SPEC_FILE
    write_whole(path, msgspec.msgpack.encode(spec), _PRIVATE)
    return path


def saved_spec(path: Path) -> Spec:
    """The spec that ``save_spec`` left at ``path``; raises ForebayError where there is none that can be read."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Spec)
    except (OSError, msgspec.MsgspecError) as error:
        raise ForebayError(f"{path} can't be read ({error}); stop `forebay up` and start it again") from None


def announce(state: Path, running: Running) -> Path | None:
    """Leave a note for `forebay status` started anywhere on this machine by the same user; None where that is not possible."""
    folder = _announcements()
    if folder is None:
        return None
    path = folder / f"{running.pid}.json"
    try:
        write_value(path, Announced(str(state), running))
    except ForebayError:
        return None
    return path


def announced() -> list[Announced]:
    """Every `forebay up` of this user that runs."""
    folder = _announcements()
    found: list[Announced] = []
    for path in sorted(folder.glob("*.json"))[:RUNNING_READ_MAX] if folder is not None else []:
        try:
            note = msgspec.json.decode(path.read_bytes(), type=Announced)
            os.kill(note.running.pid, 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (OSError, msgspec.MsgspecError):
            continue
        else:
            found.append(note)
    return found


def _announcements() -> Path | None:
    """This user's folder of notes, if it is there (or can be made) and is nobody else's."""
    path = Path(tempfile.gettempdir()) / f"forebay-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    return path if found.st_uid == os.getuid() and path.is_dir() and not path.is_symlink() and not found.st_mode & 0o022 else None
