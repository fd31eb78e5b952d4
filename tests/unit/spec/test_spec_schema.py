"""One table decodes, makes the JSON Schema and writes the reference: the three can't disagree."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.spec.decode import decode
from forebay.spec.fields import ROOT, TEAM_FILE
from forebay.spec.kinds import BAD, Kind
from forebay.spec.problems import Place, Problems
from forebay.spec.records import Either, ListOf, MapOf, Record
from forebay.spec.reference import BEGIN, END, reference
from forebay.spec.schema import schema
from forebay.spec.tree import parse
from forebay.spec.types import Limits, Scaling, Slo

HOME = Path(__file__).parents[3]
EXAMPLES = sorted((HOME / "examples").rglob("*.yaml"))
H100 = Profile(
    "llama-3.1-8b-h100", "m", "h", 1, StepLaw(0.005, 5e-5, 2e-8, 4e-5), 256, 400_000, 16, 8192, 131_072, 131_072, ColdStart(1, 16e9, 1e9, 1)
)


def check(value: Any, team_file: bool = False) -> None:
    jsonschema.Draft202012Validator(schema(team_file)).validate(value)


def read(kind: Kind, value: Any) -> list[str]:
    """The problems of ``value`` (as JSON, which is YAML) read as ``kind``."""
    problems = Problems()
    node = parse(json.dumps(value), "f", problems)
    assert node is not None
    kind.read(node, Place("f", 1), problems)
    return [str(problem) for problem in problems.kept]


def leaves(kind: Kind) -> list[Kind]:
    inner: list[Kind] = []
    if isinstance(kind, Record):
        inner = [field.kind for field in kind.fields]
    elif isinstance(kind, MapOf):
        inner = [kind.name_kind, kind.value_kind]
    elif isinstance(kind, ListOf):
        inner = [kind.item]
    elif isinstance(kind, Either):
        inner = [each for each in (kind.scalar, kind.sequence, kind.mapping) if each is not None]
    return [leaf for each in inner for leaf in leaves(each)] if inner else [kind]


def sample(part: dict[str, Any], choice: int) -> Any:
    """A value with every property that ``part`` of a schema allows, made from the schema alone."""
    if "anyOf" in part:
        return sample(part["anyOf"][choice % len(part["anyOf"])], choice)
    if "properties" in part:
        return {key: sample(inner, choice) for key, inner in part["properties"].items()}
    if "additionalProperties" in part:
        return {"interactive": sample(part["additionalProperties"], choice)}
    if "items" in part:
        return [sample(part["items"], choice)]
    return part["examples"][0]


@pytest.mark.parametrize("team_file", [False, True])
def test_it_is_a_schema(team_file: bool) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(team_file))
    json.dumps(schema(team_file))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(HOME)))
def test_examples_satisfy_the_schema(path: Path) -> None:
    check(yaml.safe_load(path.read_text(encoding="utf-8")), team_file=path.parent.name == "teams")


def test_there_are_examples() -> None:
    assert {"quickstart.yaml", "attach.yaml", "vllm.yaml"} <= {path.name for path in EXAMPLES}


@pytest.mark.parametrize("choice", [0, 1])
@pytest.mark.parametrize("record", [ROOT, TEAM_FILE], ids=lambda record: record.name)
def test_everything_the_schema_offers_can_be_decoded(record: Record, choice: int) -> None:
    whole = sample(record.schema(), choice)
    jsonschema.Draft202012Validator(record.schema()).validate(whole)
    assert read(record, whole) == []


def test_what_the_schema_does_not_offer_is_refused_by_both() -> None:
    whole = sample(ROOT.schema(), 0)
    whole["pools"]["interactive"]["scaling"]["out"]["extra"] = 1
    with pytest.raises(jsonschema.ValidationError):
        check(whole)
    assert len(read(ROOT, whole)) == 1


VALUES = [
    *(0, 1, -1, 7, 10**6, 10**12, 0.5, -0.5, 1.5, 1e300, True, False, "", "a", "x y", "-", "/", "/h", "*", "sk-abcdefgh", "q" * 300),
    *(
        "90s",
        "1h30m",
        " 1 h 30 m ",
        "250ms",
        "5us",
        "0s",
        "1.5GB/s",
        "70GB",
        "64 MiB",
        "50/min",
        "2 / s",
        "30/min/min",
        "1 / s / s",
        "90",
        "s",
    ),
    *(
        "127.0.0.1:80",
        "[::1]:0",
        "http://h:1",
        "http://h:1/",
        "http://h:1/x",
        "08:00",
        "24:00",
        "25:00",
        "UTC",
        "Europe/Paris",
        "mon",
        "all",
    ),
    *("emulated", "vllm", "serve --port {port}", "serve\n--port {port}", "é", "\u2028"),
]


@pytest.mark.parametrize("kind", [kind for kind, _ in itertools.groupby(leaves(ROOT))], ids=lambda kind: kind.words[:30])
def test_what_is_decoded_is_never_marked_by_an_editor(kind: Kind) -> None:
    validator = jsonschema.Draft202012Validator(kind.schema())
    accepted = [value for value in [*VALUES, kind.example] if not read(kind, value)]
    assert kind.example in accepted
    assert [value for value in accepted if not validator.is_valid(value)] == []


def records(kind: Kind) -> list[Record]:
    inner: list[Kind] = []
    if isinstance(kind, Record):
        inner = [field.kind for field in kind.fields]
    elif isinstance(kind, MapOf):
        inner = [kind.value_kind]
    elif isinstance(kind, ListOf):
        inner = [kind.item]
    elif isinstance(kind, Either):
        inner = [each for each in (kind.sequence, kind.mapping) if each is not None]
    found = [record for each in inner for record in records(each)]
    return [kind, *found] if isinstance(kind, Record) else found


def test_a_default_that_is_shown_is_the_default() -> None:
    shown = 0
    for record in records(ROOT):
        for field in record.fields:
            default = record.default_of(field)
            if default is None or default == "":
                continue
            problems = Problems()
            node = parse(json.dumps(default), "f", problems)
            assert node is not None
            value = field.kind.read(node, Place("f", 1), problems)
            assert value is not BAD, (record.name, field.key, default, [str(problem) for problem in problems.kept])
            assert record.fills is not None
            assert value == pytest.approx(getattr_default(record.fills, field.fills)), (record.name, field.key)
            shown += 1
    assert shown > 40


def getattr_default(struct: Any, name: str | None) -> Any:
    default = next(info.default for info in msgspec.structs.fields(struct) if info.name == name)
    return default if isinstance(default, int | float) else _Exact(default)


class _Exact:
    """Equal by ==, for what pytest.approx can't compare."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __hash__(self) -> int:
        return hash(self.value)


def test_every_field_fills_a_field_that_is_there() -> None:
    for record in records(ROOT):
        names = {info.name for info in msgspec.structs.fields(record.fills)} if record.fills else set()
        assert {field.fills for field in record.fields if field.fills} <= names, record.name


@pytest.mark.parametrize("struct", [Scaling, Slo, Limits, ColdStart, StepLaw])
def test_every_setting_there_is_can_be_written(struct: type[msgspec.Struct]) -> None:
    filled = {field.fills for record in records(ROOT) if record.fills is struct for field in record.fields}
    assert {info.name for info in msgspec.structs.fields(struct)} == filled - {None}


def test_the_reference_in_the_docs_is_the_tables() -> None:
    text = (HOME / "docs" / "configuration.md").read_text(encoding="utf-8")
    between = text.partition(BEGIN)[2].partition(END)[0]
    assert between.strip() == reference().strip(), "paste the output of python -m forebay.spec.reference between the marks"


def test_the_files_in_the_docs_are_right() -> None:
    text = (HOME / "docs" / "configuration.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "\npools:" in "\n" + block]
    assert len(blocks) >= 3
    for block in blocks:
        decode(block, "docs", {H100.name: H100})
