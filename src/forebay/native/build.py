"""Builds relay.c in place with the C compiler that this Python names; needs nothing of the package: ``python …/native/build.py``.

The hash of the source and of the headers beside it is compiled in, so that what is older than they are is known. The file is
replaced at once and never written into: a gateway that runs has the old one mapped.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
COMPILE_S_MAX = 120.0
WARNINGS = ("-Wall", "-Wextra")


def hash_of(source: Path) -> str:
    """Of ``source`` and of what it may include: all headers beside it, in the order of their names."""
    made = hashlib.sha256(source.read_bytes())
    for header in sorted(source.parent.glob("*.h")):
        made.update(header.read_bytes())
    return made.hexdigest()


def file_name() -> str:
    """What this Python loads; the name has the version and the platform that it is for."""
    return f"_relay{sysconfig.get_config_var('EXT_SUFFIX')}"


def command(named: str | None, include: Path, environment: Mapping[str, str]) -> list[str] | str:
    """How a shared object is compiled and linked in one go, but for the files; or why it can't be. ``named``: LDSHARED of sysconfig."""
    words = shlex.split(named or "")
    if environment.get("CC"):
        words = [*shlex.split(environment["CC"]), *words[1:]]
    if sys.implementation.name != "cpython":
        return "this is not CPython"
    if not words or shutil.which(words[0]) is None:
        return f"there is no C compiler ({words[0] if words else 'this Python names none'})"
    if not (include / "Python.h").is_file():
        return f"there is no Python.h in {include}"
    return [*words, "-fPIC", "-O2", "-g0", "-DNDEBUG", *WARNINGS, f"-I{include}"]


def build(target: Path, source: Path = FOLDER / "relay.c", *, more: tuple[str, ...] = ()) -> str:
    """Make ``target`` of ``source``; returns why that could not be, and nothing where it was. ``more``: words for the compiler."""
    words = command(sysconfig.get_config_var("LDSHARED"), Path(sysconfig.get_path("include")), os.environ)
    if isinstance(words, str):
        return words
    try:
        return _build(target, source, [*words, *more])
    except (OSError, subprocess.TimeoutExpired) as error:  # no such compiler after all, a folder that can't be written to, a full disk
        return f"it could not be made: {error}"


def _build(target: Path, source: Path, words: list[str]) -> str:
    made = hash_of(source)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".relay-") as folder:
        fresh = Path(folder) / target.name
        whole = [*words, f'-DRELAY_SOURCE="{made}"', str(source), "-o", str(fresh)]
        done = subprocess.run(whole, capture_output=True, text=True, errors="replace", timeout=COMPILE_S_MAX, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            return f"the C compiler failed: {next((line for line in said if 'error' in line), said[-1] if said else words[0])}"
        os.replace(fresh, target)
    return ""


def main() -> None:
    """Build it beside its source, or say in one line that streams will be relayed in Python. That is no failure."""
    why = build(FOLDER / file_name())
    print(f"streams will be relayed in Python: {why}" if why else f"streams will be relayed in C: {file_name()}")


if __name__ == "__main__":
    main()
