"""Whatever is done to a right file, it is decoded or refused with places; nothing else is ever raised."""

import random
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.spec.decode import BadSpec, decode
from forebay.spec.problems import PROBLEMS_MAX
from forebay.spec.types import Spec

TINY = Profile("tiny", "m", "h", 1, StepLaw(0.005, 5e-5, 2e-8, 4e-5), 256, 400_000, 16, 2048, 131_072, 8192, ColdStart(1, 16e9, 1e9, 1))
FILE = """\
defaults: &slo {ttft: 1s, itl: 50ms, attainment: 0.99}
pools:
  chat:
    model: small
    profile: mine
    hardware: big
    engine: {command: "serve {model} --port {port}", env: {A: 1}, metrics: vllm}
    slo: *slo
    scaling: {min: 1, max: 4, spare: 0, out: {waiting_per_replica: 3, for: 60s, kv: 0.85}, in: {kv: 0.5, calm: 15m}, ramp: 30/min/min, cold_start: 5m}
    queue: {max: 100}
  other: {attach: [http://127.0.0.1:9100], slo: {<<: *slo, ttft: 2s}}
models: {small: {context: 4096, aliases: [tiny-model]}, other: {}}
profiles: {mine: {base: tiny, kv: 9000, cold_start: {weights: 16GB}}}
hardware: {big: {memory: 80GB, gpus: 8, price: 3.0}}
tiers: {interactive: {rank: 0}, batch: {rank: 2, preemptible: true}}
teams: {search: {weight: 2, tiers: [interactive, batch], keys: [{key: sk-search-key, tier: batch}]}}
grants: {mail: {tiers: {batch: {ttft_min: 1m}}, weight_max: 2, keys_max: 3}}
calendar: [{name: day, pools: [chat], days: weekdays, from: "08:00", to: "18:00", timezone: Europe/Paris, min: 2}]
gateway: {listen: 127.0.0.1:8080}
limits: {body: 8MiB}
speed: 1
"""
RIGHT = FILE.replace("defaults: &slo {ttft: 1s, itl: 50ms, attainment: 0.99}\n", "").replace("slo: *slo", "slo: &slo {ttft: 1s, itl: 50ms}")
TEAM_FILE = "teams: {mail: {weight: 1, tiers: {batch: {ttft: 2h}}, keys: [{key: sk-mail-key}]}}\n"

NASTY = [
    *(
        "",
        " ",
        "\n",
        "\t",
        ":",
        ": ",
        "- ",
        "? ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "&a ",
        "*a",
        "*slo",
        "<<: ",
        "!!str ",
        "!x ",
        "|\n",
        ">\n",
        "'",
        '"',
        "#",
        "---\n",
        "%YAML 1.1\n",
    ),
    *(
        "\\",
        "\x00",
        "\x1b",
        "\ud800",
        "\ufeff",
        "\u2028",
        "é",
        "🙂",
        "9" * 400,
        "-1",
        "1e999",
        ".nan",
        ".inf",
        "0x10",
        "1_000",
        "null",
        "~",
        "true",
        "yes",
        "sk-",
        "{port}",
    ),
    *(
        "90",
        "90s",
        "1GB",
        "30/min",
        "99:99",
        "Europe",
        "../../etc/passwd",
        "Europe/",
        "http://",
        ":0",
        "[::1]:1",
        "\r\n",
        "\x85",
        "*",
        "&",
        "@",
        "`",
    ),
]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(NASTY)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)


def outcome(text: str, team_file: str) -> Spec | BadSpec:
    try:
        return decode(text, "forebay.yaml", {"tiny": TINY}, {"teams/mail.yaml": team_file})
    except BadSpec as bad:
        return bad


def decoded(text: str, team_file: str) -> Spec | BadSpec:
    """The outcome, after checking that a refusal names places and can be printed."""
    result = outcome(text, team_file)
    if isinstance(result, BadSpec):
        assert 0 < len(result.problems) <= min(result.count, PROBLEMS_MAX)
        for problem in result.problems:
            assert problem.file in {"forebay.yaml", "teams/mail.yaml"}
            assert problem.line >= 1
            assert problem.path
            assert problem.found
            assert problem.allowed
        str(result).encode("utf-8")
        assert len(str(result).splitlines()) == len(result.problems) + 1 + (result.count > len(result.problems))
    return result


def test_the_file_that_is_mutated_is_right() -> None:
    assert isinstance(decoded(RIGHT, TEAM_FILE), Spec)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(RIGHT)), st.integers(0, 12), st.sampled_from(NASTY)), min_size=1, max_size=3), st.booleans())
@example([(0, 0, "- ")], False)
def test_mutated_text_is_decoded_or_refused_with_places(edits: list[tuple[int, int, str]], team: bool) -> None:
    text = TEAM_FILE if team else RIGHT
    for start, length, new in edits:
        start %= len(text) + 1
        text = text[:start] + new + text[start + length :]
    decoded(RIGHT if team else text, text if team else TEAM_FILE)


def replaced(value: Any, seed: random.Random, new: Any) -> Any:
    """``value`` with one node somewhere in it, or one key, replaced."""
    if isinstance(value, dict) and value and seed.random() < 0.85:
        key = seed.choice(sorted(value))
        if seed.random() < 0.1:
            return {(str(new) if name == key else name): inner for name, inner in value.items()}
        return {**value, key: replaced(value[key], seed, new)}
    if isinstance(value, list) and value and seed.random() < 0.85:
        index = seed.randrange(len(value))
        return [*value[:index], replaced(value[index], seed, new), *value[index + 1 :]]
    return new


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.lists(VALUES, min_size=1, max_size=4), st.booleans())
def test_mutated_values_are_decoded_or_refused_with_places(seed: int, news: list[Any], team: bool) -> None:
    chance = random.Random(seed)
    value = yaml.safe_load(TEAM_FILE if team else RIGHT)
    for new in news:
        value = replaced(value, chance, new)
    text = yaml.safe_dump(value, allow_unicode=True)
    decoded(RIGHT if team else text, text if team else TEAM_FILE)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=200))
def test_any_text_at_all(text: str) -> None:
    decoded(text, text)
