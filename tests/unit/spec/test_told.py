"""What a configuration that was taken has changed: each change is told by its place, and no key is."""

from forebay.engine.catalogue import PROFILES
from forebay.spec.decode import decode
from forebay.spec.told import TOLD_MAX, changes

FILE = """
pools: {chat: {model: m, attach: ["http://10.0.0.1:8000"], engine: {metrics: vllm}}}
models: {m: {context: 4096}}
tiers: {gold: {rank: 0, ttft: 1s, longest_wait: 30s}}
limits: {drain: 1m}
teams:
  search:
    keys: [{key: sk-search-0123456789}]
    limits: {tokens_per_minute: 100000}
"""


def told(*replaced, more=""):
    after = FILE
    for old, new in replaced:
        assert old in after
        after = after.replace(old, new)
    return changes(decode(FILE, "f", PROFILES), decode(after + more, "f", PROFILES))


def test_a_teams_limits_are_told_from_what_to_what():
    """A guide says that what was taken stands in the log; of a changed limit nothing did."""
    words = told(("tokens_per_minute: 100000", "tokens_per_minute: 200000, requests_per_minute: 60"))
    assert words == "teams.search: limits.requests_per_minute none → 60, limits.tokens_per_minute 100000 → 200000"


def test_of_keys_is_told_that_they_changed_and_no_more():
    words = told(("sk-search-0123456789", "sk-search-9876543210"))
    assert words == "teams.search: keys"


def test_each_kind_of_change_is_told_by_its_place():
    words = told(
        ("ttft: 1s", "ttft: 2s"),
        ("{context: 4096}", "{context: 4096, aliases: [n]}"),
        ("drain: 1m", "drain: 2m"),
        ('"http://10.0.0.1:8000"', '"http://10.0.0.2:8000"'),
        ("metrics: vllm", "metrics: vllm, key_env: VLLM_KEY"),
        more="  trial: {weight: 2}\n",
    )
    assert words.split("; ") == [
        "teams: +trial",
        "tiers.gold: ttft_s 1 → 2",
        "models.m: aliases",
        "limits: drain_s 60 → 120",
        "chat: attach: +10.0.0.2:8000, -10.0.0.1:8000",
        "chat: where its engines' keys stand",
    ]


def test_of_many_changes_the_first_are_told_and_the_rest_counted():
    teams = "".join(f"  team-{number}: {{weight: WEIGHT}}\n" for number in range(TOLD_MAX + 5))
    before, after = (decode(FILE + teams.replace("WEIGHT", weight), "f", PROFILES) for weight in "12")
    words = changes(before, after)
    assert words.count("; ") == TOLD_MAX
    assert words.endswith("; and 5 changes more")


def test_nothing_is_told_of_what_did_not_change():
    assert told() == ""
    default = FILE.replace("context: 4096", "")
    assert default != FILE
    assert changes(decode(default, "f", PROFILES), decode(default.replace("m: {}", "m: {context: 8192}"), "f", PROFILES)) == ""
