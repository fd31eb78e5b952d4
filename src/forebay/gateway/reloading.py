"""A new configuration for a gateway that goes on serving: the change, in one step between two requests.

What may change so is `spec.live`'s. Requests that are inside keep what they came with: tier, promises, timeouts, even a key that is
gone. Which engines are attached is no affair of this: that is a roster, the controller's or `gateway.roster`'s.
"""

from forebay.gateway.desk import Desk
from forebay.spec.types import Spec, TeamLimits


def apply(after: Spec, desk: Desk) -> None:
    """Have the desk's pools and teams go by ``after``."""
    weights = {team.name: team.weight for team in after.teams}
    for pool in (*desk.pools.values(), *desk.spills):
        pool.admission.reweigh(weights)
        if pool.ways is not None:
            pool.ways.use({team.name: team for team in after.teams})
    quotas = {}
    for team in after.teams:
        if team.limits != TeamLimits():
            quota = quotas[team.name] = desk.quotas.get(team.name) or desk.shares.quota(team.limits)
            quota.use(team.limits, desk.clock.now_s())
    desk.quotas.clear()
    desk.quotas.update(quotas)
