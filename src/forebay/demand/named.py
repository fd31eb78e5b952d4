"""CSV and JSON lines of one's own: which column is which, by Forebay's names, OpenAI's, or those that are said; and what is missing.

A request without output (its client left before the first token, say) is given as one of 0 output tokens: the reader counts it, and
takes it for one token, since its prompt was computed all the same.
"""

import shlex
from collections.abc import Collection, Mapping
from typing import Any

from forebay.demand.rows import (
    GROUPS_MAX,
    ROW_COLUMNS,
    TIME_COLUMNS,
    Place,
    RowParser,
    TraceRow,
    cells_of,
    count_of,
    json_object,
    time_of,
    tokens_of,
)
from forebay.domain.errors import BadInput

ALIASES = {"prompt_tokens": "input_tokens", "output_tokens": "completion_tokens"}
"""Other names that OpenAI's APIs have for the same; a column under our own name goes first."""
LENGTHS = (*ALIASES, *ALIASES.values())
NAMES = (*TIME_COLUMNS, *ROW_COLUMNS)
SEPARATORS = (";", "\t", "|")
A_TIME = "a time (at_s: seconds, wall_s: Unix time, or timestamp: either seconds or dates)"
_SIGNS = {
    "timestamp": ("time", "date", "when", "stamp", "created", "arriv", "start"),
    "prompt_tokens": ("prompt", "input", "context", "request_tok", "tokens_in", "in_tokens"),
    "output_tokens": ("out", "completion", "generat", "response", "answer"),
}
"""What a name has in it that probably stands for ours. It is only asked about: many a column is called ``prompt``."""
_SHORT = {"timestamp": ("ts", "t", "at"), "prompt_tokens": ("in",), "output_tokens": ("out",)}
"""Whole names that are too short to be looked for inside others."""
NAMED_MAX = 20
"""Columns that an error lists."""


def called(renamed: Mapping[str, str], present: Collection[str]) -> dict[str, str]:
    """What each of ``NAMES`` is called among ``present``: as was said, else by our name, else by the alias that is there."""
    return {ours: renamed.get(ours) or _by_itself(ours, present) for ours in NAMES}


def _by_itself(ours: str, present: Collection[str]) -> str:
    alias = ALIASES.get(ours, ours)
    return alias if ours not in present and alias in present else ours


def time_kind(renamed: Mapping[str, str], present: Collection[str]) -> str:
    """Which of ``TIME_COLUMNS`` there is, one that was said before others; "" for none."""
    ordered = sorted(TIME_COLUMNS, key=lambda name: name not in renamed)
    return next((name for name in ordered if renamed.get(name, name) in present), "")


def header_names(header: str) -> list[str]:
    """The columns of a CSV by its first line."""
    return [name.strip().strip('"') for name in header.split(",")]


def in_header(line: str) -> bool:
    """Whether a CSV with this first line says how long its requests are, by names that are known."""
    return any(name in LENGTHS for name in header_names(line))


def csv(header: str, place: Place) -> tuple[RowParser, bool]:
    """A parser of rows under ``header``; raises BadInput that tells what is wrong with it."""
    problem = header_problem(header, place.columns)
    if problem:
        raise place.error(problem[0], header, problem[1])
    names = header_names(header)
    wanted, kind = called(place.columns, names), time_kind(place.columns, names)
    when, prompt, output = (names.index(wanted[name]) for name in (kind, "prompt_tokens", "output_tokens"))
    tier, group, shared = (names.index(wanted[name]) if wanted[name] in names else None for name in ROW_COLUMNS[2:])

    def parse(line: str) -> TraceRow:
        cells = [cell.strip().strip('"') for cell in cells_of(line, len(names), place)]
        prompt_tokens = tokens_of(cells[prompt], names[prompt], place, 1)
        output_tokens = tokens_of(cells[output], names[output], place, 0)
        at_s = time_of(_date_or_number(cells[when]), kind, names[when], place)
        group_id, shared_tokens = -1, 0
        if group is not None and cells[group] not in ("", "-1"):
            group_id = tokens_of(cells[group], names[group], place, 0, GROUPS_MAX)
            shared_tokens = tokens_of(cells[shared], names[shared], place, 0, prompt_tokens) if shared is not None else 0
        return TraceRow(at_s, prompt_tokens, output_tokens, cells[tier] if tier is not None else "", group_id, shared_tokens)

    return parse, True


