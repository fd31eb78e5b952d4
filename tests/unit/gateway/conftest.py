"""A gateway over fake engines in a virtual world."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from gateway_front import Front, started
from gateway_values import CAPACITY, SPEC, TEAMS

from forebay.domain.roster import Capacity
from forebay.spec.types import Spec
from forebay.testing.fake_engine import Script
from forebay.testing.loop import run


@pytest.fixture
def world():
    """``world(test, *scripts, …)``: run ``test(front)`` in a virtual world with one engine per script, and look that nothing is left."""

    def go(test: Callable[[Front], Awaitable[None]], *scripts: Script, seed: int | None = None, **options: object) -> None:
        async def main() -> None:
            front = await started(*scripts, **options)
            await test(front)
            await front.finish()

        run(main, seed)

    return go


@pytest.fixture
def spec() -> Spec:
    """Without teams."""
    return SPEC


@pytest.fixture
def team_spec() -> Spec:
    """With two teams."""
    return msgspec.structs.replace(SPEC, teams=TEAMS)


@pytest.fixture
def one_slot() -> Capacity:
    """Room for one request at a time."""
    return msgspec.structs.replace(CAPACITY, sequences=1)
