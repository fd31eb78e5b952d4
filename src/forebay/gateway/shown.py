"""What the gateway's metrics page asks for at the moment it is read (`meters.Gauges`)."""

from collections.abc import Iterable

from forebay.admission.looks import TeamLoad
from forebay.domain.reloads import Reloads
from forebay.domain.usage import UsageKey
from forebay.gateway.desk import Desk
from forebay.gateway.http import HttpServer
from forebay.gateway.latencies import Latencies, Took
from forebay.gateway.lending import Lending
from forebay.gateway.metering import Metering
from forebay.gateway.overflow import Look
from forebay.gateway.records import Records
from forebay.gateway.retries import RetryBudget
from forebay.gateway.shape_errors import ShapeErrors


class Shown:
    """Read off the desk and the connections, and kept nowhere."""

    def __init__(
        self,
        desk: Desk,
        servers: list[HttpServer],
        metering: Metering,
        records: Records,
        reloads: Reloads,
        lending: Lending | None,
        retries: RetryBudget,
        latencies: Latencies,
    ) -> None:
        self.desk = desk
        self.servers = servers
        self.metering = metering
        self.records = records
        self.reloads = reloads
        self.lending = lending
        self._retries = retries
        self._latencies = latencies

    def lanes(self) -> Iterable[tuple[str, str, int, int]]:
        """Waiting, by pool and tier."""
        return [(load.pool, lane.tier, lane.waiting, lane.waiting_tokens) for load in self.desk.loads() for lane in load.lanes]

    def replicas(self) -> Iterable[tuple[str, str, int, int]]:
        """In flight, by pool and replica."""
        return [(load.pool, one.replica, one.streams, one.kv_tokens) for load in self.desk.loads() for one in load.replicas]

    def teams(self) -> Iterable[tuple[str, TeamLoad]]:
        """What waits and was given, by pool and team."""
        return [(pool.name, team) for pool in self.desk.pools.values() for team in pool.admission.teams()]

    def over_limits(self) -> Iterable[tuple[str, str, int]]:
        """What was refused at a limit, by team."""
        return [(team, cap.value, count) for team, quota in self.desk.quotas.items() for cap, count in quota.refused.items() if count]

    def cached(self) -> Iterable[tuple[str, int, int]]:
        """Prompt tokens foreseen to be cached and told to be, by pool."""
        told = [(pool.name, pool.admission.cached) for pool in self.desk.pools.values()]
        return [(pool, cached.foreseen_tokens, cached.cached_tokens) for pool, cached in told]

    def shape_errors(self) -> Iterable[tuple[str, list[ShapeErrors]]]:
        """How good estimates were, by model."""
        models: dict[str, list[ShapeErrors]] = {}
        for pool in self.desk.pools.values():
            models.setdefault(pool.model, []).append(pool.errors)
        return models.items()

    def connections(self) -> int:
        """Open client connections."""
        return sum(len(server.connections) for server in self.servers)

    def bodies_bytes(self) -> int:
        """Request bodies held."""
        return sum(server.bodies_bytes for server in self.servers)

    def turned_away(self) -> Iterable[tuple[int, str, int]]:
        """Refused before they were any pool's, by status and code."""
        counts: dict[tuple[int, str], int] = {}
        for server in (each for each in self.servers if not each.by_peer):
            for key, count in server.turned_away.items():
                counts[key] = counts.get(key, 0) + count
        return [(*key, count) for key, count in sorted(counts.items())]

    def forwarded(self) -> Iterable[tuple[str, str, int]]:
        """Requests sent on to other gateways, by pool and gateway."""
        ways = next(iter(self.desk.pools.values())).ways if self.desk.pools else None
        peers = ways.peers if ways is not None else None
        return [] if peers is None else [(*place, count) for place, count in peers.forwarded.items()]

    def overflow(self) -> Iterable[Look]:
        """The ways out of pools."""
        now_s = self.desk.clock.now_s()
        return [look for pool in self.desk.pools.values() if pool.ways is not None for look in pool.ways.looks(now_s)]

    def ejected(self) -> Iterable[tuple[str, int, int]]:
        """Replicas out of routing, and ejections so far, by pool."""
        return [(pool.name, len(pool.outliers.out), pool.outliers.ejections_total) for pool in self.desk.pools.values()]

    def asked_if_alive(self) -> Iterable[tuple[str, str, int]]:
        """What replicas that owed whole answers were found to be, by pool."""
        return [(pool.name, *found) for pool in self.desk.pools.values() for found in pool.silences.found.items()]

    def asking(self) -> Iterable[tuple[str, int]]:
        """Replicas that ask for a key, by pool: those that the controller keeps from us, too."""
        return [(pool.name, pool.roster.asking + len(pool.outliers.asking)) for pool in self.desk.pools.values()]

    def usage(self) -> Iterable[tuple[UsageKey, list[int]]]:
        """Counted by this start."""
        return self.metering.book.shown()

    def retries_denied(self) -> int:
        """As the budget of second tries was spent."""
        return self._retries.denied_total

    def took(self) -> Iterable[tuple[UsageKey, Took]]:
        """Requests that ended, by key."""
        return self._latencies.rows()

    def records_dropped(self) -> int:
        """On their way into the history."""
        return self.records.leaving.dropped

    def usage_kept(self) -> tuple[int, int, int]:
        """Requests not in a ledger yet, those of them not in the journal either, and those that are lost."""
        book = self.metering.book
        book.look()
        return book.unreported_requests, book.unwritten_requests, book.lost_requests + self.metering.lost_requests

    def check(self, light: int) -> None:
        """Raises AssertionError unless permits are exactly the live exchanges; so many more than these (``light``) have a client."""
        waiting = permits = 0
        for pool in self.desk.pools.values():
            pool.admission.check()
            pool.outliers.check()
        for load in self.desk.loads():
            waiting += sum(lane.waiting for lane in load.lanes)
            permits += sum(replica.streams for replica in load.replicas)
        for place in self.desk.spills:
            place.admission.check()
            permits += sum(replica.streams for replica in place.admission.load(0.0)[1])
        assert waiting + permits == self.desk.live, f"{waiting} wait and {permits} hold permits, but {self.desk.live} calls are inside"
        answered = sum(connection.reply is not None for server in self.servers for connection in server.connections)
        inside = self.desk.live + light
        assert answered == inside, f"{inside} calls are inside, and {answered} clients wait for one"
        for server in self.servers:
            assert server.bodies_bytes >= 0, "a body was released twice"
            assert server.connections or not server.bodies_bytes, f"{server.bodies_bytes} bytes of bodies without a client"
