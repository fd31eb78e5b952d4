"""Both sides of the shares in one small world: however links, processes and clocks fail, all gateways let in no more than one would.

Time passes in quarters of a second; gateways have clocks of their own, which differ in pace and in what they show. The judge is one
bucket of each limit per minute, from which everything that any gateway lets in is taken: it never runs dry. In flight at once is at most
the limit, but for what gateways have that were taken for lost. Assumed is what is of leases: who can't reach the controller can ask the others.
"""

import itertools
import math
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.admission.lessee import Ask, Lessee, State
from forebay.admission.quotas import PER_MINUTE, Cap
from forebay.admission.shares import Shares
from forebay.domain.roster import SharesGiven
from forebay.domain.shape import Usage
from forebay.gateway.shared_limits import SharedLimits
from forebay.spec.types import TeamLimits

LEASE_S = 15.0
TICK_S = 0.25
LATENCIES_S = (0.25, 1.5)
NAMES = ("a", "b", "c")
PACES = (0.9, 1.0, 1.1)
TEAM = "team"
SETTLED_S = 90.0
"""A lease, a witness, and a turn."""
MOVES_S = 10
LATE_S = 4.0
LIMITS = (
    TeamLimits(requests_per_minute=60, tokens_per_minute=3000, requests_in_flight=9, tokens_in_flight=700),
    TeamLimits(requests_per_minute=60, tokens_per_minute=3000),
    TeamLimits(requests_in_flight=9, tokens_in_flight=700),
    TeamLimits(requests_per_minute=7, tokens_per_minute=100, requests_in_flight=1, tokens_in_flight=90),
)
SIZES = (1, 20, 60)


class Bucket:
    """What one gateway alone might let in, by the fastest of the clocks."""

    def __init__(self, limit, pace):
        self.limit, self.left, self.at_s, self.pace = limit, float(limit), 0.0, pace

    def take(self, units, now_s):
        self.left = min(self.limit, self.left + (now_s - self.at_s) * self.limit / 60 * self.pace)
        self.at_s = now_s
        self.left -= units
        assert self.left >= -1e-6, f"{-self.left} units over a limit of {self.limit} a minute were let in"


class Gateway:
    """A process, its clock, its connection, and what is inside."""

    def __init__(self, name, pace, latency_s, limits):
        self.name, self.pace, self.offset_s = name, pace, 1000.0 * pace
        self.latency_s = latency_s
        self.limits = limits
        self.alive = False
        self.stopped_until_s = 0.0
        self.up, self.late = deque(), deque()
        """Late: sent by an earlier connection, and not read yet."""
        self.begin()

    def begin(self):
        """A new process."""
        self.lessee = Lessee()
        self.quotas = {}
        self.shares = SharedLimits(self.quotas)
        self.shares.begin(self.offset_s)
        self.quotas[TEAM] = self.shares.quota(self.limits)
        self.inside = []
        """[tokens, ends at, whether its gateway was taken for lost]"""
        self.hang_up()

    @property
    def quota(self):
        return self.quotas[TEAM]

    def hang_up(self):
        self.late.extend(self.up)
        self.up, self.down = deque(), deque()
        self.linked = False

    def has(self, cap):
        """Its share, or what is in flight of a larger one."""
        quota = self.quota
        used = {Cap.REQUESTS_IN_FLIGHT: quota.in_flight, Cap.TOKENS_IN_FLIGHT: quota.tokens_in_flight}.get(cap, 0)
        return max(quota.shares.get(cap, 0), used)

    def local_s(self, now_s):
        return self.offset_s + now_s * self.pace

    def is_good(self, now_s):
        return self.alive and self.local_s(now_s) < self.shares._hold.until_s


