"""Both sides of the leases in one small world: however links, processes and clocks fail, no replica is ever used by two gateways.

Time passes in quarters of a second; gateways have clocks of their own, which differ in pace and in what they show. One thing is
assumed: a gateway that is cut off from the controller is not cut off from the other gateways as well (DESIGN: it serves on).
"""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.admission.leases import OFF_FOR_S, Leases, Revoke, Wants
from forebay.admission.lessee import Ask, Lessee, Use

LEASE_S = 15.0
TICK_S = 0.25
LATENCIES_S = (0.25, 1.5)
NAMES = ("a", "b", "c")
REPLICAS = tuple("123456")
PACES = (0.9, 1.0, 1.1)
SETTLED_S = 6 * (OFF_FOR_S + 5.0)
"""No more moves than replicas, one at a time, each after its patience."""


class Gateway:
    """A process, its clock, and its connection: what is on its way in both directions."""

    def __init__(self, name, pace, latency_s):
        self.name, self.pace, self.offset_s = name, pace, 1000.0 * pace
        self.latency_s = latency_s
        self.alive = self.linked = False
        self.stopped_until_s = 0.0
        self.begin()

    def begin(self):
        """A new process."""
        self.lessee = Lessee()
        self.roster = (0, 0, {})
        self.said_s = None
        self.use = False
        self.hang_up()

    def hang_up(self):
        self.up, self.down = deque(), deque()
        self.linked = False

    def local_s(self, now_s):
        return self.offset_s + now_s * self.pace

    def uses(self, now_s):
        """What it gives permits on at this instant: it compares with its own clock before it sends."""
        if not self.alive or now_s < self.stopped_until_s or not self.use or self.local_s(now_s) >= self.lessee.until_s:
            return set()
        return {replica for replica, holder in self.roster[2].items() if holder == self.name}


