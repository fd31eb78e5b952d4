"""What a team is let in by two gateways that share its limits, against one gateway that has all of each: Poisson arrivals, half an hour.

`python bench/shared_limits.py`: a line for each limit and each way in which clients are spread, and at the end how limits with fewer units
than gateways go round. Nothing but the two sides of the shares runs
(`admission.shares`, `gateway.shared_limits`); time is counted, not waited for. Last measured: see docs/several-gateways.md.
"""

import heapq
import random
from collections.abc import Callable

from forebay.admission.shares import Shares
from forebay.domain.shape import Usage
from forebay.gateway.shared_limits import SharedLimits
from forebay.spec.types import TeamLimits

SECONDS = 1800.0
LEASE_S = 15.0
TOKENS = (200, 3000)
HELD_S = (2.0, 10.0)
MEAN_TOKENS_WHOLE = sum(TOKENS) // 2
MEAN_TOKENS, MEAN_HELD_S = sum(TOKENS) / 2, sum(HELD_S) / 2
FEW = {
    "1 in flight, 2 gateways": (TeamLimits(requests_in_flight=1), 2),
    "2 in flight, 3 gateways": (TeamLimits(requests_in_flight=2), 3),
    "1 request a minute, 2 gateways": (TeamLimits(requests_per_minute=1), 2),
    "2 requests a minute, 3 gateways": (TeamLimits(requests_per_minute=2), 3),
}
"""Each gateway is asked about once a second."""
Spread = Callable[[float, float], int]
"""Time and a draw → which gateway."""
SPREADS: dict[str, Spread] = {
    "even": lambda _, drawn: int(drawn < 0.5),
    "9 to 1": lambda _, drawn: int(drawn < 0.1),
    "all at one, another each 2 min": lambda now_s, _: int(now_s // 120) % 2,
}
LOADS = {
    "60 requests a minute, asked for 80 %": (TeamLimits(requests_per_minute=60), 0.8),
    "60 requests a minute, asked for 120 %": (TeamLimits(requests_per_minute=60), 1.2),
    "60 requests a minute, asked for 300 %": (TeamLimits(requests_per_minute=60), 3.0),
    "100k tokens a minute, asked for 80 %": (TeamLimits(tokens_per_minute=100_000), 0.8 * 100_000 / 60 / MEAN_TOKENS),
    "8 in flight, asked for 80 %": (TeamLimits(requests_in_flight=8), 0.8 * 8 / MEAN_HELD_S),
    "64 in flight, asked for 90 %": (TeamLimits(requests_in_flight=64), 0.9 * 64 / MEAN_HELD_S),
}


class Gateway:
    """One that shares, or has everything for its own."""

    def __init__(self, name: str, limits: TeamLimits, leader: Shares | None) -> None:
        self.name, self.leader = name, leader
        quotas = {}
        self.shares = SharedLimits(quotas)
        if leader is not None:
            self.shares.begin(0.0)
            leader.joined(name, self.shares.greets(0.0), 0.0)
            self.shares.good_until(SECONDS * 2, LEASE_S, 0.0, yielded=False)
        self.quota = quotas["team"] = self.shares.quota(limits)

    def second(self, now_s: float) -> None:
        """It reports, and is answered."""
        if self.leader is not None:
            given = self.leader.heard(self.name, self.shares.report(now_s), now_s)
            self.shares.given(given, now_s, LEASE_S, now_s)


def let_in(limits: TeamLimits, per_s: float, spread: Spread, *, shared: bool, seed: int = 1) -> tuple[int, int]:
    """Requests that were let in, of how many."""
    chance = random.Random(seed)
    leader = Shares(LEASE_S, None, 2, 0.0) if shared else None
    gateways = [Gateway(str(number), limits, leader) for number in range(2 if shared else 1)]
    now_s, next_s, took, came = 0.0, 0.0, 0, 0
    ends: list[tuple[float, int, int]] = []
    while now_s < SECONDS:
        now_s += chance.expovariate(per_s)
        while next_s <= now_s:
            for gateway in gateways:
                gateway.second(next_s)
            if leader is not None:
                leader.look(next_s)
            next_s += 1.0
        while ends and ends[0][0] <= now_s:
            end_s, number, tokens = heapq.heappop(ends)
            gateways[number].quota.give_back(tokens, Usage(tokens, 0), 1.0, end_s, served=True)
        number, tokens, held_s = spread(now_s, chance.random()), chance.randint(*TOKENS), chance.uniform(*HELD_S)
        number = number if shared else 0
        came += 1
        if gateways[number].quota.take(tokens, now_s) is None:
            took += 1
            heapq.heappush(ends, (now_s + held_s, number, tokens))
    return took, came


def few(limits: TeamLimits, count: int, per_s: float, seed: int = 1) -> tuple[list[int], float]:
    """Requests that each of ``count`` gateways let in of ``per_s`` that come, and the longest that one which was asked let in none (seconds)."""
    chance = random.Random(seed)
    leader = Shares(LEASE_S, None, count, 0.0)
    gateways = [Gateway(str(number), limits, leader) for number in range(count)]
    took, last_s, longest_s = [0] * count, [0.0] * count, 0.0
    now_s, next_s = 0.0, 0.0
    ends: list[tuple[float, int, int]] = []
    while now_s < SECONDS:
        now_s += chance.expovariate(per_s)
        while next_s <= now_s:
            for gateway in gateways:
                gateway.second(next_s)
            leader.look(next_s)
            next_s += 1.0
        while ends and ends[0][0] <= now_s:
            end_s, number, tokens = heapq.heappop(ends)
            gateways[number].quota.give_back(tokens, Usage(tokens, 0), 1.0, end_s, served=True)
        number, held_s = chance.randrange(count), chance.uniform(*HELD_S)
        if gateways[number].quota.take(MEAN_TOKENS_WHOLE, now_s) is None:
            took[number] += 1
            last_s[number] = now_s
            heapq.heappush(ends, (now_s + held_s, number, MEAN_TOKENS_WHOLE))
        longest_s = max(longest_s, now_s - last_s[number])
    return took, longest_s


def main() -> None:
    """Print the table."""
    for name, (limits, per_s) in LOADS.items():
        for how, spread in SPREADS.items():
            (two, came), (one, _) = let_in(limits, per_s, spread, shared=True), let_in(limits, per_s, spread, shared=False)
            print(f"{name:38} {how:31} two gateways {two} of {came}, one {one}: {two / one:.3f}")
    for name, (limits, count) in FEW.items():
        took, longest_s = few(limits, count, count)
        (alone,), _ = few(limits, 1, count)
        each = " + ".join(map(str, took))
        print(
            f"{name:38} let in {each}, one gateway {alone}: {sum(took) / alone:.3f}; one that was asked let nobody in for {longest_s:.0f} s"
        )


if __name__ == "__main__":
    main()
