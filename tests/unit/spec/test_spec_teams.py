"""The platform owns policy: a team's own file moves only within what it was granted, and is told the bound otherwise."""

import pytest

from forebay.spec.decode import BadSpec, Problem, decode
from forebay.spec.types import DEFAULT_TIERS, Spec, TeamLimits, Tier

PLATFORM = """\
pools: {chat: {attach: [http://127.0.0.1:9100]}}
teams:
  platform: {keys: [{key: sk-platform-key}]}
grants:
  search:
    tiers:
      interactive: {ttft_min: 500ms, longest_wait_max: 60s}
      batch:
    weight_max: 4
    keys_max: 2
  plain:
"""


def spec_of(team_file: str, platform: str = PLATFORM) -> Spec:
    return decode(platform, "forebay.yaml", {}, {"teams/own.yaml": team_file})


def problems_of(team_file: str, platform: str = PLATFORM) -> list[Problem]:
    with pytest.raises(BadSpec) as caught:
        spec_of(team_file, platform)
    return list(caught.value.problems)


def test_within_its_grant_a_team_sets_weight_keys_and_promises() -> None:
    spec = spec_of(
        "teams: {search: {weight: 4, tiers: {interactive: {ttft: 500ms, longest_wait: 1m}, batch: {}}, keys: [{key: sk-search-1}, {key: sk-search-2, tier: batch}]}}"
    )
    platform, search = spec.teams
    assert (platform.name, platform.tiers, platform.keys) == ("platform", (), (("sk-platform-key", "interactive"),))
    assert (search.weight, search.tiers) == (4.0, ("interactive", "batch"))
    assert search.keys == (("sk-search-1", "interactive"), ("sk-search-2", "batch"))
    assert search.promises == (Tier("interactive", 0, ttft_s=0.5, longest_wait_s=60.0),)
    assert spec.tier("interactive", "search").ttft_s == 0.5
    assert spec.tier("interactive", "platform") == spec.tier("interactive") == DEFAULT_TIERS[0]
    assert spec.tier("batch", "search") == DEFAULT_TIERS[2]


def test_a_team_that_names_no_tiers_gets_those_granted() -> None:
    assert spec_of("teams: {search: {}}").teams[1].tiers == ("interactive", "batch")
    assert spec_of("teams: {plain: {}}").teams[1].tiers == ()


@pytest.mark.parametrize(
    ("team", "path", "found", "bound"),
    [
        ("search: {weight: 5}", "teams.search.weight", "5", "at most 4, as grants.search.weight_max says"),
        ("search: {tiers: [standard]}", "teams.search.tiers[0]", '"standard"', "the tiers of grants.search.tiers: interactive, batch"),
        (
            "search: {tiers: {interactive: {ttft: 400ms}}}",
            "teams.search.tiers.interactive.ttft",
            "400ms",
            "at least 500ms, as grants.search.tiers.interactive.ttft_min says",
        ),
        (
            "search: {tiers: {interactive: {longest_wait: 2m}}}",
            "teams.search.tiers.interactive.longest_wait",
            "2m",
            "at most 1m, as grants.search.tiers.interactive.longest_wait_max says",
        ),
        ("search: {tiers: {batch: {ttft: 1m}}}", "teams.search.tiers.batch.ttft", "1m", "at least 1h"),
        (
            "search: {keys: [{key: aaaaaaaa}, {key: bbbbbbbb}, {key: cccccccc}]}",
            "teams.search.keys",
            "3 keys",
            "at most 2, as grants.search.keys_max says",
        ),
        ("search: {keys: [{key: aaaaaaaa, tier: standard}]}", "teams.search.keys[0].tier", '"standard"', "interactive, batch"),
        ("plain: {weight: 1.5}", "teams.plain.weight", "1.5", "at most 1, as grants.plain.weight_max says"),
        ("plain: {tiers: {standard: {ttft: 1s}}}", "teams.plain.tiers.standard.ttft", "1s", "at least 5s, as tiers.standard.ttft says"),
        ("other: {}", "teams.other", 'the team "other"', "search, plain"),
        ("platform: {}", "teams.platform", "a second team", "each team once"),
        ("search: {keys: [{key: sk-platform-key}]}", "teams.search.keys[0].key", "sk-pla…", "each key once"),
    ],
)
def test_beyond_its_grant_the_bound_is_named(team: str, path: str, found: str, bound: str) -> None:
    problems = problems_of(f"teams:\n  {team}\n")
    assert [(problem.file, problem.line, problem.path) for problem in problems] == [("teams/own.yaml", 2, path)]
    assert found in problems[0].found
    assert bound in problems[0].allowed


