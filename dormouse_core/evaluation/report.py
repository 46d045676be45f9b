"""The numbers of one evaluation: per cell, per pool and for the mean of pools, each with its interval, and the suite's bounds.

A report is made of `Scores` alone, so the same numbers can be made again from the stored per-task table.
"""

from collections.abc import Sequence

import numpy as np

from dormouse_core.artifacts.provenance import Parent
from dormouse_core.config.base import Record
from dormouse_core.config.stages import EvalConfig
from dormouse_core.evaluation.budget import BudgetCurve, budget_curve
from dormouse_core.evaluation.hacks import HackReport
from dormouse_core.evaluation.policies import Bound, BoundPolicy
from dormouse_core.evaluation.scores import GREEDY, Scores
from dormouse_core.evaluation.statistics import Interval, pass_at_k, resample

MEAN = "mean"
"""Name of the mean of pools among the pools of a report."""


class PoolReport(Record):
    """One pool, or the mean of pools: every rate is first a task's, then the pool's, then (for the mean) the pools'."""

    pool: str
    tasks: int
    answers: int
    """Sampled answers that were counted."""
    greedy: Interval
    """pass@1 of the one greedy answer."""
    sampled: Interval
    """pass@1 of the sampled answers."""
    pass_at: dict[int, Interval]
    """Unbiased pass@k of the sampled answers."""
    budget: BudgetCurve
    classes: dict[str, int]
    """Verdict classes of all answers."""
    uncounted: int
    """Answers outside every denominator: no verdict, or screened."""


class CellReport(Record):
    pool: str
    cell: str
    tasks: int
    greedy: float
    sampled: float


class SplitReport(Record):
    """One policy on one split of a suite."""

    split: str
    root: str
    """What the split's task seeds derive from: the candidate's identity (fresh), or the frozen root."""
    pools: tuple[PoolReport, ...]
    """The pools in suite order, then their mean."""
    cells: tuple[CellReport, ...]
    bounds: tuple[Bound, ...]
    left_out: int
    """Tasks without a single counted answer."""

    @property
    def mean(self) -> PoolReport:
        return self.pools[-1]

    @property
    def broken(self) -> tuple[str, ...]:
        """Why the numbers are not to be trusted; empty when they are."""
        side = {b.policy: "at least" if b.policy is BoundPolicy.ORACLE else "at most" for b in self.bounds}
        return tuple(f"{b.policy} on {b.pool} reached {b.rate:.3f} where {side[b.policy]} {b.limit:.3f} is possible"
                     for b in self.bounds if not b.holds)


class EvalReport(Record):
    """What `post-train eval` writes."""

    checkpoint: Parent
    suite: str
    samples: int
    temperature: float
    splits: tuple[SplitReport, ...]
    table: Parent
    """Per-task rows of every split."""
    verdict: str
    """VALID, or INVALID and why: a violated bound means suite or verifier is broken."""
    hacks: HackReport | None = None
    """The proven hack rate, measured on its own (profile `full`); no number above holds one of its episodes."""

    def split(self, name: str) -> SplitReport:
        """Raises KeyError when the report has no such split."""
        return {s.split: s for s in self.splits}[name]


def split_report(scores: Scores, split: str, root: str, bounds: Sequence[Bound], config: EvalConfig, *names: str | int) -> SplitReport:
    """All numbers of one policy on one split. names: the stream of the bootstrap.

    Raises ValueError when no task has a counted answer.
    """
    usable = (scores.sampled_counted_M > 0) & scores.counted_MS[:, GREEDY]
    kept = scores.take(usable)
    pools = list(dict.fromkeys(kept.pool_M.tolist()))
    reports = [pool_report(kept.take(kept.pool_M == p), p, config, *names) for p in pools]
    cells = [_cell(kept.take(kept.cell_M == c)) for c in dict.fromkeys(kept.cell_M.tolist())]
    return SplitReport(split=split, root=root, pools=(*reports, pool_report(kept, MEAN, config, *names)), cells=tuple(cells),
                       bounds=tuple(bounds), left_out=int((~usable).sum()))


def pool_report(scores: Scores, pool: str, config: EvalConfig, *names: str | int) -> PoolReport:
    """The numbers of some tasks; where they are of several pools, the mean of the pools."""
    weights = resample(scores.pool_M, config.bootstrap, *names)
    counted_M, passed_M = scores.sampled_counted_M, scores.sampled_passed_M
    ks = [k for k in powers_of_two(config.samples) if (counted_M >= k).all()]
    return PoolReport(
        pool=pool, tasks=len(scores.tasks), answers=int(counted_M.sum()), greedy=weights.mean(scores.passed_MS[:, GREEDY].astype(float)),
        sampled=weights.mean(scores.rate_M()), pass_at={k: weights.mean(pass_at_k(counted_M, passed_M, k)) for k in ks},
        budget=budget_curve(scores, config.budgets, weights), classes=scores.classes(), uncounted=int((~scores.counted_MS).sum()))


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`."""
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def _cell(scores: Scores) -> CellReport:
    first = scores.tasks[0]
    return CellReport(pool=first.pool.value, cell=first.cell, tasks=len(scores.tasks), greedy=float(scores.passed_MS[:, GREEDY].mean()),
                      sampled=float(np.mean(scores.rate_M())))
