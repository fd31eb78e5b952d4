"""Three emulated replicas under answers of all lengths, whole and streamed, of which one hangs, pauses, or is slow at some moment."""

import asyncio
import importlib
import random
from pathlib import Path

import pytest

from forebay.gateway.prober import PROBE_REAL_S
from forebay.gateway.silence import HUNG, OVERDUE_S_MIN

HELPERS = Path(__file__).resolve().parents[1] / "unit" / "gateway"
FOUND_S = OVERDUE_S_MIN + PROBE_REAL_S + 28
"""An answer is overdue, some of which are foreseen to take long; a token is waited for; and a sweep each."""


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.syspath_prepend(str(HELPERS))
    return importlib.import_module("emulated_fleet")


@pytest.mark.parametrize("seed", range(12))
def test_hangs_are_found_and_nothing_else_is_taken_for_one(emulated, seed):
    chance = random.Random(seed)
    what = ("hang", "slow", "pause", "hang")[seed % 4]

    async def test(front):
        sick = front.engines[chance.randrange(3)]
        await asyncio.gather(*[front.ask(emulated.body(2, stream=False)) for _ in range(9)])
        tasks, at = [], chance.randrange(30)
        for number in range(120):
            if number == at:
                front.fault(sick, "slow" if what == "slow" else "hang", **({"factor": chance.uniform(4, 25)} if what == "slow" else {}))
                hung_s = front.clock.now_s()
            if number == at + 10 and what == "pause":
                sick.clear_faults()
            tokens, prompt = int(chance.lognormvariate(3.5, 1.0)) + 1, "x" * chance.randrange(20, 4000)
            ask = emulated.completion(min(500, tokens), prompt, stream=chance.random() < (0.2 if seed % 3 else 0.0))
            tasks.append(asyncio.ensure_future(front.ask(ask, emulated.COMPLETIONS)))
            await asyncio.sleep(chance.expovariate(2.5))
        answers = await asyncio.gather(*tasks)
        assert {answer.status for answer in answers} == {200}
        assert not [answer for answer in answers if b"data: " in answer.body and emulated.errors(answer)]
        assert front.outcomes == {"completed": 129}
        out = [event for event in front.sink.events if event.kind == "replica_ejected"]
        if what == "hang":
            assert out[0].at_s - hung_s < FOUND_S
        else:
            assert (out, front.gateway.desk.pools["chat"].silences.found[HUNG]) == ([], 0)

    emulated.fleet(test, replicas=3, seed=seed)