class World(RuleBasedStateMachine):
    """One controller, two or three gateways, one team."""

    @initialize(
        count=st.integers(2, 3),
        paces=st.tuples(*[st.sampled_from(PACES)] * 3),
        latencies_s=st.tuples(*[st.sampled_from(LATENCIES_S)] * 3),
        limits=st.sampled_from(LIMITS),
    )
    def begin(self, count, paces, latencies_s, limits):
        self.now_s = 0.0
        self.limits = limits
        named = zip(NAMES[:count], paces, latencies_s, strict=False)
        self.gateways = {name: Gateway(name, pace, latency_s, limits) for name, pace, latency_s in named}
        for gateway in self.gateways.values():
            gateway.alive = True
        pace = max(gateway.pace for gateway in self.gateways.values())
        self.judges = {cap: Bucket(cap.of(limits), pace) for cap in PER_MINUTE if cap.of(limits)}
        self.cut = set()
        self.load = dict.fromkeys(self.gateways, (1, 20))
        self.stored = None
        self.sizes = itertools.cycle(SIZES)
        self.controller_stopped_until_s = 0.0
        self.start_controller()

    def start_controller(self):
        self.leader = Shares(LEASE_S, self.stored, len(self.gateways), self.now_s)
        self.stepped_s = self.now_s

    # -- time -----------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.25, 1.0, 3.0, 10.0, 40.0)))
    def pass_time(self, seconds):
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += TICK_S
            for gateway in self.gateways.values():
                if gateway.alive and self.now_s >= gateway.stopped_until_s:
                    self.within_limits()
                    self.clients_ask(gateway)  # before any timer of a process that was stopped
                    self.gateway_ticks(gateway)
            if self.leader is not None and self.now_s >= self.controller_stopped_until_s:
                self.controller_ticks()
            self.within_limits()

    def clients_ask(self, gateway):
        local_s = gateway.local_s(self.now_s)
        for request in [request for request in gateway.inside if request[1] <= self.now_s]:
            gateway.inside.remove(request)
            gateway.quota.give_back(request[0], Usage(request[0], 0), 1.0, local_s, served=True)
        count, tokens = self.load[gateway.name]
        for _ in range(count):
            if gateway.quota.take(tokens, local_s) is None:
                gateway.inside.append([tokens, self.now_s + next(self.sizes) / 3, False])
                for cap, judge in self.judges.items():
                    judge.take(1 if cap is Cap.REQUESTS_PER_MINUTE else tokens, self.now_s)

    def renew(self, gateway, local_s):
        yielded = gateway.lessee.state is State.YIELDED
        gateway.shares.good_until(gateway.lessee.until_s, LEASE_S, local_s, yielded=yielded)

    def gateway_ticks(self, gateway):
        local_s = gateway.local_s(self.now_s)
        self.carry_out(gateway, gateway.lessee.advance(local_s))
        if self.leader is None or gateway.name in self.cut:
            gateway.hang_up()
            return
        if not gateway.linked:
            gateway.hang_up()
            gateway.linked = True
            gateway.hello_s = local_s
            gateway.shares.greets(local_s)
            gateway.up.append((self.now_s, "hello", local_s, None))
            self.report(gateway, local_s)
        elif local_s - gateway.said_s >= 1.0:
            self.report(gateway, local_s)
        while gateway.down and gateway.down[0][0] + gateway.latency_s <= self.now_s:
            _, kind, said_s, given = gateway.down.popleft()
            if kind == "heard":
                gateway.shares.given(given, said_s, LEASE_S, local_s)
            self.carry_out(gateway, gateway.lessee.renewed(said_s if kind == "heard" else gateway.hello_s, LEASE_S, local_s))
            self.within_limits()

    def report(self, gateway, local_s):
        gateway.said_s = local_s
        gateway.up.append((self.now_s, "snapshot", local_s, gateway.shares.report(local_s)))

    def carry_out(self, gateway, effects):
        for effect in effects:
            if isinstance(effect, Ask):
                local_s = gateway.local_s(self.now_s)
                others = [other for other in self.gateways.values() if other is not gateway]
                self.carry_out(gateway, gateway.lessee.asked([other.name for other in others], local_s))
                for other in others:
                    if other.alive and self.now_s >= other.stopped_until_s:
                        ago_s = other.local_s(self.now_s) - other.lessee.renewed_s
                        self.carry_out(gateway, gateway.lessee.told(other.name, ago_s, local_s))
        self.renew(gateway, gateway.local_s(self.now_s))

    def controller_ticks(self):
        if self.now_s - self.stepped_s >= 1.0:  # as timers of one that was stopped: before its mail
            self.stepped_s = self.now_s
            self.leader.look(self.now_s)
            self.stored = self.leader.holders()
        for gateway in self.gateways.values():
            while gateway.late and gateway.late[0][0] + LATE_S <= self.now_s:
                _, kind, said_s, used = gateway.late.popleft()
                if kind == "hello":
                    self.leader.joined(gateway.name, said_s, self.now_s)
                else:
                    self.leader.heard(gateway.name, used, self.now_s)
            while gateway.up and gateway.up[0][0] + gateway.latency_s <= self.now_s:
                _, kind, said_s, used = gateway.up.popleft()
                if kind == "hello":
                    self.leader.joined(gateway.name, said_s, self.now_s)
                    gateway.down.append((self.now_s, "roster", said_s, None))
                else:
                    given = self.leader.heard(gateway.name, used, self.now_s)
                    gateway.down.append((self.now_s, "heard", said_s, given))
                self.stored = self.leader.holders()

    # -- what goes wrong --------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def cut_off(self, name):
        if name in self.gateways:
            self.cut.add(name)
            self.gateways[name].hang_up()

    @rule()
    def cut_off_all(self):
        for name in self.gateways:
            self.cut_off(name)

    @rule()
    def heal(self):
        self.cut.clear()

    @rule(name=st.sampled_from(NAMES))
    def heal_one(self, name):
        self.cut.discard(name)

    @rule(name=st.sampled_from(NAMES), seconds=st.sampled_from((1.0, 8.0, 12.0, 60.0)))
    def stop_for_a_while(self, name, seconds):
        # Never all at once: one that is cut off then has nobody to ask.
        if name in self.gateways and all(self.now_s >= other.stopped_until_s and other.alive for other in self.gateways.values()):
            self.gateways[name].stopped_until_s = self.now_s + seconds

    @rule(name=st.sampled_from(NAMES))
    def crash(self, name):
        others = [one for one in self.gateways.values() if one.alive and one.name != name and self.now_s >= one.stopped_until_s]
        if name in self.gateways and others:
            self.gateways[name].alive = False
            self.gateways[name].begin()

    @rule()
    def restart_gateways(self):
        for gateway in self.gateways.values():
            gateway.alive = True

    @precondition(lambda self: self.leader is not None)
    @rule()
    def crash_controller(self):
        self.leader = None
        for gateway in self.gateways.values():
            gateway.hang_up()
            gateway.late.clear()

    @precondition(lambda self: self.leader is None)
    @rule()
    def restart_controller(self):
        self.start_controller()

    @rule(seconds=st.sampled_from((2.0, 10.0, 30.0)))
    def stop_controller_for_a_while(self, seconds):
        self.controller_stopped_until_s = self.now_s + seconds

    @rule(loads=st.tuples(*[st.tuples(st.integers(0, 2), st.sampled_from(SIZES))] * 3))
    def ask_elsewhere(self, loads):
        self.load = dict(zip(self.gateways, loads, strict=False))

    @rule(name=st.sampled_from(NAMES), tokens=st.sampled_from(SIZES))
    def all_is_well_again(self, name, tokens):
        """Then the whole limit is shared out, and where one gateway alone is asked it has nearly all of it."""
        self.heal()
        self.restart_gateways()
        self.controller_stopped_until_s = self.now_s
        for gateway in self.gateways.values():
            gateway.stopped_until_s = self.now_s
        if self.leader is None:
            self.start_controller()
        name = name if name in self.gateways else "a"
        self.load = {**dict.fromkeys(self.gateways, (0, 1)), name: (2, tokens)}
        self.pass_time(SETTLED_S)
        for cap in Cap:
            limit = cap.of(self.limits) or 0
            for _ in range(MOVES_S):  # something may be on its way
                shares = {gateway.name: gateway.has(cap) for gateway in self.gateways.values()}
                if sum(shares.values()) >= limit - limit // 10:
                    break
                self.pass_time(1.0)
            assert sum(shares.values()) >= limit - limit // 10, f"{cap}: {shares}"
        limit = self.limits.requests_per_minute
        if limit:
            assert self.gateways[name].quota.shares[Cap.REQUESTS_PER_MINUTE] >= limit // 2

    @invariant()
    def within_limits(self):
        if not hasattr(self, "gateways"):
            return
        good = [gateway for gateway in self.gateways.values() if gateway.is_good(self.now_s)]
        for cap in Cap:
            shares = {gateway.name: gateway.quota.shares.get(cap, 0) for gateway in good}
            assert sum(shares.values()) <= (cap.of(self.limits) or 0), f"{cap} at {self.now_s}: {shares}"
        for gateway in self.gateways.values():
            if gateway not in good:
                for request in gateway.inside:
                    request[2] = True
        inside = [tokens for gateway in self.gateways.values() for tokens, _, lost in gateway.inside if not lost]
        assert len(inside) <= (self.limits.requests_in_flight or math.inf)
        assert sum(inside) <= (self.limits.tokens_in_flight or math.inf)


