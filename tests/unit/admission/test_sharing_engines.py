"""A queue of prompts with one long beginning, in front of engines that share what runs, that don't, and that do sometimes.

The engine here is only memory: blocks of 16 tokens, entered into a table as they are scheduled and counted by holder, as vLLM's are. It
takes whatever is sent, so that what it held too much of is seen.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from forebay.admission.effects import Dispatch, Effect
from forebay.admission.machine import Admission
from forebay.admission.prefixes import Prefix
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

KV_TOKENS = 8000
SYSTEM_TOKENS = 1400
BLOCK_TOKENS = 128
CHAIN = tuple(range(1, SYSTEM_TOKENS // BLOCK_TOKENS + 1))
PAGE_TOKENS = 16
REQUESTS = 100
OUTPUT_TOKENS = (20, 40)


@dataclass
class Paged:
    """``scope``: of the request that is sent first, second…, with whom it shares; None: with nobody."""

    scope: Callable[[int], str | None]
    tells: bool = True
    held: Counter[tuple[str, int]] = field(default_factory=Counter)
    own_tokens: dict[int, int] = field(default_factory=dict)
    of: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)

    def take(self, ticket: int, prompt_tokens: int) -> int:
        """Prompt tokens that it found cached."""
        scope = self.scope(len(self.taken))
        self.taken.append(ticket)
        pages = [] if scope is None else [(scope, page) for page in range(SYSTEM_TOKENS // PAGE_TOKENS)]
        found = sum(self.held[page] > 0 for page in pages) * PAGE_TOKENS
        self.held.update(pages)
        self.of[ticket] = pages
        self.own_tokens[ticket] = prompt_tokens - PAGE_TOKENS * len(pages)
        return found if self.tells else 0

    def let_go(self, ticket: int) -> None:
        self.held -= Counter(self.of.pop(ticket))
        del self.own_tokens[ticket]

    @property
    def tokens(self) -> int:
        return PAGE_TOKENS * len(self.held) + sum(self.own_tokens.values())


def play(engine: Paged, seed: int = 1) -> tuple[int, float, list[float]]:
    """Steps until all are answered, the most that ran at once, and in each step how much of its memory the engine was to hold."""
    chance = random.Random(seed)
    machine = Admission("chat", (Tier("only", 0, 1e6, 1e6),), REQUESTS)
    machine.set_roster(RosterPool("chat", (RosterReplica("r", "http://r", Capacity(KV_TOKENS, 64, 10**6, 1e4, 1e3, 8000)),)), 0.0)
    shapes = {n: Shape(SYSTEM_TOKENS + chance.randint(10, 60), chance.randint(*OUTPUT_TOKENS)) for n in range(REQUESTS)}
    running: dict[int, list[int]] = {}  # ticket → tokens to go, tokens found cached

    def sent(effects: Iterable[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Dispatch)
            shape = shapes[effect.ticket]
            running[effect.ticket] = [shape.output_tokens, engine.take(effect.ticket, shape.prompt_tokens)]

    for ticket, shape in shapes.items():
        sent(machine.arrive(ticket, "only", "t", shape, 0.0, prefix=Prefix((*CHAIN, 1000 + ticket), BLOCK_TOKENS)))
    steps, most, fill = 0, 0, []
    while running:
        steps += 1
        most = max(most, len(running))
        for ticket in list(running):
            machine.first_token(ticket, steps)
            machine.emitted(ticket, 1)
            engine.own_tokens[ticket] += 1
            running[ticket][0] -= 1
        fill.append(engine.tokens / KV_TOKENS)
        for ticket in [ticket for ticket, (left, _) in running.items() if not left]:
            engine.let_go(ticket)
            found = running.pop(ticket)[1]
            sent(machine.finish(ticket, Usage(shapes[ticket].prompt_tokens, shapes[ticket].output_tokens, found), steps))
        if not steps % 16:
            machine.check()
    assert machine.finished_total == REQUESTS
    return steps, most, fill


def over(fill: list[float]) -> float:
    """Share of the steps in which more was to be held than there is."""
    return sum(held > 1.0 for held in fill) / len(fill)


def test_an_engine_that_shares_runs_many_and_is_not_overfilled() -> None:
    in_full, shared = play(Paged(lambda _: "all", tells=False)), play(Paged(lambda _: "all"))
    assert in_full[1] == 5
    assert max(in_full[2]) < 0.3, "most of its memory stands empty"
    assert shared[1] > 25
    assert max(shared[2]) <= 1.0
    assert shared[0] < in_full[0] / 3


def test_an_engine_without_a_prefix_cache_is_as_full_as_ever() -> None:
    _, most, fill = play(Paged(lambda _: None))
    assert most == 5
    assert 0.9 < max(fill) <= 1.0


@pytest.mark.parametrize("seed", range(3))
def test_beginnings_that_often_only_look_the_same_are_hardly_believed(seed: int) -> None:
    """Other tools or another salt stand behind the messages of one in four, and the engine shares nothing of those."""
    chance = random.Random(100 + seed)
    others = {place for place in range(REQUESTS) if chance.random() < 0.25}
    _, _, fill = play(Paged(lambda place: None if place in others else "all"), seed)
    assert over(fill) < 0.05


def test_an_engine_that_stops_sharing_is_overfilled_by_one_generation_of_requests_and_then_not() -> None:
    """That it does not share what was sent is told as that ends."""
    _, most, fill = play(Paged(lambda place: "all" if place < 60 else None))
    assert most > 25
    assert max(fill) > 1.0
    last = max(step for step, held in enumerate(fill) if held > 1.0)
    first = min(step for step, held in enumerate(fill) if held > 1.0)
    assert last - first < 1.5 * OUTPUT_TOKENS[1]
