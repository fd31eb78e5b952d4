"""What a field may hold. One kind reads a value, words its errors, and states itself as JSON Schema, so that they agree.

Each kind is total: any node gets a value or a reported problem (``BAD``), never an exception.
"""

import abc
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.domain import units
from forebay.spec.problems import Place, Problems, did_you_mean, listed
from forebay.spec.tree import FLAGS, Node, Scalar, describe

Json = dict[str, Any]
SCALAR_CHARS_MAX = 4096
_YEAR_S = 366 * 86_400.0

_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"[-+]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][-+]?[0-9]{1,3})?")
_LOOSE_FLAGS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


class _Bad:
    """The one value that stands for "was wrong, has been reported"."""


BAD = _Bad()


class Refused(Exception):
    """A scalar isn't of this kind; the text is a hint, or empty."""


class Kind(abc.ABC):
    """Reads one node."""

    words: str
    """What is allowed, to follow "allowed:"."""
    example: Any
    """A right value, as JSON."""

    @abc.abstractmethod
    def read(self, node: Node, place: Place, problems: Problems) -> Any:
        """The value, or ``BAD`` after reporting why."""

    @abc.abstractmethod
    def schema(self) -> Json:
        """This kind in JSON Schema (2020-12)."""

    def show(self, value: Any) -> Any:
        """``value`` as it would be written in the file (as JSON)."""
        return value


class ScalarKind(Kind):
    """A kind of one scalar: subclasses give ``convert``."""

    secret = False

    @abc.abstractmethod
    def convert(self, scalar: Scalar) -> Any:
        """The value; raises Refused with a hint."""

    def read(self, node: Node, place: Place, problems: Problems) -> Any:
        hint = ""
        if isinstance(node, Scalar) and not node.is_null:
            try:
                if len(node.text) > SCALAR_CHARS_MAX:
                    raise Refused(f"at most {SCALAR_CHARS_MAX} characters")
                return self.convert(node)
            except Refused as refused:
                hint = str(refused)
        problems.add(place, describe(node, self.secret), self.words, hint)
        return BAD


@dataclass(frozen=True)
class Text(ScalarKind):
    """Text that fully matches ``pattern``. Plain numbers and flags are refused: quotes say that they are meant as text."""

    words: str
    pattern: str = r"[^\x00-\x1f]{1,1024}"
    example: str = "text"
    secret: bool = False
    loose: bool = False
    """Numbers and flags are taken as they are written: arguments and environments hold them."""

    def convert(self, scalar: Scalar) -> str:
        if not self.loose and scalar.plain and (_NUMBER.fullmatch(scalar.text) or scalar.text in FLAGS):
            raise Refused("put it in quotes")
        if not re.fullmatch(self.pattern, scalar.text) or not scalar.text.isprintable():
            raise Refused
        return scalar.text

    def schema(self) -> Json:
        types = ["string", "number", "boolean"] if self.loose else "string"
        return {"type": types, "pattern": f"^(?:{self.pattern})$", "examples": [self.example]}


@dataclass(frozen=True)
class Choice(ScalarKind):
    """One of a few words."""

    options: tuple[str, ...]

    @property
    def words(self) -> str:  # type: ignore[override]
        return listed(self.options)

    @property
    def example(self) -> str:
        return self.options[0]

    def convert(self, scalar: Scalar) -> str:
        if scalar.text not in self.options:
            raise Refused(did_you_mean(scalar.text, self.options))
        return scalar.text

    def schema(self) -> Json:
        return {"type": "string", "enum": list(self.options), "examples": [self.example]}


@dataclass(frozen=True)
class Flag(ScalarKind):
    """true or false."""

    words: str = "true or false"
    example: bool = True

    def convert(self, scalar: Scalar) -> bool:
        if scalar.plain and scalar.text in FLAGS:
            return FLAGS[scalar.text]
        meant = _LOOSE_FLAGS.get(scalar.text.lower()) if scalar.plain else None
        raise Refused(f"write {meant}" if meant else "")

    def schema(self) -> Json:
        return {"type": "boolean", "examples": [self.example]}


@dataclass(frozen=True)
class Whole(ScalarKind):
    """A whole number from ``least`` to ``most``."""

    least: int
    most: int
    example: int = 1

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"a whole number ≥ {self.least}" + (f" and ≤ {self.most}" if self.most < 10**9 else "")

    def convert(self, scalar: Scalar) -> int:
        compact = scalar.text.replace("_", "").replace(",", "")
        if not scalar.plain or not _WHOLE.fullmatch(scalar.text):
            raise Refused(self._hint(scalar, compact))
        value = int(scalar.text)
        if not self.least <= value <= self.most:
            raise Refused("" if value < self.least else f"at most {self.most}")
        return value

    def _hint(self, scalar: Scalar, compact: str) -> str:
        if re.fullmatch(r"[0-9]{1,12}[kK]", scalar.text):
            thousands = int(scalar.text[:-1])
            if thousands * 1000 > self.most:
                return ""
            return f"write the number out: {thousands * 1000} or {thousands * 1024}"
        if _WHOLE.fullmatch(compact):
            return f"write {compact}" if scalar.plain else "without quotes"
        return ""

    def schema(self) -> Json:
        return {"type": "integer", "minimum": self.least, "maximum": self.most, "examples": [self.example]}


