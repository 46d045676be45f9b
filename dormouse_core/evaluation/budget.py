"""correct@budget(bytes): what a policy solves when an answer may cost at most b new bytes.

A(b) = mean over tasks of the share of a task's answers that pass and took no more than b bytes, all bytes the policy wrote
counted (working, tool calls, answer, END). It is read from answers given under the task's own budget, not from answers cut
at b: the policy did not know b. Rising with b, and at the task budget equal to pass@1.
Not here: best-of-k under a shared budget, and generation stopped at b (a harness probe, another number).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dormouse_core.config.base import Record
from dormouse_core.evaluation.scores import Scores
from dormouse_core.evaluation.statistics import Interval, Ratio, Resamples


class BudgetCurve(Record):
    """correct@budget of one pool, or of the mean of pools."""

    budgets: tuple[int, ...]
    """New bytes an answer may have used."""
    correct: tuple[Interval, ...]
    """A(b), one interval a budget."""
    area: Interval | None
    """Mean height of A over ln b from the first budget to the last (trapezoids); None with a single budget."""
    bytes_per_solved: Ratio | None
    """All new bytes written, of passing and failing answers, for each passing answer. None when nothing passed."""
    median_correct_bytes: float | None
    """Median new bytes of the passing answers."""


def correct_at(scores: Scores, budgets: Sequence[int]) -> NDArray[np.float64]:
    """[M, B]: share of each task's counted sampled answers that pass within b bytes. Tasks need a counted answer."""
    within_MSB = scores.bytes_MS[:, 1:, None] <= np.asarray(budgets)
    hits_MB = (scores.passed_MS[:, 1:, None] & within_MSB).sum(1)
    return hits_MB / scores.sampled_counted_M[:, None]


def area_weights(budgets: Sequence[int]) -> NDArray[np.float64]:
    """[B] weights of the trapezoid rule over ln b, summing to 1."""
    width = np.diff(np.log(np.asarray(budgets, dtype=np.float64)))
    weights = np.zeros(len(budgets))
    weights[:-1] += width / 2
    weights[1:] += width / 2
    return weights / weights.sum()


def budget_curve(scores: Scores, budgets: Sequence[int], resamples: Resamples) -> BudgetCurve:
    """The curve over the tasks of `scores`, each with at least one counted answer; `resamples` are of the same tasks.

    Raises ValueError when the budgets do not rise.
    """
    if list(budgets) != sorted(set(budgets)) or budgets[0] < 1:
        raise ValueError(f"budgets must be positive and rise: {tuple(budgets)}")
    at_MB = correct_at(scores, budgets)
    counted_MS, passed_MS = scores.counted_MS[:, 1:], scores.passed_MS[:, 1:]
    written_M = np.where(counted_MS, scores.bytes_MS[:, 1:], 0).sum(1) / scores.sampled_counted_M
    right = scores.bytes_MS[:, 1:][passed_MS]
    return BudgetCurve(
        budgets=tuple(budgets), correct=tuple(resamples.means(at_MB)),
        area=resamples.mean(at_MB @ area_weights(budgets)) if len(budgets) > 1 else None,
        bytes_per_solved=resamples.ratio(written_M, scores.rate_M()),
        median_correct_bytes=float(np.median(right)) if len(right) else None)
