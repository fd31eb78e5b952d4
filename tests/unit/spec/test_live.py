"""What of a configuration may change while Forebay runs: the lists of attached engines, and of their pools nothing else."""

import msgspec
import pytest

from forebay.domain.errors import BadInput
from forebay.engine.catalogue import PROFILES
from forebay.spec.decode import decode
from forebay.spec.live import attach_changes, attached, check_live

FILE = """
pools:
  chat: {{model: llama-3.1-8b, attach: {chat}}}
  code: {{model: qwen, attach: ["http://10.0.1.1:8000"]}}
"""


def listing(*hosts):
    return decode(FILE.format(chat=[f"http://{host}" for host in hosts]).replace("'", '"'), "forebay.yaml", PROFILES)


ONE, TWO, THREE = "10.0.0.11:8000", "10.0.0.12:8000", "10.0.0.17:8000"


def test_engines_that_come_and_go_are_told_by_pool_in_words():
    before, after = listing(ONE, TWO), listing(TWO, THREE)
    check_live(before, after)
    assert attach_changes(before, after) == {"chat": "attach: +10.0.0.17:8000, -10.0.0.11:8000"}


def test_a_list_may_grow_and_shrink_though_it_is_the_pools_size():
    assert listing(ONE).pools[0].scaling.max_replicas == 1
    check_live(listing(ONE), listing(ONE, TWO, THREE))
    check_live(listing(ONE, TWO, THREE), listing(ONE))


@pytest.mark.parametrize("after", [(ONE, TWO), (TWO, ONE), (f"{TWO}/", ONE)])
def test_another_order_and_a_slash_are_no_change(after):
    assert attach_changes(listing(ONE, TWO), listing(*after)) == {}


def test_an_engine_may_move_from_one_pool_to_another():
    before = listing(ONE, TWO)
    chat, code = before.pools
    moved = msgspec.structs.replace(code, engine=msgspec.structs.replace(code.engine, attach=(f"http://{TWO}",)))
    after = msgspec.structs.replace(before, pools=(listing(ONE).pools[0], moved))
    check_live(before, after)
    assert attach_changes(before, after) == {"chat": f"attach: -{TWO}", "code": f"attach: +{TWO}, -10.0.1.1:8000"}
    assert attached(after.pools[1]) == {f"code@{TWO}": f"http://{TWO}"}
    assert attached(chat).keys() == {f"chat@{ONE}", f"chat@{TWO}"}


def test_the_last_engine_stays_or_the_file_is_refused_with_words():
    with pytest.raises(BadInput, match="attach"):
        listing()


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [("health_path", "/ping", "engine"), ("metrics", "llamacpp", "engine"), ("kind", "command", "engine, scaling")],
)
def test_the_rest_of_a_pool_that_attaches_needs_a_new_start(field, value, named):
    before, after = listing(ONE), listing(ONE, TWO)
    chat, code = after.pools
    changed = msgspec.structs.replace(chat, engine=msgspec.structs.replace(chat.engine, **{field: value}))
    with pytest.raises(BadInput, match=rf"found changes in pools.chat \({named}\); allowed while Forebay runs: .*attach"):
        check_live(before, msgspec.structs.replace(after, pools=(changed, code)))


def test_a_pool_whose_engines_are_started_keeps_its_bounds():
    before = decode("pools: {chat: {model: llama-3.1-8b, profile: llama-3.1-8b-h100, engine: {kind: emulated}}}", "f", PROFILES)
    (pool,) = before.pools
    more = msgspec.structs.replace(pool, scaling=msgspec.structs.replace(pool.scaling, max_replicas=9))
    with pytest.raises(BadInput, match=r"pools.chat \(scaling\)"):
        check_live(before, msgspec.structs.replace(before, pools=(more,)))


def test_the_aliases_of_a_tier_may_change():
    before = listing(ONE)
    tiers = (msgspec.structs.replace(before.tiers[0], aliases=("priority",)), *before.tiers[1:])
    check_live(before, msgspec.structs.replace(before, tiers=tiers))