@dataclass(frozen=True)
class Number(ScalarKind):
    """A finite number from ``least`` (itself allowed unless ``above``) to ``most``."""

    least: float
    most: float
    above: bool = False
    example: float = 1

    @property
    def words(self) -> str:  # type: ignore[override]
        bound = f"a number {'>' if self.above else '≥'} {self.least:g}"
        return bound + (f" and ≤ {self.most:g}" if self.most < 1e6 else "")

    def convert(self, scalar: Scalar) -> float:
        percent = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]{1,4})?)\s*%", scalar.text)
        if percent and self.most == 1:
            raise Refused(f"write {float(percent[1]) / 100:g}")
        if not scalar.plain or not _NUMBER.fullmatch(scalar.text):
            raise Refused
        value = float(scalar.text)
        if self.most == 1 and 1 < value <= 100:
            raise Refused(f"it is a fraction: write {value / 100:g}")
        if not self.least <= value <= self.most or (self.above and value == self.least):
            raise Refused(self._bound(value))
        return value

    def _bound(self, value: float) -> str:
        """What to do about a value that is out of bounds, where the words for what is allowed don't say it."""
        if value > self.most:
            return f"at most {self.most:g}"
        return f"write {self.least:g} or more" if 0 < value < self.least else ""

    def schema(self) -> Json:
        return {
            "type": "number",
            "exclusiveMinimum" if self.above else "minimum": self.least,
            "maximum": self.most,
            "examples": [self.example],
        }


@dataclass(frozen=True)
class Quantity(ScalarKind):
    """A number with its unit, as text; ``parse`` gives SI and raises ValueError."""

    what: str
    parse: Callable[[str], float]
    write: Callable[[float], str]
    example: str
    pattern: str
    least: float = 0.0
    most: float = math.inf
    above: bool = False

    @property
    def words(self) -> str:  # type: ignore[override]
        bound = f", more than {self.write(self.least)}" if self.above else ""
        if self.least > 0 and not self.above:
            bound = f", at least {self.write(self.least)}"
        return f"{self.what} with its unit, such as {self.example}{bound}"

    def convert(self, scalar: Scalar) -> float:
        if _NUMBER.fullmatch(scalar.text):
            # The unit that the example beside it has: a hint that says another one would contradict it.
            unit = self.example.lstrip("0123456789.")
            raise Refused(f"write {scalar.text}{unit}" if scalar.text[:1].isdigit() else "")
        try:
            value = self.parse(scalar.text)
        except (ValueError, OverflowError):
            raise Refused from None
        if not math.isfinite(value) or value > self.most:
            raise Refused(f"at most {self.write(self.most)}")
        if value < self.least or (self.above and value == self.least):
            raise Refused
        return value

    def schema(self) -> Json:
        return {"type": "string", "pattern": f"^{self.pattern}$", "examples": [self.example]}

    def show(self, value: Any) -> str:
        return self.write(float(value))


@dataclass(frozen=True)
class Parsed(ScalarKind):
    """Text that ``parse`` turns into something else; it raises ValueError with a hint. ``write`` is its inverse."""

    words: str
    example: str
    parse: Callable[[str], Any]
    write: Callable[[Any], Any] = str
    pattern: str = ".+"

    def convert(self, scalar: Scalar) -> Any:
        if not scalar.text.isprintable():
            raise Refused
        try:
            return self.parse(scalar.text)
        except ValueError as error:
            raise Refused(str(error)) from None

    def schema(self) -> Json:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", "examples": [self.example]}

    def show(self, value: Any) -> Any:
        return self.write(value)


def _write_duration(seconds: float) -> str:
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= size and math.isclose(seconds / size, round(seconds / size), rel_tol=1e-12):
            return f"{round(seconds / size)}{unit}"
    return f"{seconds:g}s"


def _write_size(size_bytes: float) -> str:
    whole = round(size_bytes)
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}B"


def _parse_bandwidth(text: str) -> float:
    size, slash, second = text.partition("/")
    if not slash or second.strip() != "s":
        raise ValueError(text)
    return float(units.parse_size_bytes(size))


_N = r"\d+(\.\d+)?"
_SIZE = _N + r"\s*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)"
_PER = r"\s*/\s*(s|sec|m|min|h|hour|d)"


def duration(least: float = 0.0, above: bool = False, most: float = 10 * _YEAR_S, example: str = "90s") -> Quantity:
    """A duration in seconds."""
    pattern = rf"\s*({_N}\s*(ns|us|ms|min|s|m|h|d|w)\s*)+"
    return Quantity("a duration", units.parse_duration_s, _write_duration, example, pattern, least, most, above)


def size(least: float = 0.0, most: float = 2.0**60, example: str = "70GB") -> Quantity:
    """A size in bytes."""
    return Quantity("a size", units.parse_size_bytes, _write_size, example, rf"\s*{_SIZE}\s*", least, most)


def bandwidth(example: str = "1.5GB/s") -> Quantity:
    """Bytes per second."""
    pattern = rf"\s*{_SIZE}\s*/\s*s\s*"
    return Quantity("a bandwidth", _parse_bandwidth, lambda value: _write_size(value) + "/s", example, pattern, 0.0, 2.0**60, True)


def rate(above: bool = False, example: str = "50/min") -> Quantity:
    """Events per second."""
    return Quantity("a rate", units.parse_rate_per_s, lambda value: f"{value:g}/s", example, rf"\s*{_N}{_PER}\s*", 0.0, 1e6, above)


def ramp(example: str = "30/min/min") -> Quantity:
    """Events per second per second."""
    pattern = rf"\s*{_N}{_PER}{_PER}\s*"
    return Quantity("a ramp", units.parse_ramp_per_s2, lambda value: f"{value:g}/s/s", example, pattern, 0.0, 1e6)
