"""What is wrong with a configuration, all of it at once: a person fixes ten mistakes in one round, not in ten.

Nothing here stops at the first problem. Readers report to a ``Problems`` collector and go on with what they have; the
price is that later checks must tell "absent" from "already reported", which ``Got.good`` is for.
"""

import difflib
import re
from collections.abc import Iterable

import msgspec

from forebay.domain.errors import BadInput

PROBLEMS_MAX = 200
"""More than this many are counted but not kept."""
SHOWN_CHARS_MAX = 60
SECRET_CHARS_SHOWN = 6
SIMILARITY_MIN = 0.55
SUGGESTED_MAX = 3
"""Places that are named for one key."""

_KEY = re.compile(r"(?<![A-Za-z0-9])(sk-[^\s…]{0,3})\S*")

_USER = re.compile(r"(://)[^/@\s]+@")
"""Of an address: who, and a password."""


class Problem(msgspec.Struct, frozen=True):
    """One mistake: where (``line`` from 1, ``path`` of keys), what was found, what is allowed, what to do."""

    file: str
    line: int
    path: str
    found: str
    allowed: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}: {self.path}: found {self.found}; allowed: {self.allowed}"
        return f"{text}; {self.hint}" if self.hint else text


class BadSpec(BadInput):
    """The configuration is wrong, and nothing was started."""

    def __init__(self, problems: Iterable[Problem], uncounted: int = 0) -> None:
        self.problems = tuple(problems)
        self.count = len(self.problems) + uncounted
        files = sorted({problem.file for problem in self.problems})
        noun = "problem" if self.count == 1 else "problems"
        lines = [str(problem) for problem in self.problems]
        if uncounted:
            lines.append(f"… and {uncounted} more")
        lines.append(f"{self.count} {noun} in {', '.join(files)}; nothing was started")
        super().__init__("\n".join(lines))


class Place(msgspec.Struct, frozen=True):
    """A line of a file, and the keys that lead to it."""

    file: str
    line: int
    path: str = ""

    def key(self, key: str, line: int | None = None) -> "Place":
        """The place of ``key`` inside this one; without a ``line`` it is where the enclosing mapping is."""
        shown = printable(key)
        return Place(self.file, self.line if line is None else line, f"{self.path}.{shown}" if self.path else shown)

    def index(self, index: int, line: int) -> "Place":
        """The place of the list item ``index``, counted from 0."""
        return Place(self.file, line, f"{self.path}[{index}]")


class Problems:
    """Collects problems, at most ``PROBLEMS_MAX`` of them."""

    def __init__(self) -> None:
        self.kept: list[Problem] = []
        self.dropped = 0

    def add(self, place: Place, found: str, allowed: str, hint: str = "") -> None:
        """Report one problem at ``place``."""
        if len(self.kept) >= PROBLEMS_MAX:
            self.dropped += 1
            return
        self.kept.append(Problem(place.file, max(1, place.line), place.path or "document", found, allowed, hint))

    def unknown_key(self, place: Place, key: str, known: Iterable[str], inside: Iterable[str] = (), hint: str = "") -> None:
        """Report a key that isn't known, with the nearest that is, or ``hint``. ``inside``: paths of keys further down (``in.calm``)."""
        names = list(known)
        # Looking for the nearest name is the slow part, and pointless for what is only counted.
        hint = hint or ("" if len(self.kept) >= PROBLEMS_MAX else nearest_key(key, names, list(inside)))
        self.add(place, "an unknown key", listed(names, most=20), hint)

    def unknown(self, place: Place, name: str, known: Iterable[str], what: str) -> None:
        """Report a reference to a ``what`` that isn't there, with the nearest names."""
        if len(self.kept) >= PROBLEMS_MAX:
            self.dropped += 1
            return
        names = sorted(known)
        allowed = f"a {what}: {listed(names)}" if names else f"a {what}, but none is defined"
        self.add(place, quoted(name), allowed, did_you_mean(name, names))

    def raise_if_any(self, files: Iterable[str]) -> None:
        """Raise ``BadSpec`` with everything reported, in the order of ``files`` and then of lines."""
        if not self.kept:
            return
        order = {file: position for position, file in enumerate(files)}
        ordered = sorted(self.kept, key=lambda problem: (order.get(problem.file, len(order)), problem.line))
        raise BadSpec(ordered, self.dropped)


def printable(text: str) -> str:
    """``text`` with what a terminal would obey, or could not show, written as escapes; long texts are cut, keys hidden."""
    text = _USER.sub(r"\1…@", _KEY.sub(r"\1…", text))
    if len(text) > SHOWN_CHARS_MAX:
        text = text[:SHOWN_CHARS_MAX] + "…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def quoted(text: str) -> str:
    """``text`` in double quotes, safe to print."""
    return f'"{printable(text)}"'


def masked(secret: str) -> str:
    """The first characters of a secret: enough to know which one, too few to use it."""
    return secret[: min(SECRET_CHARS_SHOWN, len(secret) // 2)] + "…"


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for people, the first ``most`` of them."""
    all_names = [printable(name) for name in names]
    return ", ".join(all_names[:most]) + (", …" if len(all_names) > most else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question naming the nearest known name, or an empty string."""
    candidates = {candidate.lower(): candidate for candidate in known}
    near = _nearest(name, candidates)
    return f'did you mean "{printable(candidates[near[0]])}"?' if near else ""


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name[:SHOWN_CHARS_MAX].lower(), list(known), n=1, cutoff=SIMILARITY_MIN)


def nearest_key(key: str, known: Iterable[str], inside: Iterable[str]) -> str:
    """A question naming what ``key`` may stand for: a key of just this name further down, one much like it here, or one further down."""
    by_name: dict[str, list[str]] = {}
    for path in inside:
        by_name.setdefault(path.rpartition(".")[2], []).append(path)
    exact = by_name.get(key.lower())
    if exact is None and (here := did_you_mean(key, known)):
        return here
    near = exact or next((by_name[name] for name in _nearest(key, by_name)), [])
    return f"did you mean {' or '.join(quoted(path) for path in near[:SUGGESTED_MAX])}?" if near else ""
