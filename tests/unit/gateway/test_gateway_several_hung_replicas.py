"""A gateway's last replica hangs, stalls, or answers wrong, while another gateway has more: its clients are served there, and it is probed back."""

import asyncio

import pytest
from emulated_fleet import CHAT, COMPLETIONS, body, completion, errors, text, without_time
from several_gateways import BODY, several
from test_gateway_several import engines, whole
from test_gateway_several_continues import billed, emulated

from forebay.admission.outcomes import Refusal
from forebay.admission.outliers import EJECT_S, FAILURES_IN_A_ROW
from forebay.admission.pump import NO_REPLICAS_HOLD_S
from forebay.emulator.faults import Fault, Kind
from forebay.gateway.prober import PROBE_REAL_S
from forebay.gateway.silence import OVERDUE_S_MIN

FOUND_S = OVERDUE_S_MIN + PROBE_REAL_S + 3
"""By then a replica that hangs is out: an answer is overdue, a token is waited for, and a sweep each."""
STALL_S = 7
"""As above of one whose streams get nothing."""
USAGE = {"stream_options": {"include_usage": True}}
HANG = Fault(Kind("hang"))


def of_whole(tokens=20, **fields):
    return body(tokens, stream=False, **fields)


def asked(world, name, request, target=CHAT):
    return asyncio.ensure_future(world.ask(name, request, target=target))


async def warm(world):
    """Each has answered something, and each gateway knows how the other is."""
    for name in "ab":
        assert (await world.ask(name, of_whole(2))).headers["x-forebay-replica"] == {"a": "r0", "b": "r1"}[name]


def test_whole_answers_of_a_gateways_only_replica_come_from_another_gateway():
    """They were told 504 after ten minutes, and so were all that came in that time."""

    async def test(world):
        await warm(world)
        world.engines[0].inject(HANG)
        hung_s = world.clock.now_s()
        tasks = []
        for _ in range(40):
            tasks.append(asked(world, "a", of_whole(20)))
            await world.beats(1)
        answers = await asyncio.gather(*tasks)
        assert {(answer.status, answer.headers.get("x-forebay-gateway")) for answer in answers} == {(200, "b")}
        ((out_s, why),) = world.told("a", "replica_ejected")
        assert out_s - hung_s < FOUND_S
        assert "due from it, and it gives no sign of life" in why
        assert world.meter("a").retries < FOUND_S, "what comes later is forwarded, and not tried here first"
        assert (world.outcomes("a"), world.outcomes("b")) == ({"completed": 1, "moved": 40}, {"completed": 41})
        assert billed(world) == {"a": 1, "b": 41}
        world.engines[0].clear_faults()
        await world.beats(60)
        assert [message for _, message in world.told("a", "replica_readmitted")] == ["r0 answers again"]
        assert "x-forebay-gateway" not in (await world.ask("a", of_whole(2))).headers

    emulated(test, "a", "b")


@pytest.mark.parametrize(("target", "request_"), [(CHAT, body(**USAGE)), (COMPLETIONS, completion(**USAGE))], ids=["chat", "completion"])
def test_a_stream_whose_only_replica_stalls_goes_on_at_another_gateway_as_if_nothing_had_been(target, request_):
    """It went on after the idle time of its tier."""

    async def test(world):
        undisturbed = await world.ask("a", request_, target=target)
        streams_ = [asked(world, "a", request_, target) for _ in range(4)]
        await asyncio.sleep(0.3)
        world.engines[0].inject(HANG)
        stalled_s = world.clock.now_s()
        await world.beats(STALL_S + 4)
        for cut in await asyncio.gather(*streams_):
            assert cut.complete
            assert errors(cut) == []
            assert text(cut) == text(undisturbed)
            assert without_time(cut)[-3:] == without_time(undisturbed)[-3:]
        ((out_s, _),) = world.told("a", "replica_ejected")
        assert out_s - stalled_s <= STALL_S
        assert (world.outcomes("a"), world.outcomes("b")) == ({"completed": 5}, {})
        assert billed(world) == {"a": 5, "b": 0}
        assert world.meter("a").continued == 4

    emulated(test, "a", "b")


def test_streams_cut_while_nothing_is_in_routing_do_not_wait_for_a_replica_to_come_back():
    """Those after the third, which ejects the last replica, were kept in its lane until somebody was in routing again, or for 15 s."""

    async def test(world):
        streams_ = [await world.under_way(body(100)) for _ in range(8)]
        world.engines[0].inject(Fault(Kind("cut")))
        cut_s = world.clock.now_s()
        assert [errors(cut) for cut in await asyncio.gather(*streams_)] == [[]] * 8
        assert world.clock.now_s() - cut_s < 3.0

    emulated(test, "a", "b")


