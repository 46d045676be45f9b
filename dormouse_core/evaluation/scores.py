"""Scores: what a policy's judged answers to a list of tasks came to, as arrays and as the stored per-task table.

Column 0 of every [M, S] array is the greedy answer, columns 1.. the sampled ones. A failure of the policy's own making is
in every denominator; an answer without a verdict, or screened as a hack, is in none and is counted apart.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.verdict import NO_VERDICT, VerdictClass

GREEDY = 0
_COUNTS = frozenset(v.value for v in VerdictClass if v.counts)
SCHEMA = pa.schema([
    ("role", pa.string()), ("task_id", pa.string()), ("pool", pa.string()), ("family", pa.string()), ("difficulty", pa.int32()),
    ("byte_budget", pa.int32()), ("greedy_class", pa.string()), ("greedy_bytes", pa.int32()), ("passes", pa.int32()),
    ("counted", pa.int32()), ("classes", pa.list_(pa.string())), ("bytes", pa.list_(pa.int32()))])
"""One row a task: `passes` of `counted` sampled answers; `classes` and `bytes` list them in sampling order."""


@dataclass(frozen=True)
class Scores:
    """Judged answers to M tasks."""

    tasks: Sequence[Task]
    class_MS: NDArray[np.str_]  # verdict class of each answer
    bytes_MS: NDArray[np.int64]  # new bytes each answer wrote, END included

    def __post_init__(self) -> None:
        if self.class_MS.shape != self.bytes_MS.shape or len(self.class_MS) != len(self.tasks):
            raise ValueError(f"{len(self.tasks)} tasks, classes {self.class_MS.shape}, bytes {self.bytes_MS.shape} do not belong together")

    @property
    def pool_M(self) -> NDArray[np.str_]:
        return np.array([t.pool.value for t in self.tasks])

    @property
    def cell_M(self) -> NDArray[np.str_]:
        return np.array([t.cell for t in self.tasks])

    @property
    def counted_MS(self) -> NDArray[np.bool_]:
        return np.isin(self.class_MS, list(_COUNTS))

    @property
    def passed_MS(self) -> NDArray[np.bool_]:
        return self.class_MS == VerdictClass.PASS.value

    @property
    def sampled_counted_M(self) -> NDArray[np.int64]:
        return self.counted_MS[:, 1:].sum(1)

    @property
    def sampled_passed_M(self) -> NDArray[np.int64]:
        return self.passed_MS[:, 1:].sum(1)

    def rate_M(self) -> NDArray[np.float64]:
        """Share of a task's counted sampled answers that passed; nan without any."""
        n = self.sampled_counted_M
        return np.where(n > 0, self.sampled_passed_M / np.maximum(n, 1), np.nan)

    def no_verdict_share(self) -> float:
        return float(np.isin(self.class_MS, [v.value for v in NO_VERDICT]).mean())

    def classes(self) -> dict[str, int]:
        """How often each verdict class was given, greedy and sampled answers together."""
        return dict(sorted(Counter(self.class_MS.ravel().tolist()).items()))

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> "Scores":
        """The scores of some of the tasks: row numbers or a mask."""
        index = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Scores([self.tasks[i] for i in index], self.class_MS[index], self.bytes_MS[index])

    def table(self, role: str) -> pa.Table:
        """The stored form. role: what these scores are to their report (`candidate`, `base`, a split's name)."""
        counted, passed = self.sampled_counted_M, self.sampled_passed_M
        rows = [{"role": role, "task_id": t.id, "pool": t.pool.value, "family": t.family, "difficulty": t.difficulty,
                 "byte_budget": t.byte_budget, "greedy_class": str(self.class_MS[i, GREEDY]), "greedy_bytes": int(self.bytes_MS[i, GREEDY]),
                 "passes": int(passed[i]), "counted": int(counted[i]), "classes": self.class_MS[i, 1:].tolist(),
                 "bytes": self.bytes_MS[i, 1:].tolist()} for i, t in enumerate(self.tasks)]
        return pa.Table.from_pylist(rows, schema=SCHEMA)