class TestWorld(World.TestCase):
    settings = settings(max_examples=12, stateful_step_count=20, deadline=None)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from(((0, 1), (2, 20), (2, 60)))] * 3, st.sampled_from((3.0, 10.0, 20.0))), min_size=2, max_size=8))
def test_where_clients_go_back_and_forth_no_move_makes_a_minutes_worth(phases):
    """A share that grew full gave each gateway in turn what the one before had used."""
    world = World()
    world.begin(count=3, paces=(1.0, 1.0, 1.0), latencies_s=(0.25, 0.25, 0.25), limits=LIMITS[1])
    for *loads, seconds in phases:
        world.ask_elsewhere(loads)
        world.pass_time(seconds)


def test_a_process_that_was_stopped_for_longer_than_it_may_be_silent_gives_its_shares_up():
    """Its timers run late, and the controller may have given them away by then, even where it is gone since."""
    gateway = Gateway("a", 1.0, 0.25, LIMITS[0])
    gateway.shares.good_until(1009.0, LEASE_S, 1000.0, yielded=False)
    gateway.quota.share(Cap.REQUESTS_IN_FLIGHT, 4, 0.0, 1000.0)
    gateway.shares.good_until(1013.0, LEASE_S, 1010.5, yielded=False)
    assert gateway.quota.shares[Cap.REQUESTS_IN_FLIGHT] == 4, "it asked the others, and nobody hears the controller"
    gateway.shares.good_until(1030.0, LEASE_S, 1027.0, yielded=False)
    assert gateway.quota.shares[Cap.REQUESTS_IN_FLIGHT] == 0


def test_what_is_given_late_is_not_taken():
    """It may have been given to another since."""
    gateway = Gateway("a", 1.0, 0.25, LIMITS[0])
    gateway.shares.given(SharesGiven(1, ()), 1000.0, LEASE_S, 1000.0)
    assert gateway.shares.report(1000.0).seen == 1
    gateway.shares.given(SharesGiven(2, ()), 1000.0, LEASE_S, 1009.0)
    assert gateway.shares.report(1009.0).seen == 1
