"""Overflow is read whole, and what could never work is said where it is written."""

import pytest

from forebay.spec.decode import BadSpec, decode
from forebay.spec.types import Overflow, Spec, Spill

TEAMS = "teams: {search: {overflow: [degrade, spill], residency: [eu], keys: [{key: sk-search-key}]}}\n"
SMALL = "  small: {model: small, attach: [http://127.0.0.1:9101]}\n"


def spec_of(overflow: str, teams: str = TEAMS, small: str = SMALL) -> Spec:
    return decode(
        f"{teams}pools:\n  big: {{model: big, attach: [http://127.0.0.1:9100], overflow: {overflow}}}\n{small}", "forebay.yaml", {}
    )


def test_overflow_is_read_whole() -> None:
    spec = spec_of(
        "{degrade: small, degrade_after: 3s, spill_after: 20s, spill: [{name: paris, url: https://paris.example/v1, model: big-v2, "
        "key_env: PARIS_KEY, region: eu, budget: 20, price: {prompt: 0.5, output: 2}, streams: 8}]}"
    )
    spill = Spill("paris", "https://paris.example/v1", "big-v2", "PARIS_KEY", "eu", 20.0, 0.5, 2.0, 8)
    assert spec.pools[0].overflow == Overflow("small", 3.0, (spill,), 20.0)
    assert spec.pools[1].overflow == Overflow()
    assert (spec.teams[0].overflow, spec.teams[0].residency) == (("degrade", "spill"), ("eu",))


@pytest.mark.parametrize(
    ("overflow", "teams", "small", "path", "said"),
    [
        ("{degrade: smal}", TEAMS, SMALL, "pools.big.overflow.degrade", "small"),
        ("{degrade: big}", TEAMS, SMALL, "pools.big.overflow.degrade", "small"),
        (
            "{degrade: small}",
            TEAMS,
            "  small: {model: small, attach: [http://127.0.0.1:9101], overflow: {degrade: big}}\n",
            "pools.big.overflow.degrade",
            "leads back",
        ),
        ("{degrade: small}", "", SMALL, "pools.big.overflow.degrade", "teams must agree"),
        ("{spill: [{name: p, url: 'https://p.example/v1'}]}", "", SMALL, "pools.big.overflow.spill", "teams must agree"),
        (
            "{spill: [{name: p, url: 'https://p.example/v1', price: {output: 2}}]}",
            TEAMS,
            SMALL,
            "pools.big.overflow.spill[0].budget",
            "budget",
        ),
        ("{spill: [{name: p, url: 'ftp://p.example/v1'}]}", TEAMS, SMALL, "pools.big.overflow.spill[0].url", "http"),
        ("{spill: [{name: p, url: 'http://[::1/v1'}]}", TEAMS, SMALL, "pools.big.overflow.spill[0].url", "host"),
        ("{spill: [{name: p, url: 'http://x:99999/v1'}]}", TEAMS, SMALL, "pools.big.overflow.spill[0].url", "host"),
        ("{spill: [{name: p, url: 'https://x:abc/v1'}]}", TEAMS, SMALL, "pools.big.overflow.spill[0].url", "host"),
        ("{spill: [{name: p, url: 'http://u:p@host/v1'}]}", TEAMS, SMALL, "pools.big.overflow.spill[0].url", "host"),
        (
            "{spill: [{name: p, url: 'https://p.example/v1'}, {name: p, url: 'https://q.example/v1'}]}",
            TEAMS,
            SMALL,
            "pools.big.overflow.spill[1].name",
            "each name once",
        ),
    ],
)
def test_overflow_that_could_never_work_is_refused_where_it_is_written(overflow: str, teams: str, small: str, path: str, said: str) -> None:
    with pytest.raises(BadSpec) as caught:
        spec_of(overflow, teams, small)
    (problem,) = (problem for problem in caught.value.problems if problem.path == path)
    assert said in str(problem)


SPILL = "{spill: [{name: paris, url: https://paris.example/v1, region: eu-west}, {name: far, url: https://far.example/v1, region: us}]}"


def test_a_residency_where_nothing_is_spilled_to_is_refused_and_those_that_are_named() -> None:
    """A region that was misspelled passed `forebay check`, and the team's requests were never spilled."""
    with pytest.raises(BadSpec) as caught:
        spec_of(SPILL, TEAMS.replace("degrade, ", ""), "")
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == ("teams.search.residency[0]", 1)
    assert "eu-west, us" in problem.allowed
    assert spec_of(SPILL, TEAMS.replace("degrade, ", "").replace("[eu]", "[eu-west, us]"), "").teams[0].residency == ("eu-west", "us")
    assert spec_of("{}", TEAMS, "").teams[0].residency == ("eu",), "nothing is spilled: it keeps nobody from anything"


def test_a_team_files_residency_is_looked_at_too() -> None:
    text = f"teams: {{home: {{overflow: [spill]}}}}\ngrants: {{'*': {{}}}}\npools: {{big: {{attach: ['http://127.0.0.1:9100'], overflow: {SPILL}}}}}\n"
    with pytest.raises(BadSpec) as caught:
        decode(text, "forebay.yaml", {}, {"teams/search.yaml": "teams: {search: {residency: [eu]}}\n"})
    assert any(problem.file == "teams/search.yaml" and "residency" in problem.path for problem in caught.value.problems)
