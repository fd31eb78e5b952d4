"""How long prompts and answers are: pairs drawn from a trace's own rows, from percentiles, or lognormally around two means."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay.demand.trace import TOKENS_MAX

Lengths = npt.NDArray[np.int32]
LENGTH_CV = 1.0
"""Variation of lengths where only their means are known: in Azure's conversations of 2023 it is 0.96 (prompts) and 0.77 (answers)."""
TAIL_MAX = 2.0
"""Nothing is longer than this times the 99th percentile: what lies beyond is not published."""
MEAN_POINTS = 1000
_Z90, _Z99 = 1.2815515655446004, 2.3263478740408408
Floats = npt.NDArray[np.float64]


class LengthSampler(Protocol):
    """Draws pairs of lengths, each at least 1."""

    @property
    def prompt_tokens_mean(self) -> float:
        """What a prompt has on average: turns tokens per second into requests per second."""
        ...

    def draw(self, count: int, chance: np.random.Generator) -> tuple[Lengths, Lengths]:
        """``count`` prompts and their answers."""
        ...


class FromRows:
    """Rows of a real trace, drawn with replacement: how prompt and answer go together is kept."""

    def __init__(self, prompt_tokens: Lengths, output_tokens: Lengths) -> None:
        if len(prompt_tokens) == 0:
            raise ValueError("lengths are drawn from at least one row")
        self._prompt, self._output = prompt_tokens.astype(np.int32), output_tokens.astype(np.int32)

    @property
    def prompt_tokens_mean(self) -> float:
        return float(self._prompt.mean())

    def draw(self, count: int, chance: np.random.Generator) -> tuple[Lengths, Lengths]:
        row = chance.integers(0, len(self._prompt), count, dtype=np.int32)
        return self._prompt[row], self._output[row]


class Lognormal:
    """Both lengths lognormal around their means, independent of each other; ``cv`` 0 makes them fixed."""

    def __init__(self, prompt_tokens: float, output_tokens: float, cv: float = LENGTH_CV) -> None:
        if not (prompt_tokens >= 1 and output_tokens >= 1 and 0 <= cv < math.inf):
            raise ValueError(f"mean lengths of {prompt_tokens} and {output_tokens} with a variation of {cv}: means are at least 1")
        self._means = (float(prompt_tokens), float(output_tokens))
        self._sigma = math.sqrt(math.log1p(cv * cv))

    @property
    def prompt_tokens_mean(self) -> float:
        return self._means[0]

    def draw(self, count: int, chance: np.random.Generator) -> tuple[Lengths, Lengths]:
        first, second = (self._one(mean, count, chance) for mean in self._means)
        return first, second

    def _one(self, mean: float, count: int, chance: np.random.Generator) -> Lengths:
        if self._sigma == 0:
            return np.full(count, round(mean), np.int32)
        return whole(mean * np.exp(chance.normal(-self._sigma * self._sigma / 2, self._sigma, count)))


class Percentiles:
    """Lengths whose 50th, 90th and 99th percentiles are given (and the 10th, where it is known); prompt and answer are independent."""

    def __init__(self, prompt: Sequence[float], output: Sequence[float]) -> None:
        """Three percentiles each, or four with the 10th first. Raises ValueError unless they rise from at least 1."""
        self._prompt, self._output = (self._checked(one) for one in (prompt, output))

    @staticmethod
    def _checked(given: Sequence[float]) -> Floats:
        if len(given) not in (3, 4) or given[0] < 1 or list(given) != sorted(given):
            raise ValueError(f"percentiles {list(given)}: three (or four) that rise, from 1 on")
        return pieces(np.array([given[-3:]], np.float64), np.array(given[:-3] or None, np.float64))

    @property
    def prompt_tokens_mean(self) -> float:
        return mean_of(self._prompt[0])

    def draw(self, count: int, chance: np.random.Generator) -> tuple[Lengths, Lengths]:
        first, second = (by_score(one, chance.standard_normal(count)) for one in (self._prompt, self._output))
        return first, second


def whole(tokens: npt.NDArray[np.float64]) -> Lengths:
    """Rounded, and within what a row may have."""
    return np.clip(np.rint(tokens), 1, TOKENS_MAX).astype(np.int32)


def pieces(percentiles: Floats, tenth: Floats | None = None) -> Floats:
    """Lognormal piece by piece through percentiles of shape (rows, 3: 50th, 90th, 99th) and, where given, 10ths of shape (rows,).

    Gives, per row, the log of the three and the slopes below the median, up to the 90th and up to the 99th, by the normal
    score; shape (rows, 6). Without a 10th, below the median is as above it.
    """
    log = np.log(np.maximum(percentiles, 1.0))
    slope = (log[:, 1] - log[:, 0]) / _Z90
    below = slope if tenth is None or np.isnan(tenth).any() else (log[:, 0] - np.log(np.maximum(tenth, 1.0))) / _Z90
    return np.column_stack((log, below, slope, (log[:, 2] - log[:, 1]) / (_Z99 - _Z90)))


def by_score(given: Floats, z: Floats) -> Lengths:
    """Lengths at normal scores ``z``, by `pieces` of shape (1 or as many, 6)."""
    log50, log90, log99, below, slope, steep = given.T
    log = np.where(z < 0, log50 + below * z, np.where(z < _Z90, log50 + slope * z, log90 + steep * (z - _Z90)))
    return whole(np.exp(np.minimum(log, log99 + math.log(TAIL_MAX))))


def mean_of(piece: Floats) -> float:
    """The mean of one row of `pieces`, by even quantiles."""
    return float(by_score(piece[np.newaxis], _EVEN_SCORES).mean())


_EVEN_SCORES = np.array([NormalDist().inv_cdf((k + 0.5) / MEAN_POINTS) for k in range(MEAN_POINTS)])
