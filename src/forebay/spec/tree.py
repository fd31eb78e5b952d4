"""YAML text to a tree of plain nodes that know their lines.

PyYAML's composer is used for its marks and anchors, and none of its typing: whether ``two``, ``yes`` or ``18:00`` is
right depends on the field, so scalars stay text here and the field's kind decides. The tree is bounded in bytes, depth
and (aliases expanded) nodes, since a few lines of aliases can otherwise stand for billions of nodes.
"""

from collections.abc import Iterator

import msgspec
import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from forebay.spec.problems import Place, Problems, printable, quoted

TEXT_BYTES_MAX = 2**20
DEPTH_MAX = 32
NODES_MAX = 100_000

_STANDARD = "tag:yaml.org,2002:"
_MERGE = _STANDARD + "merge"
_TAGS = frozenset(_STANDARD + name for name in ("null", "bool", "int", "float", "str", "timestamp", "value", "merge", "seq", "map"))
FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class Scalar(msgspec.Struct, frozen=True):
    """One value as written. ``plain``: without quotes, so that it may be a number, a flag or nothing."""

    line: int
    text: str
    plain: bool

    @property
    def is_null(self) -> bool:
        """Nothing was written, or ``null``."""
        return self.plain and self.text in _NULLS


class Sequence(msgspec.Struct, frozen=True):
    """A list."""

    line: int
    items: tuple["Node", ...]


class Entry(msgspec.Struct, frozen=True):
    """One key's value; ``line`` is the key's."""

    line: int
    value: "Node"


class Mapping(msgspec.Struct, frozen=True):
    """Keys and values in the order written, merges (``<<``) done."""

    line: int
    entries: dict[str, Entry]


Node = Scalar | Sequence | Mapping


class _Refused(Exception):
    """The tree can't be built any further."""

    def __init__(self, line: int, found: str, allowed: str) -> None:
        super().__init__(found)
        self.line, self.found, self.allowed = line, found, allowed


class _Loader(Reader, Scanner, Parser, Composer, Resolver):
    """PyYAML up to its node graph; refuses depth before Python's stack would."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        Resolver.__init__(self)
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise _too_deep(self.line + 1)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def parse(text: str, file: str, problems: Problems) -> Node | None:
    """The tree of ``text``, or None where it isn't YAML at all (reported). Duplicate keys are reported, and the first kept."""
    top = Place(file, 1)
    size_bytes = len(text.encode("utf-8", "replace"))
    if size_bytes > TEXT_BYTES_MAX:
        problems.add(top, f"{size_bytes} bytes", f"at most {TEXT_BYTES_MAX} bytes", "split off teams/*.yaml")
        return None
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return Scalar(1, "", True)
        return _Grower(file, problems).node(root, top, 1)
    except _Refused as refused:
        problems.add(Place(file, refused.line), refused.found, refused.allowed)
    except ReaderError as error:
        line = text.count("\n", 0, error.position if isinstance(error.position, int) else 0) + 1
        character = f"the character U+{error.character:04X}" if isinstance(error.character, int) else "a bad character"
        problems.add(Place(file, line), character, "printable characters, tabs inside texts, and line ends")
    except yaml.MarkedYAMLError as error:
        _syntax(file, error, problems)
    except (ValueError, OverflowError):
        # PyYAML converts escapes (\UFFFFFFFF) and version numbers without checking them.
        problems.add(Place(file, loader.line + 1 if loader else 1), "an impossible escape or directive", _ALLOWED_ESCAPES)
    return None