def test_a_team_file_holds_nothing_but_teams() -> None:
    problems = problems_of("pools: {x: {attach: [http://h:1]}}\nteams: {search: {}}\n")
    assert [problem.path for problem in problems] == ["pools"]


def test_star_grants_any_other_team() -> None:
    platform = PLATFORM + '  "*": {tiers: {batch: {}}, keys_max: 1}\n'
    assert spec_of("teams: {other: {}}", platform).teams[1].tiers == ("batch",)
    assert [problem.path for problem in problems_of("teams: {search: {weight: 9}, other: {tiers: [standard]}}", platform)] == [
        "teams.search.weight",
        "teams.other.tiers[0]",
    ]


def test_without_grants_no_team_file_may_say_anything() -> None:
    problems = problems_of("teams: {search: {}}", "pools: {chat: {attach: [http://h:1]}}\n")
    assert "none" in problems[0].allowed
    assert problems[0].hint == "the platform must add grants.search"


def test_the_problems_of_all_files_come_together_the_platform_first() -> None:
    with pytest.raises(BadSpec) as caught:
        decode(PLATFORM + "speed: x\n", "forebay.yaml", {}, {"teams/a.yaml": "teams: [", "teams/b.yaml": "teams: {search: {weight: 99}}"})
    assert [problem.file for problem in caught.value.problems] == ["forebay.yaml", "teams/a.yaml", "teams/b.yaml"]
    assert str(caught.value).endswith("3 problems in forebay.yaml, teams/a.yaml, teams/b.yaml; nothing was started")


def test_a_grant_of_a_tier_that_is_not_there() -> None:
    problem = problems_of("teams: {}", PLATFORM.replace("      batch:", "      bach:"))[0]
    assert (problem.path, problem.hint) == ("grants.search.tiers.bach", 'did you mean "batch"?')


LIMITED = """\
pools: {chat: {attach: [http://127.0.0.1:9100]}}
teams:
  platform: {limits: {requests_per_minute: 60}}
grants:
  search: {limits: {tokens_per_minute: 1000, requests_in_flight: 4}}
"""


def test_limits_are_granted_and_a_team_may_only_lower_its_own() -> None:
    spec = spec_of("teams: {search: {limits: {requests_in_flight: 2, requests_per_minute: 7}}}", LIMITED)
    platform, search = spec.teams
    assert platform.limits == TeamLimits(requests_per_minute=60)
    assert search.limits == TeamLimits(requests_per_minute=7, tokens_per_minute=1000, requests_in_flight=2)
    (problem,) = problems_of("teams: {search: {limits: {requests_in_flight: 5}}}", LIMITED)
    assert problem.path == "teams.search.limits.requests_in_flight"
    assert "at most 4, as grants.search.limits.requests_in_flight says" in problem.allowed


def test_shares_below_the_top_tier_are_bounded_together() -> None:
    pools = "pools: {chat: {attach: [http://127.0.0.1:9100]}}\n"
    spec = decode(pools + "tiers: {interactive: {}, batch: {min_share: 0.3}, standard: {min_share: 0.2}}", "forebay.yaml", {}, {})
    assert [tier.min_share for tier in spec.tiers] == [0.05, 0.2, 0.3]
    with pytest.raises(BadSpec) as caught:
        decode(pools + "tiers: {interactive: {}, batch: {min_share: 0.4}, standard: {min_share: 0.2}}", "forebay.yaml", {}, {})
    (problem,) = caught.value.problems
    assert problem.path == "tiers.batch.min_share"
    assert "at most 0.5 together" in problem.allowed


POOL = "pools: {chat: {attach: [http://127.0.0.1:9100]}}\n"


def test_a_value_of_service_tier_means_one_tier() -> None:
    tiers = "tiers: {interactive: {aliases: [priority, batch]}, standard: {aliases: [flex, priority]}, batch: {}}"
    with pytest.raises(BadSpec) as caught:
        decode(POOL + tiers, "forebay.yaml", {})
    said = [(problem.path, problem.found) for problem in caught.value.problems]
    assert said == [("tiers.interactive.aliases[1]", '"batch"'), ("tiers.standard.aliases[1]", '"priority"')]


def test_aliases_of_tiers_are_read() -> None:
    spec = decode(POOL + "tiers: {interactive: {}, batch: {aliases: [flex]}}", "forebay.yaml", {})
    assert [tier.aliases for tier in spec.tiers] == [(), ("flex",)]
