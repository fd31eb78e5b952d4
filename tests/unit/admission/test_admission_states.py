"""Every sequence of calls, with whole-second times so that events tie, against a model that recomputes everything."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.admission import pump
from forebay.admission.effects import Dispatch, Effect, Requeue
from forebay.admission.machine import NO_REPLICAS_HOLD_S, Admission
from forebay.admission.outcomes import Refusal
from forebay.admission.preempting import PREEMPTIONS_MAX
from forebay.admission.prefixes import Prefix
from forebay.admission.sharing import WHOLE
from forebay.domain.roster import Capacity, Posture, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (
    Tier("batch", rank=2, ttft_s=60, longest_wait_s=700, preemptible=True, min_share=0.2),
    Tier("interactive", rank=0, ttft_s=1, longest_wait_s=4),
    Tier("standard", rank=1, ttft_s=5, longest_wait_s=9, min_share=0.3),
)
RANK = {tier.name: tier.rank for tier in TIERS}
WAIT_S = {tier.name: tier.longest_wait_s for tier in TIERS}
QUEUED_MAX = 6
KV_TOKENS = (60, 90)
CONTEXT_TOKENS = 80
FEW_SKIPS = 2
CHAINS = [(1,), (1, 2), (1, 2, 3), (1, 4), (5, 6, 7)]


@dataclass
class Request:
    """What the model knows of one ticket."""

    tier: str
    shape: Shape
    deadline_s: float
    dispatched_s: float = 0.0
    emitted: int = 0
    expected: int = 0
    prefilling: bool = False
    answered: bool = False
    resumable: bool = False
    """Its answer can be gone on with after the tokens that came out."""
    resumed: int = 0
    requeued: int = 0
    prefix: Prefix | None = None
    spared: int = 0
    excluded: set[str] = field(default_factory=set)
    only: str = ""


class AdmissionStates(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = Admission("chat", TIERS, QUEUED_MAX, {"heavy": 3.0}, resumable=self.more_prompt_tokens)
        self.now_s = 0.0
        self.next_ticket = 0
        self.requests: dict[int, Request] = {}
        self.lanes: dict[str, list[int]] = {"interactive": [], "standard": [], "batch": []}
        self.permits: dict[str, list[int]] = {}
        self.roster: dict[str, Capacity] = {}
        self.ended = 0
        self.came: dict[int, tuple[int, ...]] = {}

    # --- the model -------------------------------------------------------------------------------------------------

    def more_prompt_tokens(self, ticket: int) -> int | None:
        """What the machine asks of those that would give their place up."""
        request = self.requests[ticket]
        if not request.answered:
            return 0
        if ticket not in self.running():  # started in this very call: whoever owns it has not sent it yet
            return None
        return request.emitted if request.resumable else None

    def goes_on_with(self, request: Request, tokens: int) -> None:
        """So many more tokens are prompt to whoever goes on."""
        shape = request.shape
        request.resumed += tokens
        request.shape = msgspec.structs.replace(
            shape,
            prompt_tokens=shape.prompt_tokens + tokens,
            output_tokens=max(1, shape.output_tokens - tokens),
            output_tokens_max=max(1, shape.output_tokens_max - tokens) if shape.output_tokens_max else 0,
        )

    def beside(self, replica: str, tickets: list[int]) -> tuple[int, dict[int, int]]:
        """What these hold together beside their own, and how much less each holds of its own: from scratch, block by block."""
        believed = self.machine._replicas._known[replica].shared.believed
        blocks: dict[int, dict[int, int]] = {}
        for ticket in tickets:
            request = self.requests[ticket]
            if request.prefix is not None:
                chain, tokens = request.prefix
                for value in chain[: (request.shape.prompt_tokens - 1) // tokens]:
                    blocks.setdefault(value, {})[ticket] = tokens
        together, less = 0, dict.fromkeys(tickets, 0)
        for holders in blocks.values():
            if believed and len(holders) > 1:
                copies = 1 + (1 - believed / WHOLE) * (len(holders) - 1)
                together += math.ceil(round(sum(holders.values()) / len(holders) * copies, 6))
                for ticket, tokens in holders.items():
                    less[ticket] += tokens
        return together, less

    def spread(self, ticket: int, less: int = 0) -> list[tuple[int, int]]:
        request = self.requests[ticket]
        count = request.shape.sequences
        left = request.expected - request.emitted
        lefts = [left // count + (1 if number >= count - left % count else 0) for number in range(count)]
        each = request.emitted // count
        first = request.shape.prompt_tokens - less + request.emitted - each * (count - 1)
        return list(zip(lefts, [first] + [each] * (count - 1), strict=True))

    def fits(self, ticket: int, replica: str, exact: bool = True) -> bool:
        """By the budgets; not ``exact``: by worst cases, and with whatever reserve preemptible work may have to leave."""
        request, capacity = self.requests[ticket], self.roster[replica]
        shape, running = request.shape, [t for t in self.permits.get(replica, []) if t != ticket]
        spared = request.tier == "batch" and not exact
        if sum(self.requests[t].shape.sequences for t in running) + shape.sequences > capacity.sequences:
            return False
        if -(-shape.prompt_tokens // shape.prompts) + -(-shape.output_tokens // shape.sequences) > capacity.context_tokens:
            return False
        prefilling = sum(self.requests[t].shape.uncached_tokens - self.requests[t].spared for t in running if self.requests[t].prefilling)
        if prefilling and prefilling + shape.uncached_tokens - request.spared > capacity.prefill_tokens * (0.1 if spared else 1):
            return False
        if not exact:
            worst = sum(self.requests[t].shape.prompt_tokens + self.requests[t].expected for t in running)
            return worst + shape.total_tokens <= capacity.kv_tokens * (0.9 if spared else 1)
        request.emitted, request.expected = 0, shape.output_tokens
        together, less = self.beside(replica, [*running, ticket])
        sequences = [pair for t in [*running, ticket] for pair in self.spread(t, less[t])]
        return self.lockstep_peak(sequences) + together <= capacity.kv_tokens

    @staticmethod
    def lockstep_peak(sequences: list[tuple[int, int]]) -> int:
        steps = range(max(left for left, _ in sequences) + 1)
        return max(sum(cur + step for left, cur in sequences if left >= step) for step in steps)

    def carry_out(self, effects: list[Effect]) -> None:
        sent = [effect.ticket for effect in effects if isinstance(effect, Dispatch)]
        assert len(sent) == len(set(sent)), "sent twice at once"
        for place, effect in enumerate(effects):
            ended = isinstance(effect, Requeue) and effect.ticket in [one.ticket for one in effects[:place]]
            assert not ended, "sent and ended at once: whoever carries it out may end it first"
        for effect in effects:
            if isinstance(effect, Requeue):
                self.gave_up_its_place(effect, effects)
            elif isinstance(effect, Dispatch):
                self.started(effect)
            else:
                request = self.requests[effect.ticket]
                if effect.why is Refusal.NEVER_FITS:
                    assert effect.retry_after_s is None
                else:
                    assert effect.retry_after_s is not None
                    assert 1.0 <= effect.retry_after_s <= 60.0
                if effect.why is Refusal.HOLDER_OUT:
                    assert request.only not in self.roster or request.only in request.excluded, "refused beside its replica"
                if effect.why is Refusal.EXPIRED:
                    assert self.now_s >= request.deadline_s
                if effect.why in {Refusal.QUEUE_FULL, Refusal.DISPLACED}:
                    assert sum(map(len, self.lanes.values())) > QUEUED_MAX
                    # What was sent back waits over the bound already: its going would let nobody in.
                    below = [
                        ticket
                        for tier, others in self.lanes.items()
                        for ticket in others
                        if RANK[tier] > RANK[request.tier] and not (self.requests[ticket].requeued or self.requests[ticket].excluded)
                    ]
                    assert not below, "shed while something less important waited"
                self.lanes[request.tier].remove(effect.ticket)
                del self.requests[effect.ticket]
                self.ended += 1

    def started(self, effect: Dispatch) -> None:
        request = self.requests[effect.ticket]
        held = self.machine._replicas.posture is Posture.HOLD_PREEMPTIBLE
        assert not (held and request.tier == "batch"), "started though it is held back for an event"
        assert effect.ticket in self.lanes[request.tier], "started, and did not wait: twice, or ended"
        assert effect.replica_id in self.roster, "dispatched to a replica that isn't in the roster"
        assert effect.replica_id not in request.excluded, "dispatched again to a replica that failed it"
        assert request.only in ("", effect.replica_id), "dispatched to another replica than the only one that can serve it"
        assert self.now_s <= request.deadline_s, "started after it should have expired"
        request.spared = self.machine._tickets[effect.ticket].spared
        assert 0 <= request.spared <= max(0, request.shape.uncached_tokens - 1)
        if request.spared:
            assert request.prefix is not None, "nobody was to look"
            others = {chain[0] for other, chain in self.came.items() if other != effect.ticket}
            assert request.prefix.chain[0] in others or request.requeued or request.excluded, "cached, and nobody came with it"
        assert self.fits(effect.ticket, effect.replica_id), "over a budget at admission"
        self.lanes[request.tier].remove(effect.ticket)
        self.permits.setdefault(effect.replica_id, []).append(effect.ticket)
        request.dispatched_s, request.prefilling = self.now_s, request.shape.uncached_tokens > 0
        request.emitted, request.expected = 0, request.shape.output_tokens

    def gave_up_its_place(self, effect: Requeue, effects: list[Effect]) -> None:
        request = self.requests[effect.ticket]
        assert effect.ticket in self.permits[effect.replica_id], "requeued, and did not run there"
        assert request.tier == "batch", "only what is preemptible gives its place up"
        assert not request.answered or request.resumable, "something of its answer is with the client, and nobody can go on with it"
        assert effect.more_prompt_tokens == (request.emitted if request.answered else 0), "a token is lost, or out twice"
        takers = [one for one in effects if isinstance(one, Dispatch) and self.requests[one.ticket].tier != "batch"]
        there = any(one.replica_id == effect.replica_id for one in takers)
        # What has not begun is also taken back where somebody took the last clear replica elsewhere.
        assert there or (takers and not request.answered), "given up for nobody"
        request.requeued += 1
        assert request.requeued <= PREEMPTIONS_MAX
        self.end_permit(effect.ticket)
        self.goes_on_with(request, effect.more_prompt_tokens)
        request.deadline_s = self.now_s + request.deadline_s - request.dispatched_s
        request.prefilling = False
        self.lanes["batch"].append(effect.ticket)

    def prefilling_beside(self, replica: str) -> bool:
        return any(self.requests[t].prefilling for other in self.roster if other != replica for t in self.permits.get(other, []))

    def replica_of(self, ticket: int) -> str:
        return next(replica for replica, tickets in self.permits.items() if ticket in tickets)

    def running(self) -> list[int]:
        return [ticket for tickets in self.permits.values() for ticket in tickets]

    def end_permit(self, ticket: int) -> None:
        self.permits[self.replica_of(ticket)].remove(ticket)
        self.requests[ticket].spared = 0

    # --- calls -----------------------------------------------------------------------------------------------------

    @initialize(replicas=st.integers(0, 3))
    def start(self, replicas: int) -> None:
        self.use_roster(set(range(replicas)), 90, 4, Posture.OPEN, None)

    @rule(
        replicas=st.sets(st.integers(0, 3)),
        kv_tokens=st.sampled_from(KV_TOKENS),
        sequences=st.integers(2, 4),
        posture=st.sampled_from([Posture.OPEN, Posture.OPEN, *Posture]),
        ready_in_s=st.none() | st.integers(0, 8),
    )
    def use_roster(self, replicas: set[int], kv_tokens: int, sequences: int, posture: Posture, ready_in_s: int | None) -> None:
        capacity = Capacity(kv_tokens, sequences, 40, 100.0, 20.0, CONTEXT_TOKENS)
        self.roster = {f"r{number}": capacity for number in sorted(replicas)}
        listed = tuple(RosterReplica(replica, f"http://{replica}", capacity) for replica in self.roster)
        self.carry_out(self.machine.set_roster(RosterPool("chat", listed, posture, ready_in_s), self.now_s))

    @rule(
        tier=st.sampled_from(["interactive", "standard", "batch"]),
        team=st.sampled_from(["light", "heavy", "other"]),
        prompt=st.integers(1, 60),
        output=st.integers(1, 40),
        cached=st.integers(0, 60),
        count=st.sampled_from([1, 1, 1, 2, 5]),
        capped=st.booleans(),
        listed=st.booleans(),
        prefix=st.none() | st.builds(Prefix, st.sampled_from(CHAINS), st.integers(1, 20)),
        only=st.sampled_from(["", "", "r0", "r1", "r3"]),
    )
    def arrive(
        self,
        tier: str,
        team: str,
        prompt: int,
        output: int,
        cached: int,
        count: int,
        capped: bool,
        listed: bool,
        prefix: Prefix | None,
        only: str,
    ) -> None:
        ticket, self.next_ticket = self.next_ticket, self.next_ticket + 1
        shape = Shape(prompt, output, min(cached, prompt), output + 10 if capped else 0, count, 0, count if listed else 1)
        self.requests[ticket] = Request(tier, shape, self.now_s + WAIT_S[tier], expected=output, prefix=prefix, only=only)
        self.lanes[tier].append(ticket)
        if prefix is not None:
            self.came[ticket] = prefix.chain
        self.carry_out(self.machine.arrive(ticket, tier, team, shape, self.now_s, prefix=prefix, only=only))

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.running()))
        self.requests[ticket].prefilling = False
        self.requests[ticket].answered = True
        self.carry_out(self.machine.first_token(ticket, self.now_s))

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def answered(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.running()))
        self.requests[ticket].answered = True
        self.machine.answered(ticket)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), exact=st.booleans())
    def may_be_gone_on_with(self, data: st.DataObject, exact: bool) -> None:
        """From now on, or not any more; answers of several choices never may."""
        request = self.requests[data.draw(st.sampled_from(self.running()))]
        request.resumable = exact and request.shape.sequences == 1

    @precondition(lambda self: self.running())
    @rule(data=st.data(), tokens=st.integers(1, 30))
    def emit(self, data: st.DataObject, tokens: int) -> None:
        ticket = data.draw(st.sampled_from(self.running()))
        request = self.requests[ticket]
        self.machine.emitted(ticket, tokens)
        request.emitted += tokens
        if request.emitted > request.expected:
            request.expected = request.emitted + max(16, request.emitted // 2)
            if request.shape.output_tokens_max:
                request.expected = max(request.emitted, min(request.expected, request.shape.output_tokens_max))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), prompt=st.integers(0, 60), output=st.integers(0, 60), cached=st.integers(0, 60))
    def finish(self, data: st.DataObject, prompt: int, output: int, cached: int) -> None:
        ticket = data.draw(st.sampled_from(self.running()))
        self.end_permit(ticket)
        self.ended += 1
        self.carry_out(self.machine.finish(ticket, Usage(prompt, output, min(cached, prompt)), self.now_s))

    @precondition(lambda self: self.roster)
    @rule(data=st.data(), steps=st.sampled_from([0, WHOLE // 2, WHOLE - 3, WHOLE, WHOLE, WHOLE]))
    def is_found_to_share(self, data: st.DataObject, steps: int) -> None:
        """Or not to, while requests run there that were counted the other way."""
        self.machine._replicas._known[data.draw(st.sampled_from(list(self.roster)))].believe(steps)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        queued = [ticket for lane in self.lanes.values() for ticket in lane]
        ticket = data.draw(st.sampled_from(queued + self.running() + [self.next_ticket]))
        if ticket in queued:
            self.lanes[self.requests[ticket].tier].remove(ticket)
        elif ticket in self.running():
            self.end_permit(ticket)
        self.ended += ticket in self.requests and ticket != self.next_ticket
        self.carry_out(self.machine.abandon(ticket, self.now_s))
        assert self.machine.abandon(ticket, self.now_s) == []

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.running()))
        request = self.requests[ticket]
        request.excluded.add(self.replica_of(ticket))
        request.deadline_s = self.now_s + request.deadline_s - request.dispatched_s
        self.end_permit(ticket)
        self.lanes[request.tier].append(ticket)
        more_tokens = request.emitted if request.answered and request.resumable else 0
        self.goes_on_with(request, more_tokens)
        self.carry_out(self.machine.retry(ticket, self.now_s, more_tokens))

    @rule(seconds=st.integers(1, 12))
    def pass_time(self, seconds: int) -> None:
        until_s = self.now_s + seconds
        while (due_s := self.machine.next_deadline_s()) is not None and due_s < until_s:
            self.now_s = max(self.now_s, due_s)
            self.carry_out(self.machine.advance(self.now_s))
            after_s = self.machine.next_deadline_s()
            assert after_s is None or after_s > self.now_s, "a deadline that has come is still ahead"
        self.now_s = until_s
        self.carry_out(self.machine.advance(self.now_s))
        self.carry_out(self.machine.foresee(self.now_s))

    # --- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def consistent(self) -> None:
        self.machine.check()

    @invariant()
    def what_waits_is_whole_again(self) -> None:
        """What was foreseen to be cached where it ran says nothing of where it will run."""
        for lane in self.lanes.values():
            for ticket in lane:
                entry = self.machine._tickets[ticket]
                assert (entry.uncached, entry.spared) == (self.requests[ticket].shape.uncached_tokens, 0)

    @invariant()
    def what_several_hold_is_counted_once(self) -> None:
        """As far as the engine is believed to share it, and whoever came and went before."""
        told = {load.replica: load.kv_tokens for load in self.machine.load(self.now_s)[1]}
        for replica, tickets in self.permits.items():
            if tickets:
                together, less = self.beside(replica, tickets)
                own = sum(self.requests[t].shape.prompt_tokens - less[t] + self.requests[t].emitted for t in tickets)
                assert told[replica] == own + together

    @invariant()
    def what_is_gone_on_with_is_known(self) -> None:
        """By the machine as by the model: nothing of an answer is asked for twice."""
        for ticket, entry in self.machine._tickets.items():
            request = self.requests[ticket]
            assert (entry.resumed, entry.prompt, entry.output) == (
                request.resumed,
                request.shape.prompt_tokens,
                request.shape.output_tokens,
            )

    @invariant()
    def conserved(self) -> None:
        machine = self.machine
        queued = sum(map(len, self.lanes.values()))
        assert machine.finished_total + machine.refused_total + machine.abandoned_total == self.ended
        assert machine.arrived_total == queued + len(self.running()) + self.ended
        lanes, replicas = machine.load(self.now_s)
        assert {load.tier: load.waiting for load in lanes} == {tier: len(lane) for tier, lane in self.lanes.items()}
        assert {load.replica: load.streams for load in replicas if load.streams} == {r: len(p) for r, p in self.permits.items() if p}

    @invariant()
    def work_conserving(self) -> None:
        """Nothing that is looked at waits beside room, unless somebody must not be passed or space is kept."""
        waiting = self.machine._waiting
        first = waiting.first(self.now_s)
        looked_at = [] if first is None else [first, *waiting.after(first, self.now_s)]
        if any(entry.skips >= FEW_SKIPS for entry in looked_at):
            return
        for entry in looked_at:
            for replica in self.roster:
                request = self.requests[entry.id]
                waits_for_a_clear_one = request.tier == "batch" and self.prefilling_beside(replica)
                may = replica not in request.excluded and request.only in ("", replica)
                if may and not waits_for_a_clear_one:
                    assert not self.fits(entry.id, replica, exact=False), f"{entry.id} fits and waits"

    @invariant()
    def skips_are_bounded(self) -> None:
        """No one is passed for ever: by so many at most, and then space is kept for it or nobody passes."""
        for lane in self.lanes.values():
            for ticket in lane:
                assert self.machine._tickets[ticket].skips <= FEW_SKIPS

    @invariant()
    def the_lowest_counter_is_not_passed_over(self) -> None:
        """Whoever goes next in a lane is of the team that was given least."""
        for lane in self.machine._lanes:
            if lane.waiting:
                head = lane.order.head(self.now_s)
                least = min((account.counter for account in lane.order.accounts.values() if account.waiting), default=None)
                assert head.returned or head.account.counter == least

    @invariant()
    def nobody_waits_for_what_is_not_there(self) -> None:
        """Who can be served by one replica alone waits only while that is in the roster, and has not failed it."""
        for lane in self.lanes.values():
            for request in [self.requests[ticket] for ticket in lane if self.requests[ticket].only]:
                assert request.only in self.roster
                assert request.only not in request.excluded

    @invariant()
    def someone_will_look(self) -> None:
        """While anything waits there is a deadline, and without replicas it isn't later than the hold."""
        due_s = self.machine.next_deadline_s()
        waiting = [self.requests[ticket].deadline_s for lane in self.lanes.values() for ticket in lane]
        assert (due_s is None) == (not waiting)
        if due_s is not None:
            assert self.machine.quiet_until_s() <= due_s
            assert due_s <= max(min(waiting), self.now_s + NO_REPLICAS_HOLD_S)


@pytest.fixture(autouse=True)
def few_skips() -> Iterator[None]:
    """So that thirty steps are enough to use them up; and everybody is looked at each time."""
    usual = pump.SKIPS_MAX, pump.PAUSES_MAX
    pump.SKIPS_MAX, pump.PAUSES_MAX = FEW_SKIPS, 0
    yield
    pump.SKIPS_MAX, pump.PAUSES_MAX = usual


TestAdmissionStates = AdmissionStates.TestCase
TestAdmissionStates.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
