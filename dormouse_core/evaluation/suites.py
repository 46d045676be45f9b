"""The tasks a policy is measured on: a suite's cells, drawn from one split.

FRESH seeds derive from the candidate's identity, so no training could have known them and a re-run draws the same tasks;
FROZEN tasks are fixed once, for trend lines. A pool gets `tasks_per_pool` tasks, spread evenly over its cells, so that the
headline (mean of pools) never depends on how many cells a pool happens to have.
"""

from collections.abc import Sequence

from dormouse_core.config.suite import Suite, SuiteCell
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.registry import draw_distinct
from dormouse_core.tasks.task import Split, Task, Use

_ROLE = {Split.FRESH: "train", Split.FROZEN: "train", Split.BEYOND: "beyond", Split.UNSEEN: "unseen"}


def spread(total: int, parts: int) -> list[int]:
    """`total` as `parts` whole numbers that differ by at most one, larger first."""
    return [total // parts + (i < total % parts) for i in range(parts)]


def suite_tasks(suite: Suite, split: Split, root: str, tasks_per_pool: int, ledger: Ledger) -> list[Task]:
    """The tasks of one split of a suite, pool by pool, cell by cell.

    root: identity of the candidate for FRESH, BEYOND and UNSEEN; ignored by FROZEN. A cell with fewer distinct tasks than
    asked gives what it has, counted. Raises DormouseError when the suite has no cells for the split.
    """
    if split not in _ROLE:
        raise DormouseError(f"split {split} is not one to evaluate a suite on; choose from {', '.join(_ROLE)}")
    named = dict.fromkeys(c.pool for c in suite.cells)
    cells = {pool: [c for c in suite.cells if c.pool == pool and c.role == _ROLE[split]] for pool in named}
    tasks: dict[str, Task] = {}
    for members in cells.values():
        for cell, n in zip(members, spread(tasks_per_pool, len(members)) if members else [], strict=True):
            tasks |= {t.id: t for t in _draw(cell, split, n, root, set(tasks), ledger)}
    if not tasks:
        raise DormouseError(f"suite {suite.name} has no cells of role `{_ROLE[split]}`, which split {split} is drawn from; add some or "
                            "leave the split out")
    require_evaluation(list(tasks.values()), f"suite {suite.name}")
    return list(tasks.values())


def _draw(cell: SuiteCell, split: Split, n: int, root: str, taken: set[str], ledger: Ledger) -> list[Task]:
    """Up to n tasks of a cell that no cell before it has: difficulties of a family may overlap."""
    asked = n
    while True:
        found = draw_distinct(cell.family, cell.difficulty, split, asked, root)
        fresh = [t for t in found if t.id not in taken][:n]
        if len(fresh) == n or len(found) < asked:
            break
        asked += n - len(fresh)
    ledger.ask(f"tasks of {cell.name}", ran=True, n=len(fresh))
    if len(fresh) < n:
        ledger.ask(f"tasks of {cell.name}", ran=False, n=n - len(fresh))
        ledger.loud(f"cell {cell.name} has only {len(fresh)} distinct {split} tasks of the {n} asked for; measured on those")
    return fresh


def require_evaluation(tasks: Sequence[Task], where: str) -> None:
    """Raises DormouseError when a task may be trained on: a score over it would not be held out."""
    leaked = [t for t in tasks if t.use is not Use.EVALUATION]
    if leaked:
        first = f"{leaked[0].cell} {leaked[0].id[:12]}"
        raise DormouseError(f"{where}: {len(leaked)} of {len(tasks)} tasks are training tasks (first: {first}); an evaluation "
                            "needs tasks whose use is `evaluation`")