def test_where_the_last_replica_of_every_gateway_hangs_requests_wait_and_are_refused_as_where_nobody_listens():
    async def test(world):
        await warm(world)
        for number, name in ((1, "b"), (0, "a")):
            world.engines[number].inject(HANG)
            kept = asked(world, name, of_whole(20))
            await world.beats(FOUND_S + 2)
            assert len(world.told(name, "replica_ejected")) == 1
        assert not kept.done(), "there is nobody to take it"
        new = [asked(world, name, of_whole(20)) for name in "ab"]
        await world.beats(NO_REPLICAS_HOLD_S + 2)
        answers = [task.result() for task in new]
        assert [(each.status, each.json()["error"]["code"]) for each in answers] == [(503, "no_replicas")] * 2
        assert all(1 <= int(each.headers["retry-after"]) <= 60 for each in answers)
        await world.beats(120)
        world.engines[1].clear_faults()
        waiting = [asked(world, name, of_whole(20)) for name in "ab"]
        await world.beats(EJECT_S + PROBE_REAL_S + 4)
        assert [task.result().status for task in waiting] == [200, 200], "it is looked for every few seconds"
        assert kept.result().headers["x-forebay-gateway"] == "b", "what was kept goes on as soon as there is a place"

    emulated(test, "a", "b")


def test_what_was_forwarded_to_it_goes_back_to_who_forwarded_it():
    """It is forwarded only once, so it hung there for its whole time, though the other gateway had a replica."""

    async def test(world):
        await warm(world)
        world.lease("a", "")
        task = asked(world, "b", of_whole(100))
        await world.beats(1)
        world.engines[0].inject(HANG)
        world.lease("a", "b")
        await world.beats(2 * FOUND_S)
        answer = task.result()
        assert (answer.status, answer.headers["x-forebay-replica"], "x-forebay-gateway" in answer.headers) == (200, "r1", False)
        assert (world.outcomes("a"), world.outcomes("b")) == ({"completed": 1}, {"completed": 2, "moved": 1})
        assert world.meter("a").shed[Refusal.HANDED_BACK] == 1
        assert billed(world) == {"a": 1, "b": 2}, "counted once, where it was answered"

    emulated(test, "a", "b")


def test_one_that_waits_out_a_pause_lives_though_its_gateway_has_no_other():
    async def test(world):
        await warm(world)
        task = asked(world, "a", of_whole(100))
        await world.beats(1)
        world.engines[0].inject(HANG)
        await world.beats(OVERDUE_S_MIN)
        world.engines[0].clear_faults()
        await world.beats(3)
        assert (await task).headers["x-forebay-replica"] == "r0"
        assert world.told("a", "replica_ejected") == []

    emulated(test, "a", "b")


async def fails(seen, answer):
    answer.json(500, {"error": {"message": "draining", "type": "server_error", "code": None}})


def test_where_its_only_replica_fails_everything_a_gateway_stops_trying_it_first():
    """Each request paid for a try there, for ever: a pool of one ejected none."""

    async def test(world):
        world.lease("a", "b")
        for _ in range(10):
            assert (await world.ask("a")).headers["x-forebay-gateway"] == "b"
        assert (engines(world), world.meter("a").retries) == ([FAILURES_IN_A_ROW, 10], FAILURES_IN_A_ROW)
        assert world.told("a", "replica_ejected")[0][1].endswith("The engine answered 500.")
        await world.beats(EJECT_S + 2)
        assert engines(world)[0] == FAILURES_IN_A_ROW + 1, "its probe"
        assert (await world.ask("a")).headers["x-forebay-gateway"] == "b"
        assert world.outcomes("a") == {"moved": 11}

    several(test, fails, whole)


def test_where_everything_fails_each_is_told_so_soon_and_something_stays_in_routing():
    async def test(world):
        world.lease("a", "b")
        for _ in range(60):
            for name in "ab":
                task, asked_s = asked(world, name, BODY), world.clock.now_s()
                while not task.done():
                    await world.beats(1)
                answer = task.result()
                assert (answer.status, answer.json()["error"]["code"]) in {(503, "no_replicas"), (503, "engines_failed")}
                assert world.clock.now_s() - asked_s <= 2.0
            assert any(gateway.desk.pools["chat"].routed for gateway in world.gateways.values())

    several(test, fails, fails)


def test_two_gateways_that_take_out_their_last_at_one_instant_take_them_back():
    async def test(world):
        world.lease("a", "b")
        flips = []
        for _ in range(120):
            for gateway in world.gateways.values():
                pool = gateway.desk.pools["chat"]
                for _ in range(FAILURES_IN_A_ROW):
                    gateway.desk.failed(pool, pool.roster.replicas[0].id, "500")
            flips.append(not any(gateway.desk.pools["chat"].routed for gateway in world.gateways.values()))
            await world.beats(1)
            assert any(gateway.desk.pools["chat"].routed for gateway in world.gateways.values())
        assert 1 <= sum(flips) <= 6, "ever more seldom"

    several(test, fails, fails)


def test_a_gateway_whose_all_are_out_is_forwarded_nothing():
    async def test(world):
        world.lease("a", "b")
        outliers = world.gateways["b"].desk.pools["chat"].outliers
        world.gateways["b"].desk.failed(world.gateways["b"].desk.pools["chat"], "r1", "refused", gone=True)
        assert outliers.out == ["r1"]
        world.heard("a")
        for _ in range(FAILURES_IN_A_ROW + 1):
            answer = await world.ask("a")
            assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert engines(world) == [FAILURES_IN_A_ROW + 1, 0], "and its own stays in routing: there is no other"

    several(test, fails, whole)
