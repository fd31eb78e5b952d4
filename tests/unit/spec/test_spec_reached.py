"""A pool that serves a model which another one serves to everybody is refused: all its requests would go to that one."""

import pytest

from forebay.spec.decode import BadSpec, decode
from forebay.spec.types import Spec


def spec_of(*pools: str) -> Spec:
    """Each: what is said of it besides its model and an engine of its own."""
    lines = [
        f"  p{number}: {{model: llama, attach: [http://127.0.0.1:{9100 + number}]{', ' + more if more else ''}}}\n"
        for number, more in enumerate(pools)
    ]
    return decode("pools:\n" + "".join(lines), "forebay.yaml", {})


@pytest.mark.parametrize(
    "pools",
    [
        ("", ""),
        ("", "region: eu"),
        ("region: eu", "region: eu"),
        ("", "long_context: {pool: p2, above: 8000}", ""),
        ("adapters: [legal]", ""),
    ],
    ids=["plain", "region-beside-none", "one-region", "long", "adapters-of-the-first"],
)
def test_a_second_pool_that_nothing_can_be_sent_to_is_refused(pools: tuple[str, ...]) -> None:
    """20 of 20 requests went to the first of two pools, and `check` said that all was right."""
    with pytest.raises(BadSpec) as bad:
        spec_of(*pools)
    (problem,) = bad.value.problems
    assert (problem.path, problem.line) == ("pools.p1.model", 3)
    assert "llama, which pools.p0 serves already" in problem.found
    assert "every request for llama goes to p0: put the engines of both into one pool" in problem.hint
    assert "pools.p0.long_context" in problem.hint
    assert "adapters that are asked for by name (pools.p1.adapters)" in problem.hint


@pytest.mark.parametrize(
    "pools",
    [
        ("region: eu", "region: us"),
        ("region: eu", ""),
        ("", "adapters: [legal]"),
        ("long_context: {pool: p1, above: 8000}", ""),
        ("", "region: eu, adapters: [legal]"),
    ],
    ids=["regions", "none-beside-a-region", "adapters", "long", "both"],
)
def test_one_that_something_can_be_sent_to_is_taken(pools: tuple[str, ...]) -> None:
    spec_of(*pools)


def test_a_pool_for_long_requests_may_be_written_first() -> None:
    spec_of("", "long_context: {pool: p0, above: 8000}")


def test_the_region_that_is_written_is_the_pools() -> None:
    """It was read, and kept by no pool: every team was served everywhere."""
    assert [pool.region for pool in spec_of("region: eu", "region: us").pools] == ["eu", "us"]
