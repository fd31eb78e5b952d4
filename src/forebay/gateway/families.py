"""The metrics page: meters, and what is true now, turned into Prometheus families at the moment of a scrape."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from forebay.admission.looks import TeamLoad
from forebay.domain.reloads import Reloads
from forebay.domain.usage import UsageKey
from forebay.gateway.latencies import Took
from forebay.gateway.latency_families import latency_families
from forebay.gateway.lending import Lending
from forebay.gateway.lending_families import lending_families
from forebay.gateway.meters import TierMeter
from forebay.gateway.overflow import Look
from forebay.gateway.overflow_families import overflow_families
from forebay.gateway.shape_errors import ShapeErrors, rows
from forebay.gateway.usage_families import usage_families

TEAMS_SHOWN_MAX = 200


class Gauges(Protocol):
    """What is true now, read when asked."""

    def lanes(self) -> Iterable[tuple[str, str, int, int]]:
        """``(pool, tier, waiting requests, waiting tokens)``, each pool's tiers by rank."""
        ...

    def replicas(self) -> Iterable[tuple[str, str, int, int]]:
        """``(pool, replica, permits, KV tokens)``."""
        ...

    def ejected(self) -> Iterable[tuple[str, int, int]]:
        """``(pool, replicas out of routing, ejections so far)``."""
        ...

    def asked_if_alive(self) -> Iterable[tuple[str, str, int]]:
        """``(pool, what a replica was found to be that owed whole answers, how often)``."""
        ...

    def asking(self) -> Iterable[tuple[str, int]]:
        """``(pool, replicas out of routing since they ask for a key)``."""
        ...

    def teams(self) -> Iterable[tuple[str, TeamLoad]]:
        """``(pool, team in a lane)``."""
        ...

    def over_limits(self) -> Iterable[tuple[str, str, int]]:
        """``(team, limit, requests refused for it)``."""
        ...

    def cached(self) -> Iterable[tuple[str, int, int]]:
        """``(pool, prompt tokens foreseen to be cached, those that engines told were)``."""
        ...

    def shape_errors(self) -> Iterable[tuple[str, list[ShapeErrors]]]:
        """``(model, those of its pools)``."""
        ...

    def usage(self) -> Iterable[tuple[UsageKey, list[int]]]:
        """``(team, model, tier, pool)`` and the counts by `domain.usage.COUNT_NAMES`."""
        ...

    def retries_denied(self) -> int:
        """Second tries that were not made, as their budget was spent."""
        ...

    def took(self) -> Iterable[tuple[UsageKey, Took]]:
        """What requests took that ended, by ``(team, model, tier, pool)``."""
        ...

    def records_dropped(self) -> int:
        """Records of requests for which there was no room on the way into the history."""
        ...

    @property
    def lending(self) -> Lending | None:
        """Streams that relay workers carry; None: there are no workers."""
        ...

    @property
    def reloads(self) -> Reloads:
        """What became of changed configurations."""
        ...

    def usage_kept(self) -> tuple[int, int, int]:
        """Requests whose usage no ledger has yet, those of them that a crash would lose, and those that are lost."""
        ...

    def forwarded(self) -> Iterable[tuple[str, str, int]]:
        """Requests sent on to other gateways, by pool and gateway."""
        ...

    def overflow(self) -> Iterable[Look]:
        """The ways out of pools."""
        ...

    def turned_away(self) -> Iterable[tuple[int, str, int]]:
        """``(status, code, requests refused with it before they were any pool's)``."""
        ...

    def connections(self) -> int:
        """Open client connections."""
        ...

    def bodies_bytes(self) -> int:
        """Request bodies held."""
        ...