class World(RuleBasedStateMachine):
    """One controller, two or three gateways, up to six replicas."""

    @initialize(
        count=st.integers(2, 3),
        paces=st.tuples(*[st.sampled_from(PACES)] * 3),
        latencies_s=st.tuples(*[st.sampled_from(LATENCIES_S)] * 3),
        remembers=st.booleans(),
        data=st.data(),
    )
    def begin(self, count, paces, latencies_s, remembers, data):
        self.now_s = 0.0
        named = zip(NAMES[:count], paces, latencies_s, strict=False)
        self.gateways = {name: Gateway(name, pace, latency_s) for name, pace, latency_s in named}
        for gateway in self.gateways.values():
            gateway.alive = True
        self.cut = set()
        self.replicas = list(REPLICAS[: data.draw(st.integers(1, 6))])
        self.demand = dict.fromkeys(self.gateways, 100.0)
        self.stored = {} if remembers else None
        self.term = 0
        self.version = 0
        self.controller_stopped_until_s = 0.0
        self.revoked = deque(maxlen=50)
        self.start_controller()

    def start_controller(self):
        self.term += 1
        self.version = 0
        self.leases = Leases(LEASE_S, self.stored, len(self.gateways), self.now_s)
        self.roster = None
        self.stepped_s = self.now_s

    # -- time -----------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.25, 1.0, 3.0, 10.0, 40.0)))
    def pass_time(self, seconds):
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += TICK_S
            # Who was stopped has it all before it at once, in no particular order: here its clock, before its mail.
            for gateway in self.gateways.values():
                if gateway.alive and self.now_s >= gateway.stopped_until_s:
                    self.nobody_shares()
                    self.gateway_ticks(gateway)
            if self.leases is not None and self.now_s >= self.controller_stopped_until_s:
                self.controller_ticks()
            self.nobody_shares()

    def gateway_ticks(self, gateway):
        local_s = gateway.local_s(self.now_s)
        self.carry_out(gateway, gateway.lessee.advance(local_s))
        if self.leases is None or gateway.name in self.cut:
            gateway.hang_up()
            return
        if not gateway.linked:
            gateway.hang_up()
            gateway.linked = True
            holds = tuple(replica for replica, holder in gateway.roster[2].items() if holder == gateway.name)
            gateway.said_s = local_s
            gateway.up.append((self.now_s, "hello", holds))
            gateway.hello_s = local_s
        elif local_s - gateway.said_s >= 1.0:
            gateway.said_s = local_s
            gateway.up.append((self.now_s, "snapshot", local_s))
        while gateway.down and gateway.down[0][0] + gateway.latency_s <= self.now_s:
            _, kind, value = gateway.down.popleft()
            if kind == "roster":
                if value[:2] > gateway.roster[:2]:
                    gateway.roster = value
                gateway.up.append((self.now_s, "ack", gateway.roster[:2]))
                value = gateway.hello_s
            self.carry_out(gateway, gateway.lessee.renewed(value, LEASE_S, local_s))
        gateway.lessee.check()

    def carry_out(self, gateway, effects):
        for effect in effects:
            if isinstance(effect, Use):
                gateway.use = effect.may
            elif isinstance(effect, Ask):
                local_s = gateway.local_s(self.now_s)
                others = [other for other in self.gateways.values() if other is not gateway]
                self.carry_out(gateway, gateway.lessee.asked([other.name for other in others], local_s))
                for other in others:
                    if other.alive and self.now_s >= other.stopped_until_s:
                        ago_s = other.local_s(self.now_s) - other.lessee.renewed_s
                        self.carry_out(gateway, gateway.lessee.told(other.name, ago_s, local_s))

    def controller_ticks(self):
        if self.now_s - self.stepped_s >= 1.0:  # as timers of one that was stopped: before its mail
            self.step()
        for gateway in self.gateways.values():
            while gateway.up and gateway.up[0][0] + gateway.latency_s <= self.now_s:
                _, kind, value = gateway.up.popleft()
                if kind == "hello":
                    self.leases.joined(gateway.name, value, self.now_s)
                    if self.roster is not None:
                        gateway.down.append((self.now_s, "roster", self.roster))
                elif kind == "ack":
                    self.leases.acknowledged(gateway.name, *value, self.now_s)
                else:
                    self.leases.heard(gateway.name, self.now_s)
                    gateway.down.append((self.now_s, "heard", value))

    def step(self):
        self.stepped_s = self.now_s
        effects = self.leases.balance({"chat": Wants(self.replicas, self.demand, {})}, self.now_s)
        self.revoked += [(effect.replica_id, self.now_s) for effect in effects if isinstance(effect, Revoke)]
        self.leases.check()
        self.stored = self.leases.held()
        self.version += 1
        self.roster = (self.term, self.version, {replica: self.leases.holder(replica) for replica in self.replicas})
        for gateway in self.gateways.values():
            if gateway.linked:
                gateway.down.append((self.now_s, "roster", self.roster))
        self.leases.published(self.term, self.version)

    # -- what goes wrong --------------------------------------------------------------------------------------------------

    def alive(self):
        return [gateway for gateway in self.gateways.values() if gateway.alive]

    @rule(name=st.sampled_from(NAMES))
    def cut_off(self, name):
        if name in self.gateways:
            self.cut.add(name)
            self.gateways[name].hang_up()

    @rule()
    def heal(self):
        self.cut.clear()

    @rule(name=st.sampled_from(NAMES), seconds=st.sampled_from((1.0, 8.0, 12.0, 60.0)))
    def stop_for_a_while(self, name, seconds):
        """As a debugger, a snapshot of its machine, or a full memory would."""
        # Never all at once: one that is cut off then has nobody to ask.
        if name in self.gateways and all(self.now_s >= other.stopped_until_s and other.alive for other in self.gateways.values()):
            self.gateways[name].stopped_until_s = self.now_s + seconds

    @rule(name=st.sampled_from(NAMES))
    def crash(self, name):
        others = [gateway for gateway in self.alive() if gateway.name != name and self.now_s >= gateway.stopped_until_s]
        if name in self.gateways and others:
            self.gateways[name].alive = False
            self.gateways[name].hang_up()

    @rule()
    def restart_gateways(self):
        for gateway in self.gateways.values():
            if not gateway.alive:
                gateway.begin()
                gateway.alive = True

    @precondition(lambda self: self.leases is not None)
    @rule()
    def crash_controller(self):
        self.leases = None
        for gateway in self.gateways.values():
            gateway.hang_up()

    @precondition(lambda self: self.leases is None)
    @rule(forgets=st.booleans())
    def restart_controller(self, forgets):
        if forgets:
            self.stored = None
        self.start_controller()

    @rule(seconds=st.sampled_from((2.0, 10.0, 30.0)))
    def stop_controller_for_a_while(self, seconds):
        self.controller_stopped_until_s = self.now_s + seconds

    @rule(amounts=st.tuples(*[st.sampled_from((None, 0.0, 10.0, 100.0, 1000.0))] * 3))
    def ask_elsewhere(self, amounts):
        self.demand = dict(zip(self.gateways, amounts, strict=False))

    @rule(count=st.integers(0, 6))
    def scale(self, count):
        self.replicas = list(REPLICAS[:count])

    @rule()
    def all_is_well_again(self):
        """Then every replica is leased and used before long, and each gateway has one where there are enough."""
        self.heal()
        self.restart_gateways()
        self.controller_stopped_until_s = self.now_s
        for gateway in self.gateways.values():
            gateway.stopped_until_s = self.now_s
        if self.leases is None:
            self.start_controller()
        self.pass_time(SETTLED_S)
        self.revoked.clear()
        self.pass_time(2 * OFF_FOR_S)
        used = [gateway.uses(self.now_s) for gateway in self.gateways.values()]
        assert set().union(*used) == set(self.replicas), "every replica is leased in the end"
        assert len(self.replicas) < len(used) or all(used), "one each where there are enough"
        assert not self.revoked, "with the same demand nothing moves"

    @invariant()
    def nobody_shares(self):
        if not hasattr(self, "gateways"):
            return
        seen = {}
        for gateway in self.gateways.values():
            for replica in gateway.uses(self.now_s):
                assert replica not in seen, f"{replica} is used by {seen[replica]} and {gateway.name} at {self.now_s}"
                seen[replica] = gateway.name


