"""Where the keys of engines stand: per engine, per pool, never inline; what may be written, and what is said of what may not."""

import pytest

from forebay.spec.decode import BadSpec, decode
from forebay.spec.engine_keys import key_of, refused, shown
from forebay.spec.live import attach_changes, check_live
from forebay.spec.types import EngineKey


def pool_of(text):
    return decode(f"pools: {{chat: {{model: m, {text}}}}}", "f", {}).pools[0]


def problems(text):
    with pytest.raises(BadSpec) as bad:
        pool_of(text)
    return bad.value.problems


BOTH = 'attach: ["http://h:1", {url: "http://h:2/", key_file: two.key}], engine: {key_env: KEY}'


def test_an_engine_has_its_own_or_its_pools():
    pool = pool_of(BOTH)
    assert pool.engine.attach == ("http://h:1", "http://h:2")
    assert key_of(pool.engine, "http://h:1") == EngineKey("http://h:1", "KEY")
    assert key_of(pool.engine, "http://h:2") == EngineKey("http://h:2", "", "two.key")
    assert (pool.scaling.min_replicas, pool.scaling.max_replicas) == (2, 2)


def test_an_address_in_a_mapping_is_an_address_like_any_other():
    assert pool_of('attach: [{url: "http://h:1"}]').engine.attach == ("http://h:1",)
    (twice,) = problems('attach: ["http://h:1", {url: "http://h:1/", key_env: KEY}]')
    assert "each engine once" in str(twice)


@pytest.mark.parametrize("word", ["key", "api_key", "API_KEY", "token", "authorization", "password"])
@pytest.mark.parametrize(
    "where", ['attach: [{{url: "http://h:1", {}: hunter2hunter2}}]', 'attach: ["http://h:1"], engine: {{{}: hunter2hunter2}}']
)
def test_a_key_inline_is_refused_with_where_to_put_it_and_not_read_aloud(where, word):
    (problem,) = problems(where.format(word))
    assert problem.hint == "a key never stands in this file: name the environment variable that holds it in key_env, or a file in key_file"
    assert "hunter2" not in str(problem)


@pytest.mark.parametrize("word", ["key", "api_key"])
def test_nor_is_that_of_a_provider_or_of_a_pool(word):
    (problem,) = problems(f'attach: ["http://h:1"], overflow: {{spill: [{{name: far, url: "https://far/v1", {word}: hunter2}}]}}')[:1]
    assert "name the environment variable that holds it in key_env" in problem.hint
    (problem,) = problems(f'attach: ["http://h:1"], {word}: hunter2')
    assert "key_file of engine" in problem.hint
    assert "hunter2" not in str(problem)


@pytest.mark.parametrize("key", ["token-abc123", "AB CD", "sk-engine-0123456789"])
@pytest.mark.parametrize("where", ['attach: ["http://h:1"], engine: {{key_env: {}}}', 'attach: [{{url: "http://h:1", key_env: {}}}]'])
def test_a_key_in_place_of_its_variables_name_is_refused_and_not_read_aloud(where, key):
    (problem,) = problems(where.format(f'"{key}"'))
    assert problem.allowed == "a variable's name"
    assert key[4:] not in str(problem)


def test_user_and_password_in_an_address_are_refused_and_not_read_aloud():
    (problem,) = problems('attach: ["http://me:hunter2@h:1"]')
    assert "an engine is shown a key, by key_env or key_file" in problem.hint
    assert "hunter2" not in str(problem)


@pytest.mark.parametrize(
    ("text", "path", "found"),
    [
        ("attach: [{key_env: KEY}]", "pools.chat.attach[0].url", "nothing"),
        ('attach: [{url: "http://h:1", key_env: KEY, key_file: k}]', "pools.chat.attach[0].key_file", "key_file beside key_env"),
        ('attach: ["http://h:1"], engine: {key_env: KEY, key_file: k}', "pools.chat.engine.key_file", "key_file beside key_env"),
        ('attach: ["http://h:1"], key_env: KEY', "pools.chat.key_env", "an unknown key"),
        ('attach: [["http://h:1"]]', "pools.chat.attach[0]", "a list"),
    ],
)
def test_what_is_no_entry_is_named(text, path, found):
    (problem,) = problems(text)
    assert (problem.path, problem.found) == (path, found)


def test_where_keys_stand_may_change_while_it_runs():
    before = decode(f"pools: {{chat: {{model: m, {BOTH}}}}}", "f", {})
    after = decode("pools: {chat: {model: m, attach: ['http://h:1', 'http://h:2'], engine: {key_file: k}}}", "f", {})
    check_live(before, after)
    assert attach_changes(before, after) == {}


def test_what_is_said_of_an_engine_that_asks():
    pool, without = pool_of(BOTH), pool_of('attach: ["http://h:1"]')
    assert refused(pool, "http://h:1", 401) == (
        "refuses its key (it answers 401): pools.chat.engine has it from key_env KEY; set it anew and start again"
    )
    assert refused(pool, "http://h:2", 403) == (
        "refuses its key (it answers 403): pools.chat.attach http://h:2 has it from key_file two.key; "
        "write the right one there: it is read again at once"
    )
    assert refused(without, "http://h:1", 401).startswith(
        "asks for a key (it answers 401), and is given none: name the environment variable"
    )


def test_a_variables_name_that_looks_like_a_key_is_not_shown_whole():
    assert [shown(name) for name in ("VLLM_API_KEY", "hf_abcdef", "A" * 100)] == ["VLLM_API_KEY", "hf_…", "AAA…"]