class GatewayCollector(Collector):
    """Turns meters and gauges into families at the moment of a scrape."""

    def __init__(self, meters: list[TierMeter], gauges: Gauges) -> None:
        self._meters = meters
        self._gauges = gauges

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """All families; names start with ``forebay_``."""
        yield from self._counters()
        yield from self._histograms()
        yield from self._now()
        yield from self._teams()
        yield from overflow_families(self._gauges.overflow())
        yield from usage_families(self._gauges.usage(), self._gauges.usage_kept())
        yield from latency_families(self._gauges.took())
        yield from _reloads(self._gauges.reloads)
        if self._gauges.lending is not None:
            yield from lending_families(self._gauges.lending)
        denied = "Second tries that were not made, as the budget of them was spent."
        yield CounterMetricFamily("forebay_retries_denied", denied, value=self._gauges.retries_denied())
        dropped = self._gauges.records_dropped()
        yield CounterMetricFamily("forebay_records_dropped", "Records of requests that found no room into the history.", value=dropped)

    def _counters(self) -> Iterator[CounterMetricFamily]:
        requests = CounterMetricFamily("forebay_requests", "Requests ended, by outcome.", labels=["pool", "tier", "outcome"])
        shed = CounterMetricFamily("forebay_shed", "Requests refused by admission, by reason.", labels=["pool", "tier", "reason"])
        plain = {
            "arrived": CounterMetricFamily("forebay_arrived", "Requests that came.", labels=["pool", "tier"]),
            "retries": CounterMetricFamily(
                "forebay_retries", "Tries on another replica before the first content.", labels=["pool", "tier"]
            ),
            "continued": CounterMetricFamily(
                "forebay_continued", "Streams continued on another replica after their first content.", labels=["pool", "tier"]
            ),
            "requeued": CounterMetricFamily(
                "forebay_requeued", "Running requests that gave their place to a more important one.", labels=["pool", "tier"]
            ),
            "prompt_tokens": CounterMetricFamily("forebay_prompt_tokens", "Prompt tokens of ended requests.", labels=["pool", "tier"]),
            "output_tokens": CounterMetricFamily("forebay_output_tokens", "Output tokens of ended requests.", labels=["pool", "tier"]),
            "response_bytes": CounterMetricFamily("forebay_response_bytes", "Bytes read from engines.", labels=["pool", "tier"]),
        }
        for meter in self._meters:
            labels = [meter.pool, meter.tier.name]
            for outcome, count in meter.outcomes.items():
                requests.add_metric([*labels, outcome.value], count)
            for reason, count in meter.shed.items():
                shed.add_metric([*labels, reason.value], count)
            for name, family in plain.items():
                family.add_metric(labels, getattr(meter, name))
        yield requests
        yield shed
        yield from plain.values()

    def _histograms(self) -> Iterator[HistogramMetricFamily]:
        ttft = HistogramMetricFamily(
            "forebay_ttft_seconds", "Arrival to first content of streams (world seconds).", labels=["pool", "tier"]
        )
        wait = HistogramMetricFamily("forebay_queue_wait_seconds", "Arrival to first dispatch (world seconds).", labels=["pool", "tier"])
        for meter in self._meters:
            labels = [meter.pool, meter.tier.name]
            ttft.add_metric(labels, meter.ttft.cumulative(), meter.ttft.sum_s)
            wait.add_metric(labels, meter.queue_wait.cumulative(), meter.queue_wait.sum_s)
        yield ttft
        yield wait
        errors = HistogramMetricFamily(
            "forebay_shape_error",
            "Estimated ÷ actual tokens of a sample of finished requests, of prompt and output.",
            labels=["model", "part"],
        )
        for model, pools in self._gauges.shape_errors():
            for part, buckets, total in rows(pools):
                errors.add_metric([model, part], buckets, total)
        yield errors

    def _now(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        waiting = GaugeMetricFamily("forebay_waiting", "Requests in the lane.", labels=["pool", "tier"])
        tokens = GaugeMetricFamily("forebay_waiting_tokens", "Tokens in the lane.", labels=["pool", "tier"])
        permits = GaugeMetricFamily("forebay_permits", "Requests in flight on the replica.", labels=["pool", "replica"])
        kv_tokens = GaugeMetricFamily("forebay_inflight_kv_tokens", "KV tokens they hold, as admission counts.", labels=["pool", "replica"])
        place = GaugeMetricFamily("forebay_tier_place", "Place of the tier among the pool's; 0 goes first.", labels=["pool", "tier"])
        seen: dict[str, int] = {}
        for pool, tier, count, held in self._gauges.lanes():
            waiting.add_metric([pool, tier], count)
            tokens.add_metric([pool, tier], held)
            place.add_metric([pool, tier], seen.setdefault(pool, 0))
            seen[pool] += 1
        for pool, replica, count, held in self._gauges.replicas():
            permits.add_metric([pool, replica], count)
            kv_tokens.add_metric([pool, replica], held)
        yield from (waiting, tokens, place, permits, kv_tokens)
        out = GaugeMetricFamily("forebay_ejected_replicas", "Replicas out of routing as outliers.", labels=["pool"])
        ejections = CounterMetricFamily("forebay_ejections", "Replicas ejected as outliers.", labels=["pool"])
        for pool, replicas, total in self._gauges.ejected():
            out.add_metric([pool], replicas)
            ejections.add_metric([pool], total)
        asked = CounterMetricFamily(
            "forebay_silence_probes",
            "Replicas asked for a token, as whole answers were overdue there.",
            labels=["pool", "found"],
        )
        for pool, found, count in self._gauges.asked_if_alive():
            asked.add_metric([pool, found], count)
        asking = GaugeMetricFamily(
            "forebay_asking_replicas", "Replicas out of routing that ask for a key which they aren't shown.", labels=["pool"]
        )
        for pool, replicas in self._gauges.asking():
            asking.add_metric([pool], replicas)
        yield from (out, ejections, asked, asking)
        foreseen = CounterMetricFamily("forebay_prefix_foreseen_tokens", "Prompt tokens foreseen to be cached by engines.", labels=["pool"])
        cached = CounterMetricFamily("forebay_prefix_cached_tokens", "Of the same requests, as engines told.", labels=["pool"])
        for pool, foreseen_tokens, cached_tokens in self._gauges.cached():
            foreseen.add_metric([pool], foreseen_tokens)
            cached.add_metric([pool], cached_tokens)
        yield from (foreseen, cached)
        forwarded = CounterMetricFamily(
            "forebay_forwarded", "Requests forwarded to another gateway, which meters them.", labels=["pool", "gateway"]
        )
        for pool, gateway, count in self._gauges.forwarded():
            forwarded.add_metric([pool, gateway], count)
        yield forwarded
        away = CounterMetricFamily(
            "forebay_turned_away",
            "Requests refused before they were any pool's (no key, no such model, no JSON); counted nowhere else.",
            labels=["status", "code"],
        )
        for status, code, count in self._gauges.turned_away():
            away.add_metric([str(status), code], count)
        yield away
        yield GaugeMetricFamily("forebay_client_connections", "Open client connections.", value=self._gauges.connections())
        yield GaugeMetricFamily("forebay_bodies_bytes", "Request bodies held.", value=self._gauges.bodies_bytes())

    def _teams(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The teams with most waiting and most given; the labels are bounded by `TEAMS_SHOWN_MAX`."""
        labels = ["pool", "tier", "team"]
        waiting = GaugeMetricFamily("forebay_team_waiting", "Requests of the team in the lane.", labels=labels)
        given = CounterMetricFamily(
            "forebay_team_given_tokens",
            "Virtual tokens given: uncached prompt, and output twice. Fairness evens them out by weight.",
            labels=labels,
        )
        over = CounterMetricFamily("forebay_team_over_limit", "Requests refused at a limit of the team.", labels=["team", "limit"])
        teams = sorted(self._gauges.teams(), key=lambda row: (row[1].waiting, row[1].given_tokens), reverse=True)
        for pool, team in teams[:TEAMS_SHOWN_MAX]:
            waiting.add_metric([pool, team.tier, team.team], team.waiting)
            given.add_metric([pool, team.tier, team.team], team.given_tokens)
        for name, limit, count in sorted(self._gauges.over_limits(), key=lambda row: -row[2])[:TEAMS_SHOWN_MAX]:
            over.add_metric([name, limit], count)
        yield from (waiting, given, over)


def _reloads(reloads: Reloads) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    seen = CounterMetricFamily("forebay_config_reloads", "Changed configurations, taken or refused.", labels=["result"])
    seen.add_metric(["taken"], reloads.taken)
    seen.add_metric(["refused"], reloads.refused)
    yield seen
    help_text = "1 while the configuration file was refused, and the one before is served by."
    yield GaugeMetricFamily("forebay_config_refused", help_text, value=float(reloads.waits))


def registry(meters: list[TierMeter], gauges: Gauges) -> CollectorRegistry:
    """A registry of this gateway's own: two in one process don't mix."""
    own = CollectorRegistry(auto_describe=False)
    own.register(GatewayCollector(meters, gauges))
    return own