def decode_utf8(data: bytes, file: str) -> str:
    """``data`` as text; raises BadSpec naming the line of the first byte that isn't UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problems = Problems()
        line = data.count(b"\n", 0, error.start) + 1
        problems.add(Place(file, line), f"the byte 0x{data[error.start]:02x}", "UTF-8 text", "save the file as UTF-8")
        problems.raise_if_any([file])
        raise


_ALLOWED = "`key: value` or `- item` on a line, those that belong together indented alike"
_ALLOWED_ESCAPES = r"the escapes of YAML, such as \n and \u00e9 inside double quotes"
_SYNTAX = (
    ("\\t", _ALLOWED, "indent with spaces"),
    ("mapping values are not allowed", "one `key: value` on a line", 'put a value that has a colon and a space in it in "quotes"'),
    ("<block end>", _ALLOWED, "look at the indentation of this line and the ones above it"),
    ("<stream end>", "every bracket and quote closed before the end", "close it"),
    ("end of stream", "every bracket and quote closed before the end", "close it"),
    ("expected ','", "a comma between two entries, and every bracket closed", "look for a missing comma or bracket"),
)
"""Signs in the parser's words, what is right there, and what to do."""


def _syntax(file: str, error: yaml.MarkedYAMLError, problems: Problems) -> None:
    mark = error.problem_mark or error.context_mark
    found = printable(error.problem or error.context or "something else")
    allowed, hint = next(((right, do) for sign, right, do in _SYNTAX if sign in found), (_ALLOWED, ""))
    problems.add(Place(file, mark.line + 1 if mark else 1), f"a YAML syntax error ({found})", allowed, hint)


def _too_deep(line: int) -> _Refused:
    return _Refused(line, f"more than {DEPTH_MAX} levels", f"at most {DEPTH_MAX} levels of nesting")


class _Grower:
    """Copies PyYAML's graph (which shares aliased nodes) into a tree, counting."""

    def __init__(self, file: str, problems: Problems) -> None:
        self.file = file
        self.problems = problems
        self.nodes = 0

    def node(self, raw: yaml.Node, place: Place, depth: int) -> Node:
        line = raw.start_mark.line + 1
        self.nodes += 1
        if self.nodes > NODES_MAX:
            raise _Refused(line, f"more than {NODES_MAX} values once aliases are expanded", f"at most {NODES_MAX}")
        if depth > DEPTH_MAX:
            raise _too_deep(line)
        if raw.tag not in _TAGS:
            self.problems.add(Place(self.file, line, place.path), f"the tag {printable(raw.tag)}", "plain YAML without tags")
        if isinstance(raw, yaml.MappingNode):
            return Mapping(line, self.entries(raw, place, depth))
        if isinstance(raw, yaml.SequenceNode):
            items = enumerate(raw.value)
            return Sequence(line, tuple(self.node(item, place.index(i, item.start_mark.line + 1), depth + 1) for i, item in items))
        return Scalar(line, str(raw.value), getattr(raw, "style", None) is None)

    def entries(self, raw: yaml.MappingNode, place: Place, depth: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        merged: list[Mapping] = []
        for key, value in raw.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.problems.add(Place(self.file, line, place.path), "a list or mapping as a key", "a name")
                continue
            name = str(key.value)
            here = Place(self.file, line, place.path).key(name)
            if key.tag == _MERGE:
                merged.extend(self.merged(value, here, depth))
            elif name in entries:
                first = entries[name].line
                self.problems.add(here, f"the key {quoted(name)} a second time", "each key once", f"it is on line {first} already")
            else:
                entries[name] = Entry(line, self.node(value, here, depth + 1))
        for mapping in merged:
            for name, entry in mapping.entries.items():
                entries.setdefault(name, entry)
        return entries

    def merged(self, value: yaml.Node, place: Place, depth: int) -> Iterator[Mapping]:
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for source in sources:
            grown = self.node(source, place, depth + 1)
            if isinstance(grown, Mapping):
                yield grown
            else:
                self.problems.add(place, "a merge of something else", "an alias of a mapping, such as <<: *defaults")


def describe(node: Node, secret: bool = False) -> str:
    """What was found, for a person; the text itself stays hidden where it may be a secret."""
    if isinstance(node, Mapping):
        return "a mapping" if node.entries else "an empty mapping"
    if isinstance(node, Sequence):
        return "a list" if node.items else "an empty list"
    if node.is_null:
        return "nothing"
    if secret:
        return quoted(node.text[:3] + "…")
    bare = node.plain and (node.text in FLAGS or not node.text[:1].isalpha())
    return printable(node.text) if bare else quoted(node.text)
