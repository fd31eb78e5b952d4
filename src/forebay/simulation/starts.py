"""How long starts take: stages that vary, and weight pulls that share what the registry and their peers can give.

All pulls under way go at one common rate, so the bytes that a puller has got are the same for all since it joined: one
running total and a heap of the totals at which each is done replace any bookkeeping per puller.
"""

import math
import random
from collections import deque
from heapq import heapify, heappop, heappush

from forebay.domain.signal import Known, Signal, Unknown
from forebay.simulation.values import ColdStartModel

COLD_STARTS_MAX = 20
COLD_START_QUANTILE = 0.9
BYTES_LEFT_MAX = 1000.0
"""A pull with so little left is done: float dust must not make another event."""


class StageTimes:
    """Draws the stages of one start; the same number of the same seed gets the same ones whatever the policy."""

    def __init__(self, model: ColdStartModel, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._sigma = math.sqrt(math.log1p(model.cv * model.cv))

    def draw(self, number: int, attempt: int) -> tuple[float, float, float]:
        """(seconds to provision, bytes to pull, seconds to initialise); means are the model's, each varies lognormally."""
        model = self._model
        if not self._sigma:
            return model.provision_s, model.weights_bytes, model.init_s
        chance = random.Random(f"{self._seed}/start/{number}/{attempt}")
        factors = [chance.lognormvariate(-self._sigma * self._sigma / 2, self._sigma) for _ in range(3)]
        return model.provision_s * factors[0], model.weights_bytes * factors[1], model.init_s * factors[2]


class Pulls:
    """Weights on their way to nodes: each puller takes at most its node's bandwidth, all together at most what is shared."""

    def __init__(self, model: ColdStartModel) -> None:
        self._model = model
        self._given = 0.0
        """Bytes that a puller there from the beginning would have got."""
        self._at_s = 0.0
        self._peers = 0
        self._ends: list[tuple[float, int]] = []

    @property
    def rate_bytes_per_s(self) -> float:
        """What each puller gets now."""
        model, pullers = self._model, len(self._ends)
        if not pullers:
            return 0.0
        if model.shared_bandwidth_bytes_per_s is None:
            return model.node_bandwidth_bytes_per_s
        shared = model.shared_bandwidth_bytes_per_s + (self._peers * model.node_bandwidth_bytes_per_s if model.peer_to_peer else 0.0)
        return min(model.node_bandwidth_bytes_per_s, shared / pullers)

    @property
    def next_s(self) -> float:
        """When the next pull is done if nothing changes; infinity where none is under way or nothing flows."""
        rate = self.rate_bytes_per_s
        return self._at_s + max(0.0, self._ends[0][0] - self._given) / rate if rate > 0 else math.inf

    def begin(self, number: int, size_bytes: float, now_s: float) -> None:
        """Replica ``number`` pulls from now on."""
        self._advance(now_s)
        heappush(self._ends, (self._given + size_bytes, number))

    def cancel(self, number: int, now_s: float) -> None:
        """Replica ``number`` pulls no more; without effect if it does not."""
        self._advance(now_s)
        self._ends = [end for end in self._ends if end[1] != number]
        heapify(self._ends)

    def peers(self, count: int, now_s: float) -> None:
        """So many ready replicas could serve the weights."""
        self._advance(now_s)
        self._peers = count

    def finished(self, now_s: float) -> list[int]:
        """Replicas whose weights are there by ``now_s``, each told once."""
        self._advance(now_s)
        done: list[int] = []
        dust = max(BYTES_LEFT_MAX, 1e-12 * self._given)
        while self._ends and self._ends[0][0] <= self._given + dust:
            done.append(heappop(self._ends)[1])
        return done

    def _advance(self, now_s: float) -> None:
        if not self._ends:
            self._given = 0.0
        self._given += (now_s - self._at_s) * self.rate_bytes_per_s
        self._at_s = now_s


class ColdStarts:
    """The recent measured cold starts; a high quantile of them is what a policy sees (the controller's rule)."""

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=COLD_STARTS_MAX)

    def take(self, seconds: float) -> None:
        """A replica is ready ``seconds`` after its node was asked for."""
        self._measured.append(seconds)

    def signal(self, now_s: float) -> Signal:
        """The COLD_START_QUANTILE of the measured ones, to the whole second; Unknown before the first."""
        measured = sorted(self._measured)
        if not measured:
            return Unknown("never")
        index = min(len(measured) - 1, int(COLD_START_QUANTILE * len(measured)))
        return Known(float(round(measured[index])), now_s)
