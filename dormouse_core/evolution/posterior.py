"""What is believed of a cell's pass rate, and which band of the curriculum that puts it in.

Each cell has a Beta(1 + passes, 1 + failures) posterior over its pass rate p, from counts that shrink by `discount` whenever the
cell is tried again, so the belief follows a policy that moves. Bands (seed bands 5 / 70 / archived, made precise):

    mastered   P(p > 0.9) > 0.9
    archived   P(p < 0.05) > 0.9, after at least 32 tries: too hard for now
    boundary   tried, not one success remembered, and not archived: nobody knows yet
    frontier   everything else, cells never tried included

All probabilities are read off one midpoint grid over p, vectorised over cells; counts are at least those of a uniform prior, so the
density is bounded and the grid is good to about 1e-6.
Not here: how often a band or a cell is drawn (curriculum).
"""

from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MASTERED_RATE, HOPELESS_RATE, SURE, HOPELESS_TRIES = 0.9, 0.05, 0.9, 32
_GRID = 4000
_P = (np.arange(_GRID) + 0.5) / _GRID
_LOG_P, _LOG_Q = np.log(_P), np.log1p(-_P)
_EPSILON = 1e-9  # a discounted remnant of a success below this is none


class Band(StrEnum):
    """Where a cell stands."""

    MASTERED = "mastered"  # drawn a little, so a regression shows
    FRONTIER = "frontier"  # where there is something to learn
    BOUNDARY = "boundary"  # no success yet, not hopeless
    ARCHIVED = "archived"  # too hard for now, probed again a little


class Posterior:
    """Beliefs about C cells. passes_C, trials_C: discounted counts, 0 <= passes <= trials."""

    def __init__(self, passes_C: NDArray[Any], trials_C: NDArray[Any]) -> None:
        self.passes_C = np.asarray(passes_C, dtype=np.float64)
        self.trials_C = np.asarray(trials_C, dtype=np.float64)
        if np.any(self.passes_C < 0) or np.any(self.passes_C > self.trials_C + _EPSILON):
            raise ValueError("a cell's passes must lie between 0 and its trials")

    @cached_property
    def density_CP(self) -> Floats:
        """Posterior mass of each grid point, rows summing to 1."""
        log_CP = self.passes_C[:, None] * _LOG_P + (self.trials_C - self.passes_C)[:, None] * _LOG_Q
        mass_CP = np.exp(log_CP - log_CP.max(1, keepdims=True))
        return np.asarray(mass_CP / mass_CP.sum(1, keepdims=True))

    @property
    def mean_C(self) -> Floats:
        """E[p]."""
        return (1 + self.passes_C) / (2 + self.trials_C)

    def above(self, rate: float) -> Floats:
        """P(p > rate), [C]."""
        return np.asarray(self.density_CP[:, rate < _P].sum(1))

    def between(self, low: float, high: float) -> Floats:
        """P(low <= p <= high), [C]."""
        return np.asarray(self.density_CP[:, (low <= _P) & (high >= _P)].sum(1))

    def spread_C(self) -> Floats:
        """E[p(1-p)], [C]: how often two answers to one task are expected to differ, halved; what a group baseline learns from."""
        a, b = 1 + self.passes_C, 1 + self.trials_C - self.passes_C
        return a * b / ((a + b) * (a + b + 1))

    def interval(self, level: float = 0.9) -> tuple[Floats, Floats]:
        """Central credible interval of p, ([C], [C])."""
        cumulative_CP = np.cumsum(self.density_CP, 1)
        tail = (1 - level) / 2
        low, high = (cumulative_CP < tail).sum(1), (cumulative_CP < 1 - tail).sum(1)
        return _P[np.minimum(low, _GRID - 1)], _P[np.minimum(high, _GRID - 1)]

    def bands(self, tried_C: NDArray[Any]) -> list[Band]:
        """Band of each cell. tried_C: answers ever given in the cell, never discounted."""
        mastered_C = self.above(MASTERED_RATE) > SURE
        hopeless_C = (1 - self.above(HOPELESS_RATE) > SURE) & (np.asarray(tried_C) >= HOPELESS_TRIES)
        unsolved_C = (self.passes_C < _EPSILON) & (np.asarray(tried_C) > 0)
        return [Band.MASTERED if m else Band.ARCHIVED if h else Band.BOUNDARY if u else Band.FRONTIER
                for m, h, u in zip(mastered_C, hopeless_C, unsolved_C, strict=True)]


def single_rate(pass_at_k: float, k: int) -> float:
    """The pass rate p of one answer at which 1 - (1-p)^k equals `pass_at_k`."""
    return 1 - (1 - pass_at_k) ** (1 / k)
