"""How a round's tasks are spread over cells: pool shares, band masses, weights inside a band, and a draw of low variance.

    pool      an even floor, so that every pool keeps being trained, and the rest by what a pool has left to learn
    band      the masses of the configuration, renormalised over the bands that have cells in the pool
    cell      frontier: E[p(1-p)] * (1 + bonus * P(pass@k in the target)); boundary: P(p > 1/64); mastered, archived: evenly
    factor    what a strategy review asked for, multiplied in before the pool's mass is shared out

Everything here is a function of arrays; what they are made of is in `curriculum`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dormouse_core.evolution.posterior import Band, Posterior, single_rate

Floats = NDArray[np.float64]
NOT_HOPELESS = 1 / 64


def value_C(belief: Posterior, bands: Sequence[Band], k: int, target: tuple[float, float], bonus: float) -> Floats:
    """Weight of each cell inside its own band, before factors; positive everywhere."""
    low, high = (single_rate(edge, k) for edge in target)
    frontier_C = belief.spread_C() * (1 + bonus * belief.between(low, high))
    boundary_C = belief.above(NOT_HOPELESS)
    by_band = {Band.FRONTIER: frontier_C, Band.BOUNDARY: boundary_C}
    return np.array([max(float(by_band[b][i]) if b in by_band else 1.0, 1e-6) for i, b in enumerate(bands)])


def band_mass_C(bands: Sequence[Band], masses: Mapping[str, float], weight_C: Floats) -> Floats:
    """Share of each cell of one pool, summing to 1: its band's mass over the bands that have cells, split by weight. Where every
    band that has cells has mass 0, all cells share by weight."""
    share_C = np.zeros(len(bands))
    for band in set(bands):
        rows = np.array([b is band for b in bands])
        share_C[rows] = masses[band.value] * weight_C[rows] / weight_C[rows].sum()
    total = share_C.sum()
    return np.asarray(share_C / total if total > 0 else weight_C / weight_C.sum())


def pool_shares(potential: Mapping[str, float], floor: float) -> dict[str, float]:
    """Share of a round each pool gets: `floor` split evenly, the rest in proportion to potential. Sums to 1."""
    total = sum(potential.values())
    even = 1 / len(potential)
    return {pool: floor * even + (1 - floor) * (p / total if total > 0 else even) for pool, p in potential.items()}


def systematic(share_C: NDArray[Any], n: int, offset: float) -> NDArray[np.int64]:
    """n draws as counts per cell: every count is its expectation n * share rounded down or up, and on average exactly it.

    offset: one uniform number in [0, 1). (Systematic sampling: points at i + offset on the cumulated expectations.)
    """
    edges = np.cumsum(np.asarray(share_C, dtype=np.float64)) * n
    edges[-1] = n
    cuts = np.ceil(np.concatenate([[0.0], edges]) - offset).astype(np.int64)
    return np.asarray(cuts[1:] - cuts[:-1])