class TestWorld(World.TestCase):
    settings = settings(max_examples=12, stateful_step_count=20, deadline=None)


def test_a_gateway_that_was_stopped_past_its_lease_uses_nothing_though_the_controller_died_since():
    """What it held was given away while it was stopped; then the controller dies, so nobody has heard it when the gateway wakes."""
    world = World()
    world.begin(2, (1.0, 1.0, 1.0), (LATENCIES_S[0],) * 3, True, Drawn(2))
    for step in (lambda: world.stop_for_a_while("a", 60.0), world.crash_controller, lambda: None):
        world.pass_time(40.0)
        step()
    world.pass_time(40.0)
    assert world.gateways["a"].uses(world.now_s) == set()
    assert world.gateways["b"].uses(world.now_s) == set(world.replicas)


@pytest.mark.parametrize("after_s", [0.0, 0.25, 0.5, 0.75, 1.0, 1.25])
def test_a_gateway_whose_leases_stand_is_waited_for_when_another_one_comes_back(after_s):
    """It is cut off while the other one is down, so its leases stand; it finds out only when it next asks."""
    world = World()
    world.begin(2, (1.0, 1.0, 1.0), (LATENCIES_S[0],) * 3, True, Drawn(2))
    world.pass_time(40.0)
    world.cut_off("a")
    world.crash("b")
    world.pass_time(40.0 + after_s)
    world.restart_gateways()
    world.pass_time(40.0)
    assert world.gateways["b"].uses(world.now_s) == set(world.replicas)


class Drawn:
    """Stands for what hypothesis draws: always ``value``."""

    def __init__(self, value):
        self.value = value

    def draw(self, strategy):
        return self.value
