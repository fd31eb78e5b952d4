"""What can go wrong goes wrong at every single step of a request's life, one step a world: nothing is left, and no answer lies.

A step is one turn of the event loop: between two of them everything that was ready has run, so there is no other place for a fault to be.
"""

import asyncio

import msgspec
import pytest
from emulated_fleet import CAPACITY, CHAT, body, errors, fleet, text

STEPS_MAX = 400
"""More than any of these requests takes."""
TOKENS = 3
ONE = msgspec.structs.replace(CAPACITY, sequences=1)


def at_step(step, fault):
    """Call ``fault`` before the ``step``-th turn of the loop from now; the list is empty until then."""
    loop = asyncio.get_running_loop()
    turn, seen = type(loop)._run_once, []
    left = [step]

    def counted():
        left[0] -= 1
        if not left[0]:
            seen.append(True)
            fault()
        turn(loop)

    loop._run_once = counted
    return seen


def reset(front):
    """Every connection of every engine breaks off; the engines go on."""
    for engine in front.engines:
        engine.connections.abort()


def kill_busy(front):
    """An engine that has something to do dies; where none has, the first."""
    busy = [engine for engine in front.engines if engine.core.queued]
    (busy or front.engines)[0].die(1, "kill -9")


def leave(front):
    """The client of the request goes."""
    front.clients[-1].close()


def unlist(front):
    """No replica is in the roster any more."""
    roster = front.gateway.roster
    pools = tuple(msgspec.structs.replace(pool, replicas=()) for pool in roster.pools)
    front.gateway.apply(msgspec.structs.replace(roster, version=roster.version + 1, pools=pools))


FAULTS = {"reset": reset, "kill": kill_busy, "leave": leave, "unlist": unlist}
KINDS = {
    "a stream": (body(TOKENS, seed=1), CHAT),
    "a whole answer": (body(TOKENS, stream=False), CHAT),
    "typed events": ({"model": "llama", "input": "a prompt", "max_output_tokens": TOKENS, "stream": True}, "/v1/responses"),
}


def honest(answer, kind):
    """Whether it is whole, or says that it is not."""
    if answer.status != 200:
        return answer.complete and answer.status in {429, 502, 503} and set(answer.json()["error"]) == {"message", "type", "param", "code"}
    if kind == "a whole answer":
        return answer.complete and answer.json()["usage"]["completion_tokens"] == TOKENS
    if kind == "typed events":
        *_, last, nothing = answer.body.split(b"\n\n")
        kind_of_last = last.partition(b"\n")[0].removeprefix(b"event: ").decode()
        return answer.complete and not nothing and kind_of_last in {"response.completed", "response.incomplete", "response.failed", "error"}
    ended = answer.complete and answer.events()[-1] == "[DONE]"
    return ended and (len(errors(answer)) == 1 or len(text(answer).split()) == TOKENS)


def lived(kind, fault, step, waits):
    """One world with the fault at this step; whether the request was still there by then."""
    met = []

    async def test(front):
        what, target = KINDS[kind]
        if waits:
            blocker = await front.asked(body(5), wait_s=0.02)
        client = await front.client()
        task = asyncio.create_task(client.ask(target, what))
        met.append(at_step(step, lambda: FAULTS[fault](front)))
        done, _ = await asyncio.wait([task], timeout=120.0)
        assert done, f"step {step}: no end"
        if fault == "leave" and task.exception() is not None:
            assert isinstance(task.exception(), EOFError | ConnectionError), f"step {step}: {task.exception()!r}"
        else:
            answer = task.result()
            assert fault == "leave" or honest(answer, kind), f"step {step}: {answer.status} {answer.body!r}"
        if waits:
            await asyncio.wait([blocker], timeout=120.0)
        await asyncio.sleep(0.2)
        front.gateway.check()
        assert front.gateway.desk.live == 0, f"step {step}: something is left inside"
        arrived = front.meter.arrived
        assert sum(front.outcomes.values()) == arrived, f"step {step}: {front.outcomes} of {arrived}"
        assert arrived == 1 + waits or (fault == "leave" and arrived == waits), f"step {step}: {arrived} arrived"
        assert not any(engine.core.queued for engine in front.engines), f"step {step}: an engine works for nobody"

    fleet(test, capacity=ONE if waits else CAPACITY, replicas=1 if waits else 2)
    return bool(met[0])


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_step_leaves_nothing_and_no_answer_lies(fault, kind, waits):
    steps = 1
    while lived(kind, fault, steps, waits):
        steps += 1
        assert steps < STEPS_MAX
    assert steps > 10
