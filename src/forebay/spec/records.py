"""Mappings and lists of kinds. A ``Record`` is a table of fields: decoder, JSON Schema and reference all come from it.

Defaults are not in the tables: they are the defaults of the struct in `spec.types` that a record fills (``fills``), so
that there is one statement of each.
"""

from collections.abc import Mapping as Map
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forebay.spec.kinds import BAD, Json, Kind, Text
from forebay.spec.problems import Place, Problems, listed
from forebay.spec.tree import Mapping, Node, Scalar, Sequence, describe

ITEMS_MAX = 10_000
"""Entries of one list or map."""


@dataclass(frozen=True)
class Field:
    """One key of a record. ``fills`` names the struct's field it fills as it is; None: the builder sees to it."""

    key: str
    kind: Kind
    doc: str
    fills: str | None = None
    required: bool = False
    default: str = ""
    """The default in words, where the struct doesn't have it."""


@dataclass
class Got:
    """What was read of one record: good values by key, and where each key stands (for later checks)."""

    place: Place
    record: "Record"
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    """Keys that are missing or wrong, and have been reported. ``*``: it wasn't a mapping at all."""

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` where it is absent or was wrong."""
        return self.values.get(key, default)

    def record_of(self, key: str) -> "Got":
        """The record under ``key``; an empty one where it is absent or was wrong."""
        got = self.values.get(key)
        if isinstance(got, Got):
            return got
        kind = next(field.kind for field in self.record.fields if field.key == key)
        assert isinstance(kind, Record), key
        return Got(self.at(key), kind)

    def at(self, key: str) -> Place:
        """Where ``key`` stands, or where it would."""
        return self.places.get(key) or self.place.key(key)

    def good(self, *keys: str) -> bool:
        """None of ``keys`` (all, if none is named) has been reported already."""
        return "*" not in self.bad and not (self.bad.intersection(keys) if keys else self.bad)

    def filled(self) -> dict[str, Any]:
        """Arguments for the struct: the present values of the fields that fill one."""
        return {f.fills: self.values[f.key] for f in self.record.fields if f.fills is not None and f.key in self.values}


@dataclass(frozen=True)
class Item:
    """One item of a list, and where it stands."""

    place: Place
    value: Any


@dataclass(frozen=True)
class Record(Kind):
    """A mapping with known keys."""

    name: str
    doc: str
    fields: tuple[Field, ...]
    fills: type[msgspec.Struct] | None = None
    secret: bool = False
    mistakes: tuple[tuple[str, str], ...] = ()
    """Keys that people write here and mean something else by, each with what to do."""

    @property
    def words(self) -> str:  # type: ignore[override]
        return "a mapping with " + listed(field.key for field in self.fields)

    @property
    def example(self) -> Json:
        return {field.key: field.kind.example for field in self.fields if field.required}

    def read(self, node: Node, place: Place, problems: Problems) -> Got:
        got = Got(place, self)
        if not isinstance(node, Mapping):
            if not (isinstance(node, Scalar) and node.is_null):
                problems.add(place, describe(node, self.secret), self.words)
                got.bad.add("*")
                return got
            node = Mapping(place.line, {})
        known = {field.key: field for field in self.fields}
        for key, entry in node.entries.items():
            here = place.key(key[:3] + "…" if self.secret and key not in known else key, entry.line)
            if key not in known:
                problems.unknown_key(here, key, known, self.inside(), dict(self.mistakes).get(key.lower(), ""))
            elif not (isinstance(entry.value, Scalar) and entry.value.is_null):
                self._keep(got, known[key], entry.value, here, problems)
        for key, wanted in known.items():
            if wanted.required and key not in got.values and key not in got.bad:
                problems.add(place.key(key), "nothing", wanted.kind.words, "add it")
                got.bad.add(key)
        return got

    def inside(self) -> list[str]:
        """Paths of all keys further down, where no name of the user's stands between (``in.calm``)."""
        found: list[str] = []
        for outer in self.fields:
            if isinstance(outer.kind, Record):
                found += [f"{outer.key}.{path}" for path in (*(one.key for one in outer.kind.fields), *outer.kind.inside())]
        return found

    @staticmethod
    def _keep(got: Got, wanted: Field, node: Node, place: Place, problems: Problems) -> None:
        got.places[wanted.key] = place
        value = wanted.kind.read(node, place, problems)
        if value is BAD:
            got.bad.add(wanted.key)
        else:
            got.values[wanted.key] = value

    def default_of(self, wanted: Field) -> Any:
        """The default of a field as it would be written, or None where the struct has none."""
        if self.fills is None or wanted.fills is None or wanted.default:
            return None
        for info in msgspec.structs.fields(self.fills):
            if info.name == wanted.fills and info.default is not msgspec.NODEFAULT and info.default not in (None, ()):
                return wanted.kind.show(info.default)
        return None

    def schema(self) -> Json:
        properties: Json = {}
        for wanted in self.fields:
            entry = {**wanted.kind.schema(), "description": wanted.doc}
            default = self.default_of(wanted)
            if default is not None:
                entry["default"] = default
            properties[wanted.key] = entry
        required = [wanted.key for wanted in self.fields if wanted.required]
        schema: Json = {"type": "object" if required else ["object", "null"], "description": self.doc, "properties": properties}
        return {**schema, "additionalProperties": False, **({"required": required} if required else {})}


@dataclass(frozen=True)
class MapOf(Kind):
    """Names of the user's choice, each with the same kind of value."""

    name_kind: Text
    value_kind: Kind
    what: str

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"a mapping of {self.what} names"

    @property
    def example(self) -> Json:
        return {self.name_kind.example: self.value_kind.example}

    def read(self, node: Node, place: Place, problems: Problems) -> Any:
        if not isinstance(node, Mapping) or len(node.entries) > ITEMS_MAX:
            problems.add(place, describe(node), self.words, f"at most {ITEMS_MAX}" if isinstance(node, Mapping) else "")
            return BAD
        values: dict[str, Any] = {}
        for name, entry in node.entries.items():
            here = place.key(name, entry.line)
            named = self.name_kind.read(Scalar(entry.line, name, False), here, problems)
            value = self.value_kind.read(entry.value, here, problems)
            if named is not BAD and value is not BAD:
                values[name] = value
        return values

    def schema(self) -> Json:
        names = self.name_kind.schema()
        return {"type": "object", "propertyNames": {"pattern": names["pattern"]}, "additionalProperties": self.value_kind.schema()}

    def show(self, value: Any) -> Any:
        return dict(value)


@dataclass(frozen=True)
class ListOf(Kind):
    """A list of one kind; reads as a tuple of ``Item``."""

    item: Kind
    words: str
    least: int = 0
    most: int = 1000
    secret: bool = False

    @property
    def example(self) -> list[Any]:
        return [self.item.example]

    def read(self, node: Node, place: Place, problems: Problems) -> Any:
        if not isinstance(node, Sequence) or not self.least <= len(node.items) <= self.most:
            found = f"{len(node.items)} of them" if isinstance(node, Sequence) and node.items else describe(node, self.secret)
            hint = "put it in [brackets]" if isinstance(node, Scalar) else f"from {self.least} to {self.most} items"
            problems.add(place, found, self.words, hint)
            return BAD
        places = [place.index(index, item.line) for index, item in enumerate(node.items)]
        read = [Item(here, self.item.read(item, here, problems)) for here, item in zip(places, node.items, strict=True)]
        return BAD if any(item.value is BAD for item in read) else tuple(read)

    def schema(self) -> Json:
        return {"type": "array", "items": self.item.schema(), "minItems": self.least, "maxItems": self.most, "examples": [self.example]}


@dataclass(frozen=True)
class Either(Kind):
    """One kind if a scalar, another if a list, another if a mapping is written."""

    words: str
    scalar: Kind | None = None
    sequence: Kind | None = None
    mapping: Kind | None = None

    def _kinds(self) -> list[Kind]:
        return [kind for kind in (self.scalar, self.sequence, self.mapping) if kind is not None]

    @property
    def example(self) -> Any:
        return self._kinds()[0].example

    def read(self, node: Node, place: Place, problems: Problems) -> Any:
        by_type: Map[type[Node], Kind | None] = {Scalar: self.scalar, Sequence: self.sequence, Mapping: self.mapping}
        kind = by_type[type(node)]
        if kind is None:
            problems.add(place, describe(node), self.words)
            return BAD
        return kind.read(node, place, problems)

    def schema(self) -> Json:
        return {"anyOf": [kind.schema() for kind in self._kinds()], "examples": [self.example]}
