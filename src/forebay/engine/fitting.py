"""The step law out of measurements: four coefficients, how sure each is, and what the measurements say nothing about.

Decode windows of a fixed batch give ``base``, ``per_sequence`` and ``per_kv_token``; first tokens of lone prompts on an idle engine
give ``per_prefill_token`` and the front end; single gaps between tokens, over what the law says, give the spread. Least squares on
*relative* error with no coefficient below 0, since a step can't get faster by more work; how sure a coefficient is comes from drawing
the measured cells anew with replacement (bootstrap).
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.domain.errors import BadInput
from forebay.domain.profile import StepLaw, StepSpread
from forebay.engine.spread import LEVELS, factors_of
from forebay.engine.steptime import step_s

DRAWS = 200
INTERVAL = (5.0, 95.0)
"""Percentiles of the draws that bound a coefficient."""
UNSURE = 0.5
"""An interval wider than this fraction of its coefficient, from end to end, identifies nothing."""
LOOSE = 0.25
"""Of one that is identified: an interval wider than this is said beside it."""
WEIGHTLESS = 0.03
"""A coefficient that adds less than this to the largest step that was measured can't be told from noise, nor does it matter there."""
OUTLIER_MADS = 6.0
LATE_LEAST = 0.02
"""Spread of a cell's first tokens that is taken for granted."""
GAPS_LEAST = 200
"""Fewer gaps than this don't show a quantile that one in a hundred exceeds."""
SPREAD_LEAST = 0.05
"""Of the median: steps that vary by less, one in twenty on either side, are taken for steady, since that may be the client's clock."""
STEPS_SHARE_LEAST = 1 / 3
"""Of the variance of single gaps: where less is the steps' own, gaps tell of the way to the client, and no spread is made of them."""
COEFFICIENTS = ("base_s", "per_sequence_s", "per_kv_token_s", "per_prefill_token_s")

_Matrix = npt.NDArray[np.float64]


class DecodeRow(msgspec.Struct, frozen=True):
    """A stretch of steps in which the same sequences decoded and nothing else happened."""

    cell: int
    """Rows of one cell were measured together and stand or fall together."""
    sequences: int
    kv_tokens: float
    """Mean over the stretch, of all sequences together."""
    step_s: float
    gaps_s: tuple[float, ...] = ()
    """Of one sequence, token by token; none where its tokens came several at a time."""


class PrefillRow(msgspec.Struct, frozen=True):
    """A lone prompt on an idle engine."""

    cell: int
    prompt_tokens: int
    ttft_s: float


class Coefficient(msgspec.Struct, frozen=True):
    """One number of the law, its interval, and whether the measurements identify it."""

    name: str
    value: float
    low: float
    high: float
    identified: bool
    because: str

    @property
    def loose(self) -> bool:
        """Identified, and none too well."""
        return self.identified and self.high - self.low > LOOSE * self.value


class Coverage(msgspec.Struct, frozen=True):
    """What was measured; outside of it the law is a guess."""

    sequences: tuple[int, int]
    kv_tokens: tuple[float, float]
    prompt_tokens: tuple[int, int]


class Fitted(msgspec.Struct, frozen=True):
    """The law and everything one should know before trusting it."""

    law: StepLaw
    front_end_s: float
    coefficients: tuple[Coefficient, ...]
    error_median: float
    """Relative error of step times on decode cells that a fit had not seen; NaN with fewer than four cells."""
    error_worst: float
    coverage: Coverage
    not_covered: tuple[str, ...]
    spread: StepSpread = StepSpread()
    """Of single steps about the law, what it can't explain included."""


