"""Which readings are ill, when, and what a driver can know of it: the answer is always Unknown with its reason, never a number made up.

Sources of one pool are each replica's engine page, each chosen by the seed where a fault has a share below 1, and the
gateways, which are one source and ill only where a fault takes all. What each kind does to an engine's page, and to the
gateways' word:

- ``error``: refused, lost: both Unknown at once;
- ``empty``: no sample: both ``missing``;
- ``nan``: both ``nan``;
- ``renamed``: the page's names are ``missing``; not the GPU meter, which is another exporter's, nor the gateways, which
  are Forebay's own;
- ``frozen``: old values with new times, until the counters of a busy engine have stood still for FROZEN_AFTER_S, or the
  gateways have had streams for so long on one that says it is idle; the gateways' last word holds until their lease is over.

A rival that takes an outage for zero does so in its own law, over these Unknowns.
"""

import math
import random
from collections.abc import Sequence

from forebay.domain.errors import BadInput
from forebay.domain.replica import ReplicaState
from forebay.simulation.lab_life import Replica
from forebay.simulation.values import MetricFault, Outage

OUTAGES = ("crash", "reclaim")
KINDS = ("error", "empty", "frozen", "nan", "renamed")
FROZEN_AFTER_S = 30.0
"""As `adapters.scrape` judges a page whose token counters stand still, and the controller an engine that claims to be idle."""
LEASE_S = 15.0
"""As the controller's: a gateway silent for longer is lost."""
WHY = {"error": "refused", "empty": "missing", "nan": "nan", "renamed": "missing"}
GATEWAY_WHY = {"error": "gateway_lost", "empty": "missing", "nan": "nan", "frozen": "gateway_lost"}

Active = Sequence[tuple[int, MetricFault]]
"""Faults that hold at one instant, each with its index."""


class Faults:
    """The metric faults of one scenario. Raises BadInput for an unknown kind or an empty span."""

    def __init__(self, faults: Sequence[MetricFault], seed: int) -> None:
        for place, fault in enumerate(faults):
            if fault.kind not in KINDS:
                raise BadInput(f"metric fault {place + 1}: found kind {fault.kind!r}; allowed: {', '.join(KINDS)}")
            if not (fault.from_s < fault.until_s and 0 < fault.share <= 1):
                raise BadInput(
                    f"metric fault {place + 1}: found {fault.from_s:g} s to {fault.until_s:g} s with share {fault.share:g}; "
                    "allowed: a span that ends after it begins, and a share above 0 and up to 1"
                )
        self._faults = tuple(faults)
        self._seed = seed

    def active(self, at_s: float) -> Active:
        """Those that hold at ``at_s``."""
        return tuple((index, fault) for index, fault in enumerate(self._faults) if fault.from_s <= at_s < fault.until_s)

    def touches(self, index: int, fault: MetricFault, number: int) -> bool:
        """Whether replica ``number`` is among the share that is ill."""
        return fault.share >= 1 or random.Random(f"{self._seed}/fault/{index}/{number}").random() < fault.share

    @staticmethod
    def gateways(active: Active) -> MetricFault | None:
        """The fault that takes the gateways' word too."""
        return next((fault for _, fault in active if fault.share >= 1 and fault.kind in GATEWAY_WHY), None)


def befallen(outage: Outage, replicas: Sequence[Replica], chance: random.Random) -> list[Replica]:
    """Those that ``outage`` takes: drawn among the ready ones, and where they are too few among those that load."""
    ready = [replica for replica in replicas if replica.state is ReplicaState.READY]
    loading = [replica for replica in replicas if replica.state is ReplicaState.LOADING]
    count = int(outage.replicas) if outage.replicas >= 1 else math.ceil(outage.replicas * len(ready))
    taken = chance.sample(ready, min(count, len(ready)))
    return taken + chance.sample(loading, min(count - len(taken), len(loading)))


def check_outages(outages: Sequence[Outage]) -> None:
    """Raises BadInput for one of an unknown kind, or that takes nothing."""
    for place, outage in enumerate(outages):
        if outage.kind not in OUTAGES:
            raise BadInput(f"outage {place + 1}: found kind {outage.kind!r}; allowed: {', '.join(OUTAGES)}")
        if outage.replicas <= 0 or outage.notice_s < 0:
            raise BadInput(
                f"outage {place + 1}: found {outage.replicas:g} replicas with {outage.notice_s:g} s notice; "
                "allowed: more than 0 (below 1: that share of the ready ones), and 0 s or more"
            )
