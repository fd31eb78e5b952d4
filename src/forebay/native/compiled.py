"""Modules that every request passes are C where they were compiled from these very sources; else, or with FOREBAY_PURE, Python.

There is one source: mypyc makes C of the modules named here as they stand (`compiling`), types and all. What it made lies in a folder
of its own, so nothing is found there by chance: a finder knows each module's file, and is asked first. All of them are used or none,
since compiled classes call each other without looking anything up. What is older than its source is not used, and no word is said of it
but by ``forebay --version``: who edits a module goes on in Python. A module is fit for it that has no Struct of its own (mypyc drops
what is said of a class beside its bases, such as ``frozen``) and no class that inherits from one in C, such as ``deque`` or a protocol.
"""

import hashlib
import importlib
import json
import os
import struct
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypedDict

SOURCES = Path(__file__).resolve().parents[2]
"""Where the package lies."""
SUFFIX = EXTENSION_SUFFIXES[0]
"""Of files that this very Python loads."""
FOLDER = Path(__file__).resolve().parent / "_compiled" / SUFFIX.strip(".").removesuffix(".so")
GROUP = "forebay"
LIBRARY = f"{GROUP}__mypyc"
"""What all of them are in; a module's own file only names its part of it."""
MANIFEST = "sources.json"
_ELF_64 = b"\x7fELF\x02"
_ELF_HEAD_BYTES = 64

# fmt: off
_ROOMS = {
    "admission": (
        "asked", "books", "budget", "capacity", "deadlines", "estimate", "fairness", "foresight", "kv", "lanes", "machine",
        "memory", "pace", "peaks", "preempting", "prefixes", "prior", "pump", "replicas", "reserve", "sharing", "spill", "sums",
        "tickets", "waiting", "waits", "weighing",
    ),
    "gateway": (
        "background", "body", "bound", "call", "context", "desk", "door", "doubting", "duties", "ending", "firsts", "heads",
        "holding", "http", "identity", "intake", "large", "latencies", "leaving", "lent", "meters", "moving", "passed",
        "pool_desk", "reader", "recorded", "recovery", "relay", "repeats", "request", "retries", "routes", "service",
        "shape_errors", "shaping", "silence", "sizing", "straight", "surface", "usage", "watched", "whole",
    ),
    "adapters.upstream": ("client", "connection", "exchange", "heads", "turns"),
}
# fmt: on
MODULES = tuple(f"forebay.{room}.{name}" for room, names in _ROOMS.items() for name in names)


class Manifest(TypedDict):
    """What is in the folder."""

    modules: list[str]
    sources: dict[str, str]
    """By module the hash of its source: of those that were compiled, and those they import, whose types were taken for true."""


def source_of(module: str, sources: Path = SOURCES) -> Path:
    """Where a module is written."""
    return sources.joinpath(*module.split(".")).with_suffix(".py")


def files_in(folder: Path = FOLDER) -> dict[str, Path]:
    """By module the file that it is compiled to."""
    return {name: folder / f"{name}{SUFFIX}" for name in (*MODULES, LIBRARY)}


def all_there(folder: Path = FOLDER) -> bool:
    """Whether all those files are there, and whole."""
    return all(is_whole(file) for file in files_in(folder).values())


def is_whole(file: Path) -> bool:
    """Whether a shared object is there, and not cut off, as on a full disk: to load one that is may kill the process (SIGBUS).

    What an ELF ends with, stripped or not, is the table of its sections, of which its head (e_shoff, e_shentsize, e_shnum) says where
    it is; of other formats it is only known that there is something.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(_ELF_HEAD_BYTES)
            size = opened.seek(0, os.SEEK_END)
    except OSError:
        return False
    if not head.startswith(_ELF_64):
        return size > 0
    if len(head) < _ELF_HEAD_BYTES:
        return False
    order = "<" if head[5] == 1 else ">"
    (sections_at,), (each, count) = struct.unpack_from(f"{order}Q", head, 0x28), struct.unpack_from(f"{order}HH", head, 0x3A)
    return bool(sections_at + each * count <= size)


def digests(modules: Sequence[str], sources: Path = SOURCES) -> dict[str, str]:
    """What each module's source is now; those that are not there are left out."""
    found = ((module, source_of(module, sources)) for module in modules)
    return {module: hashlib.sha256(source.read_bytes()).hexdigest() for module, source in found if source.is_file()}


def manifest_of(folder: Path = FOLDER) -> Manifest | None:
    """What was compiled there, and from what; None: nothing."""
    try:
        made: Manifest = json.loads((folder / MANIFEST).read_bytes())
        return {"modules": list(made["modules"]), "sources": dict(made["sources"])}
    except (OSError, ValueError, TypeError, KeyError):  # not there, not readable, no JSON, or another's
        return None


class Finder(MetaPathFinder):
    """Knows the files of compiled modules."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As the import system asks; None for whatever else there is."""
        del path, target
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))


def chosen(folder: Path = FOLDER, sources: Path = SOURCES, wanted: str = "") -> tuple[Finder | None, str]:
    """Who finds the compiled modules, and what to tell of it. ``wanted``: what FOREBAY_PURE says; anything but nothing and 0 is Python."""
    if wanted not in ("", "0"):
        return None, "Python, as FOREBAY_PURE says"
    made = manifest_of(folder)
    if made is None:
        return None, "Python, nothing was compiled"
    now = digests(list(made["sources"]), sources)
    if made["modules"] != list(MODULES) or any(made["sources"][module] != digest for module, digest in now.items()):
        return None, "Python, what was compiled is older than its source"
    if not all_there(folder):
        return None, "Python, what was compiled is not all there"
    return Finder(files_in(folder)), "C"


def install() -> str:
    """From now on compiled modules are found, where there are any; returns what is used. Before any of them is imported."""
    finder, said = chosen(wanted=os.environ.get("FOREBAY_PURE", ""))
    return said if finder is None else found_by(finder)


def found_by(finder: Finder, library: str = LIBRARY) -> str:
    """Have ``finder`` asked first; returns what is used: where what all of them are in can't be loaded, none is."""
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(library)
    except ImportError as error:
        sys.meta_path.remove(finder)
        again = "compile it again with `python -m forebay.native.compiling`"
        warnings.warn(f"requests are handled in Python, what was compiled can't be loaded: {error}; {again}", stacklevel=3)
        return "Python, C can't be loaded"
    return "C"
