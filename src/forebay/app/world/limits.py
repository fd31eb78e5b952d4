"""Whether a team's limits hold over all gateways of a world: one bucket and one count of each, kept from what any gateway lets in.

What a gateway has in flight whose shares were over, as it was cut off, is beside the limits until it has ended.
"""

from collections.abc import Sequence

from forebay.admission.quotas import MINUTE_S, Cap, Quota
from forebay.app.world.fronts import Front
from forebay.app.world.promises import Broken
from forebay.spec.types import Spec, TeamLimits


class _Judge:
    """One team's."""

    def __init__(self, limits: TeamLimits, now_s: float) -> None:
        self.limits = limits
        self.left = float(limits.requests_per_minute or 0)
        self.at_s = now_s
        self.seen: dict[int, tuple[Quota, int]] = {}
        """By front: its present process's, and what that had let in when last looked."""
        self.lost: dict[int, tuple[int, int]] = {}
        """In flight, requests and tokens, where shares were over."""


class LimitsWatch:
    """Looks each second."""

    def __init__(self, spec: Spec, now_s: float) -> None:
        self._judges = {team.name: _Judge(team.limits, now_s) for team in spec.teams if team.limits != TeamLimits()}

    def each_second(self, fronts: Sequence[Front], now_s: float) -> list[Broken]:
        """What all ``fronts`` together had over a limit."""
        found = []
        for team, judge in self._judges.items():
            quotas = {front.number: quota for front in fronts if (quota := front.gateway.desk.quotas.get(team)) is not None}
            words = [*_a_minute(judge, quotas, now_s), *_in_flight(judge, quotas, now_s), *_shared_out(judge, quotas, now_s)]
            found += [Broken(now_s, "limits hold over all gateways", f"team {team}: {each}") for each in words]
        return found


def _a_minute(judge: _Judge, quotas: dict[int, Quota], now_s: float) -> list[str]:
    limit = judge.limits.requests_per_minute
    let_in = 0
    for number, quota in quotas.items():
        before, count = judge.seen.get(number, (quota, 0))
        let_in += quota.let_in - (count if before is quota else 0)
        judge.seen[number] = (quota, quota.let_in)
    if limit is None:
        return []
    refilled = (now_s - judge.at_s) * limit / MINUTE_S
    judge.left, judge.at_s = min(float(limit), judge.left + refilled) - let_in, now_s
    # What was refilled since the last look may have been let in before and after: a look is no instant.
    return [f"{-judge.left:.1f} requests over {limit} a minute"] if judge.left < -refilled - 1e-6 else []


def _in_flight(judge: _Judge, quotas: dict[int, Quota], now_s: float) -> list[str]:
    requests = tokens = 0
    for number, quota in quotas.items():
        inside = (quota.in_flight, quota.tokens_in_flight)
        lost = judge.lost.get(number, (0, 0)) if quota.shared(now_s) else inside
        lost = judge.lost[number] = (min(lost[0], inside[0]), min(lost[1], inside[1]))
        requests += inside[0] - lost[0]
        tokens += inside[1] - lost[1]
    limits = judge.limits
    words = []
    if limits.requests_in_flight is not None and requests > limits.requests_in_flight:
        words.append(f"{requests} of {limits.requests_in_flight} requests in flight")
    if limits.tokens_in_flight is not None and tokens > limits.tokens_in_flight:
        words.append(f"{tokens} of {limits.tokens_in_flight} tokens in flight")
    return words


def _shared_out(judge: _Judge, quotas: dict[int, Quota], now_s: float) -> list[str]:
    words = []
    for cap in Cap:
        limit, share = cap.of(judge.limits), sum(quota.shares.get(cap, 0) for quota in quotas.values() if quota.shared(now_s))
        if limit is not None and share > limit:
            words.append(f"shares of {share} {cap} where there are {limit}")
    return words
