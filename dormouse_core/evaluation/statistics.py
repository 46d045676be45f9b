"""Estimates with intervals over tasks: pass@k, the stratified task bootstrap, paired differences and ratios.

The unit that is resampled is always the task (answers to one task are not independent), inside its pool, and the headline
is the mean of the pools; one resampling matrix serves every statistic of a report, so they are comparable and a report
costs one matrix product. Intervals are percentile intervals (Efron & Tibshirani 1993, ch. 13). A sample without any
spread has an interval of width zero: `wilson` is there for bounds on a rate near 0 or 1.
Not here: which answers count as passed (evaluate), and which statistic decides a promotion (holdout).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dormouse_core import seeding
from dormouse_core.config.base import Record
from dormouse_core.verifiers.rates import wilson_bounds

Floats = NDArray[np.float64]
LEVEL = 0.95


class Interval(Record):
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Ratio(Record):
    """A ratio of two means and its 95 % interval."""

    value: float
    low: float
    high: float | None
    """None: unbounded, the denominator was 0 in more than 2.5 % of the resamples."""

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {'unbounded' if self.high is None else f'{self.high:.2f}'}]"


def pass_at_k(counted_M: NDArray[Any], passed_M: NDArray[Any], k: int) -> Floats:
    """Chance that at least one of k answers drawn without replacement from a task's n counted ones passes, c of which do:
    1 - C(n-c, k) / C(n, k), as a product that never overflows (2107.03374, eq. 1). Unbiased for the task's own pass@k.

    Returns one value a task, [M]; nan where n < k (the estimate does not exist).
    """
    n, c = counted_M.astype(np.float64), passed_M.astype(np.float64)
    if np.any(c > n) or np.any(c < 0):
        raise ValueError("a task has more passes than counted answers")
    all_fail_M = np.ones_like(n)
    for i in range(k):
        all_fail_M *= np.clip(n - c - i, 0.0, None) / np.maximum(n - i, 1.0)
    return np.where(n >= k, 1.0 - all_fail_M, np.nan)


@dataclass(frozen=True)
class Resamples:
    """Weights of the tasks: `point_M @ x` is the mean over pools of the pool means of x, and each row of `boot_BM` is that
    of one bootstrap resample (tasks drawn with replacement inside their pool)."""

    point_M: Floats
    boot_BM: Floats

    def mean(self, value_M: NDArray[Any]) -> Interval:
        return self._interval(self.point_M @ value_M, self.boot_BM @ value_M)

    def means(self, value_MC: NDArray[Any]) -> list[Interval]:
        """One interval a column."""
        return [self._interval(p, b) for p, b in zip(self.point_M @ value_MC, (self.boot_BM @ value_MC).T, strict=True)]

    def ratio(self, over_M: NDArray[Any], under_M: NDArray[Any]) -> "Ratio | None":
        """mean(over) / mean(under), both of the same resampled tasks. None where mean(under) is 0. A resample whose `under`
        is 0 counts as infinite (as 1 where `over` is 0 too: no difference), so the upper end may not exist."""
        point = self.point_M @ under_M
        if point == 0:
            return None
        over_B, under_B = self.boot_BM @ over_M, self.boot_BM @ under_M
        empty_B = np.where(over_B > 0, np.inf, 1.0)
        ratio_B = np.where(under_B > 0, over_B / np.where(under_B > 0, under_B, 1.0), empty_B)
        low, high = _ends(ratio_B)
        return Ratio(value=float(self.point_M @ over_M / point), low=low, high=high if np.isfinite(high) else None)

    @staticmethod
    def _interval(point: float, value_B: Floats) -> Interval:
        low, high = _ends(value_B)
        return Interval(value=float(point), low=low, high=high)


def _ends(value_B: Floats) -> tuple[float, float]:
    """The two percentiles of a bootstrap distribution that may hold inf."""
    tail = (1 - LEVEL) / 2
    method: Any = "linear" if np.isfinite(value_B).all() else "inverted_cdf"  # linear would turn inf - inf into nan
    low, high = np.quantile(value_B, [tail, 1 - tail], method=method)
    return float(low), float(high)


def resample(stratum_M: Sequence[Any] | NDArray[Any], bootstrap: int, *names: str | int) -> Resamples:
    """Resampling weights of M tasks in their strata (pools), a function of the stream's names alone.

    bootstrap: B, how many resamples. Raises ValueError without tasks.
    """
    label_M = np.asarray(stratum_M)
    if not len(label_M):
        raise ValueError("a bootstrap needs at least one task")
    strata, member_M = np.unique(label_M, return_inverse=True)
    point_M, boot_BM = np.empty(len(label_M)), np.empty((bootstrap, len(label_M)))
    for s, name in enumerate(strata):
        rows = np.flatnonzero(member_M == s)
        m = len(rows)
        drawn_BM = seeding.generator("bootstrap", *names, str(name)).integers(0, m, size=(bootstrap, m))
        flat = drawn_BM + m * np.arange(bootstrap)[:, None]
        count_BM = np.bincount(flat.ravel(), minlength=bootstrap * m).reshape(bootstrap, m)
        point_M[rows] = 1.0 / (m * len(strata))
        boot_BM[:, rows] = count_BM / (m * len(strata))
    return Resamples(point_M, boot_BM)


def wilson(passed: int, counted: int) -> Interval:
    """Score interval of one rate (Wilson 1927): keeps its width at 0 and at 1."""
    low, high = wilson_bounds(passed, counted)
    return Interval(value=passed / counted if counted > 0 else 0.0, low=low, high=high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value that two paired yes/no policies differ: the discordant pairs are a fair coin under no
    difference. Used for greedy answers, one a task."""
    n, k = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    log_half = n * np.log(0.5)
    terms = np.cumsum([0.0] + [np.log((n - i) / (i + 1)) for i in range(k)])
    return float(min(1.0, 2 * np.exp(terms + log_half).sum()))