def fit(decode: Sequence[DecodeRow], prefill: Sequence[PrefillRow], chunk_tokens: int, chance: np.random.Generator) -> Fitted:
    """The law that explains ``decode`` and ``prefill``; ``chunk_tokens`` is the token budget of a step.

    Raises BadInput where there is too little to fit: fewer than three decode cells or two prompt lengths.
    """
    if len({row.cell for row in decode}) < 3 or len({row.prompt_tokens for row in prefill}) < 2:
        raise BadInput("too little was measured to fit a law: it takes three decode cells or more, and two prompt lengths or more")
    decode = _without_outliers(decode)
    base, sequence, kv = _decode_law(decode)
    prefill = _prompt_without_outliers(prefill, base, chunk_tokens)
    front, token = _prefill_law(prefill, base, chunk_tokens)
    draws = _draws(decode, prefill, chunk_tokens, chance)
    values = (base, sequence, kv, token)
    longest_s = max(row.step_s for row in decode)
    weights = (
        base,
        sequence * max(row.sequences for row in decode),
        kv * max(row.kv_tokens for row in decode),
        token * max(row.prompt_tokens for row in prefill),
    )
    coefficients = tuple(
        _coefficient(name, value, draws[:, place], weight / longest_s)
        for place, (name, value, weight) in enumerate(zip(COEFFICIENTS, values, weights, strict=True))
    )
    median, worst = _unseen(decode)
    coverage = Coverage(
        (min(row.sequences for row in decode), max(row.sequences for row in decode)),
        (min(row.kv_tokens for row in decode), max(row.kv_tokens for row in decode)),
        (min(row.prompt_tokens for row in prefill), max(row.prompt_tokens for row in prefill)),
    )
    law = StepLaw(*values)
    return Fitted(law, front, coefficients, median, worst, coverage, _gaps(coverage, chunk_tokens), _spread(decode, law))


def _decode_law(rows: Sequence[DecodeRow]) -> tuple[float, float, float]:
    steps = np.array([row.step_s for row in rows])
    terms = np.array([(1.0, row.sequences, row.kv_tokens) for row in rows])
    return tuple(float(value) for value in _relative(terms, steps))  # type: ignore[return-value]


def _prefill_law(rows: Sequence[PrefillRow], base_s: float, chunk_tokens: int) -> tuple[float, float]:
    """Front end and seconds per prompt token, given the base of a step."""
    seen = np.array([row.ttft_s for row in rows])
    terms = np.array([(1.0, float(row.prompt_tokens)) for row in rows])
    left = np.maximum(seen - base_s * np.array([math.ceil(row.prompt_tokens / chunk_tokens) for row in rows]), 1e-9)
    solved = _nnls(terms / seen[:, None], left / seen)
    return float(solved[0]), float(solved[1])


def _spread(rows: Sequence[DecodeRow], law: StepLaw) -> StepSpread:
    """Quantiles of single steps over the law's time, scaled so that steps drawn from them take what the law says in the mean."""
    of_law = [gap_s / step_s(law, row.sequences, row.kv_tokens, 0) for row in rows for gap_s in row.gaps_s]
    if len(of_law) < GAPS_LEAST or _share_of_steps(rows) < STEPS_SHARE_LEAST:
        return StepSpread()
    found = np.maximum(np.quantile(of_law, LEVELS), 1e-3)
    found /= np.mean(factors_of(StepSpread(*found.tolist())))
    spread = StepSpread(*np.round(found, 4).tolist())
    near = max(spread.p95 / spread.p50, spread.p50 / spread.p5) <= 1 + SPREAD_LEAST
    return StepSpread() if near else spread


def _share_of_steps(rows: Sequence[DecodeRow]) -> float:
    """The part of the variance of single gaps that steps are the cause of, 0..1.

    A token that is late on its way makes its gap longer and the next one shorter by as much: with steps of variance ``s`` and ways of
    variance ``w``, each independent, gaps have the variance ``s + 2·w`` and neighbours the covariance ``-w``.
    """
    off = [np.array(row.gaps_s) / row.step_s for row in rows if len(row.gaps_s) > 1]
    off = [each - each.mean() for each in off]
    variance = float(np.mean(np.concatenate([each**2 for each in off])))
    covariance = float(np.mean(np.concatenate([each[1:] * each[:-1] for each in off])))
    return min(1.0, max(0.0, 1 + 2 * covariance / variance)) if variance else 0.0


def _relative(terms: _Matrix, seen: _Matrix) -> _Matrix:
    """Non-negative least squares of ``terms·x = seen`` on relative error; columns are scaled, as they differ by orders of magnitude."""
    scaled = terms / seen[:, None]
    size = np.maximum(np.abs(scaled).max(axis=0), 1e-300)
    solved = _nnls(scaled / size, np.ones(len(seen)))
    return np.asarray(solved / size)


def _nnls(terms: _Matrix, seen: _Matrix) -> _Matrix:
    """Non-negative least squares. scipy is loaded here: every verb of the command line would pay half a second for it."""
    from scipy.optimize import nnls

    return np.asarray(nnls(terms, seen)[0])