def _date_or_number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def json_lines(_: str, place: Place) -> tuple[RowParser, bool]:
    """A parser of rows; names are looked for in each row."""
    renamed = place.columns

    def parse(line: str) -> TraceRow:
        item = json_object(line, place)
        wanted, kind = called(renamed, item), time_kind(renamed, item)
        prompt_tokens, output_tokens = (
            count_of(item[wanted[name]], wanted[name], place, least) if wanted[name] in item else _absent(name, item, place)
            for name, least in (("prompt_tokens", 1), ("output_tokens", 0))
        )
        tier, group, shared = item.get(wanted["tier"], ""), item.get(wanted["group"], -1), item.get(wanted["shared_tokens"], 0)
        if not isinstance(tier, str):
            raise place.error(wanted["tier"], tier, "a text, or no tier at all")
        if type(group) is not int or not -1 <= group < GROUPS_MAX:
            raise place.error(wanted["group"], group, f"a whole number from -1 to {GROUPS_MAX}, or no group at all")
        if type(shared) is not int or not 0 <= shared <= prompt_tokens:
            raise place.error(wanted["shared_tokens"], shared, "a whole number from 0 to the prompt_tokens, or none at all")
        if not kind:
            _absent("timestamp", item, place)
        at_s = time_of(item[wanted[kind]], kind, wanted[kind], place)
        return TraceRow(at_s, prompt_tokens, output_tokens, tier, group, shared)

    return parse, False


def _absent(ours: str, item: Mapping[str, Any], place: Place) -> int:
    """Raises BadInput: the row has no such key."""
    kinds = TIME_COLUMNS if ours == "timestamp" else (ours,)
    said = [f"{place.columns[name]} (--column {name}={place.columns[name]})" for name in kinds if name in place.columns]
    allowed = f"a key of this row: {_listed(item)}" if said else _needs([ours], item)
    raise place.error(f"no {' or '.join(said) or _word(ours).removeprefix('a ')} among the keys", _listed(item), allowed)


def json_problem(row: str) -> tuple[str, str]:
    """What is wrong with the first row of JSON lines that names no length, and what is allowed."""
    place = Place("")
    try:
        item = json_object(row, place)
    except BadInput:
        return "not a JSON object a line", "JSON lines, each a whole object"
    missing = [] if time_kind({}, item) else ["timestamp"]
    missing += [name for name in ALIASES if called({}, item)[name] not in item]
    return f"no {' and '.join(_word(ours).removeprefix('a ') for ours in missing)} among the keys", _needs(missing, item)


def header_problem(header: str, renamed: Mapping[str, str]) -> tuple[str, str] | None:
    """What is wrong with the first line of a CSV, and what is allowed; None where it names all that a row must have."""
    names = header_names(header)
    gone = [f"{theirs} (--column {ours}={theirs})" for ours, theirs in renamed.items() if theirs not in names]
    separator = next((sign for sign in SEPARATORS if sign in header), "") if len(names) == 1 else ""
    if separator:
        return f"columns parted by {separator!r}", "commas between columns, and a point in numbers: convert the file"
    if all(_is_value(name) for name in names):
        return (
            "no header, it seems: the first line is a row",
            "a first line that names the columns, such as at_s,prompt_tokens,output_tokens",
        )
    if gone:
        return f"the header lacks {', '.join(gone)}", f"a column of this file: {_listed(names)}"
    wanted = called(renamed, names)
    missing = [] if time_kind(renamed, names) else ["timestamp"]
    missing += [name for name in ALIASES if wanted[name] not in names]
    if not missing:
        return None
    return f"the header lacks {' and '.join(map(_word, missing))}", _needs(missing, names)


def _needs(missing: list[str], names: Collection[str]) -> str:
    allowed = [A_TIME if ours == "timestamp" else f"{ours} (or {ALIASES[ours]})" for ours in missing]
    return f"{', '.join(allowed)}{_question(missing, names)}"


def _is_value(cell: str) -> bool:
    """Whether it is a number or a date rather than a name: no letters but those of ``2026-01-01T00:00:00Z`` and ``1e3``."""
    return not cell or (cell[0] in "-+.0123456789" and not set(cell) & set("abcdfghijklmnopqrsuvwxyABCDFGHIJKLMNOPQRSUVWXY_"))


def _word(ours: str) -> str:
    return "a time" if ours == "timestamp" else ours


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:NAMED_MAX])
    return f"{shown}, …" if len(names) > NAMED_MAX else shown


def _question(missing: list[str], names: Collection[str]) -> str:
    """How to say what the missing ones are called, with the likely names where there are some."""
    likely = {ours: next((name for name in names if _is_like(name, ours)), "") for ours in missing}
    words = shlex.quote(",".join(f"{ours}={theirs or 'ITS_NAME'}" for ours, theirs in likely.items()))  # to be pasted into a shell
    unknown = "" if all(likely.values()) else ", with your column's name for ITS_NAME"
    asked, mark = ("did you mean", "?") if any(likely.values()) else ("say what they are called:", "")
    return f"; {asked} --column {words}{unknown}{mark}"


def _is_like(name: str, ours: str) -> bool:
    lower = name.lower()
    return lower in _SHORT[ours] or any(sign in lower for sign in _SIGNS[ours])


def renamed(text: str, known: Collection[str] = NAMES) -> dict[str, str]:
    """``at_s=when,prompt_tokens=in`` as a mapping; raises BadInput for a name that Forebay doesn't have, or one that comes twice."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        ours, _, theirs = (piece.strip() for piece in part.partition("="))
        if ours not in known or not theirs or ours in found:
            raise BadInput(
                f"--column: found {part!r}, allowed: NAME=ITS NAME IN THE FILE, where NAME is one of {', '.join(known)}, each once"
            )
        found[ours] = theirs
    return found