def _without_outliers(rows: Sequence[DecodeRow]) -> list[DecodeRow]:
    """``rows`` less those that the law misses by far more than the others: a pause of the machine is not the engine's."""
    base, sequence, kv = _decode_law(rows)
    off = np.array([row.step_s / max(base + sequence * row.sequences + kv * row.kv_tokens, 1e-12) - 1 for row in rows])
    spread = float(np.median(np.abs(off - np.median(off))))
    bound = OUTLIER_MADS * max(spread, 0.002)
    kept = [row for row, miss in zip(rows, off, strict=True) if abs(miss - float(np.median(off))) <= bound]
    return kept if len({row.cell for row in kept}) >= 3 else list(rows)


def _prompt_without_outliers(rows: Sequence[PrefillRow], base_s: float, chunk_tokens: int) -> list[PrefillRow]:
    """``rows`` less those that are late for their cell: a first token that is half a letter shows a step later, with the second."""
    front, token = _prefill_law(rows, base_s, chunk_tokens)
    off = [
        row.ttft_s / max(front + base_s * math.ceil(row.prompt_tokens / chunk_tokens) + token * row.prompt_tokens, 1e-12) for row in rows
    ]
    kept = []
    for cell in sorted({row.cell for row in rows}):
        beside = [miss for row, miss in zip(rows, off, strict=True) if row.cell == cell]
        middle = float(np.median(beside))
        bound = OUTLIER_MADS * max(float(np.median(np.abs(np.array(beside) - middle))), LATE_LEAST * middle)
        kept += [row for row, miss in zip(rows, off, strict=True) if row.cell == cell and abs(miss - middle) <= bound]
    return kept


def _draws(decode: Sequence[DecodeRow], prefill: Sequence[PrefillRow], chunk_tokens: int, chance: np.random.Generator) -> _Matrix:
    """The coefficients of ``DRAWS`` fits to cells drawn with replacement, one row each."""
    cells = sorted({row.cell for row in decode})
    prompts = sorted({row.cell for row in prefill})
    of_cell = {cell: [row for row in decode if row.cell == cell] for cell in cells}
    of_prompt = {cell: [row for row in prefill if row.cell == cell] for cell in prompts}
    found = np.empty((DRAWS, len(COEFFICIENTS)))
    for draw in range(DRAWS):
        rows = [row for cell in chance.choice(cells, len(cells)) for row in of_cell[int(cell)]]
        base, sequence, kv = _decode_law(rows)
        # Prompt lengths are few: within each the repeats are drawn anew, as a slope needs all of the lengths.
        lone = [
            of_prompt[cell][int(place)] for cell in prompts for place in chance.integers(len(of_prompt[cell]), size=len(of_prompt[cell]))
        ]
        _, token = _prefill_law(lone, base, chunk_tokens)
        found[draw] = (base, sequence, kv, token)
    return found


def _coefficient(name: str, value: float, draws: _Matrix, weight: float) -> Coefficient:
    low, high = (float(bound) for bound in np.percentile(draws, INTERVAL))
    if weight < WEIGHTLESS:
        why = f"it adds {weight:.1%} to the largest step measured, which can't be told from noise"
        return Coefficient(name, value, low, high, False, why)
    if low <= 0 or high - low > UNSURE * value:
        return Coefficient(name, value, low, high, False, "its interval is wider than half of it: measure a wider range, or for longer")
    return Coefficient(name, value, low, high, True, "")


def _unseen(rows: Sequence[DecodeRow]) -> tuple[float, float]:
    """Median and worst relative error on each quarter of the cells by a fit to the other three."""
    cells = sorted({row.cell for row in rows})
    if len(cells) < 4:
        return math.nan, math.nan
    errors = []
    for part in range(4):
        held = set(cells[part::4])
        base, sequence, kv = _decode_law([row for row in rows if row.cell not in held])
        predicted = [(base + sequence * row.sequences + kv * row.kv_tokens, row.step_s) for row in rows if row.cell in held]
        errors += [abs(guess / seen - 1) for guess, seen in predicted]
    return float(np.median(errors)), float(max(errors))


def _gaps(coverage: Coverage, chunk_tokens: int) -> tuple[str, ...]:
    gaps = [
        f"more than {coverage.sequences[1]} sequences at once",
        f"more than {coverage.kv_tokens[1]:.0f} KV tokens in use, and what happens when KV runs out",
        f"prompts longer than {coverage.prompt_tokens[1]} tokens",
        "prompts beside running requests: the law takes their costs to add up",
    ]
    if coverage.prompt_tokens[1] <= chunk_tokens:
        gaps.append(f"prompts of more than one chunk ({chunk_tokens} tokens)")
    return tuple(gaps)
