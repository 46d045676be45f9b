"""The failure memory: of every task nobody solved, a diagnosis, a pointer to the task, and where the best try ended.

What was answered is never kept: a small policy that is shown its own failed answer copies it (docs/mechanisms/failure-memory.md). So a
row names the verdict class, the component that decided, and the exception class if there was one; no byte the policy wrote.
A task leaves the memory when it is solved, and the oldest leave when the memory is full.
Not here: how much of a round the memory gets (curriculum), and which cells a lost holdout moves (strategy_review).
"""

import builtins
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import Ledger
from dormouse_core.rollouts import stage as rolling
from dormouse_core.rollouts import verify
from dormouse_core.rollouts.stage import RolloutSet
from dormouse_core.rollouts.trajectory import Start, Trajectory
from dormouse_core.tasks.store import tasks_from_table
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

STAGE = "failure_memory"
CAPACITY = 512
SCHEMA = pa.schema([
    ("task_id", pa.string()), ("tasks", pa.string()), ("pool", pa.string()), ("family", pa.string()), ("difficulty", pa.int32()),
    ("cycle", pa.string()), ("answers", pa.int32()), ("verdict", pa.string()), ("decided_by", pa.string()), ("reason_class", pa.string()),
    ("share", pa.float64()), ("best_score", pa.float64()), ("step", pa.int32()), ("state_digest", pa.string())])
"""`tasks`: identity of the TASKS artifact that holds the task. `answers`: counted answers, none of which passed. `verdict`, `decided_by`,
`reason_class`: the commonest diagnosis and its `share`. `best_score`: of the best answer; `step` and `state_digest`: where it ended."""
_EXCEPTION = re.compile(r"\b[A-Z]\w*\b")
_KNOWN = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException))

Row = dict[str, object]


def reason_class(reason: str) -> str:
    """The exception class a reason names, else "". A reason may quote the answer, so nothing else of it is kept."""
    return next((word for word in _EXCEPTION.findall(reason) if word in _KNOWN), "")


def diagnose(task: Task, tried: Sequence[tuple[Trajectory, Verdict]], tasks_identity: str, cycle: str) -> Row | None:
    """The row of one task; None where an answer passed or none counted."""
    counted = [(t, v) for t, v in tried if v.verdict.counts]
    if not counted or any(v.verdict is VerdictClass.PASS for _, v in counted):
        return None
    causes = Counter((v.verdict.value, v.decided_by, reason_class(v.reason)) for _, v in counted)
    cause, n = min(causes.items(), key=lambda item: (-item[1], item[0]))
    best, verdict = min(counted, key=lambda pair: (-pair[1].score, pair[0].id))
    last = best.steps[-1] if best.steps else None
    return {"task_id": task.id, "tasks": tasks_identity, "pool": task.pool.value, "family": task.family, "difficulty": task.difficulty,
            "cycle": cycle, "answers": len(counted), "verdict": cause[0], "decided_by": cause[1], "reason_class": cause[2],
            "share": n / len(counted), "best_score": verdict.score, "step": last.step if last else -1,
            "state_digest": last.state_digest if last else ""}


def remember(tasks: Sequence[Task], trajectories: Iterable[Trajectory], verdicts: Mapping[str, Verdict], tasks_identity: str, cycle: str,
             previous: Sequence[Row] = ()) -> list[Row]:
    """The memory after a round: rows of `previous` for tasks not tried again, and this round's failures; newest first, at most
    CAPACITY. Only whole episodes count: a fork starts elsewhere. Verdicts by trajectory id; a trajectory without one is left out."""
    tried: dict[str, list[tuple[Trajectory, Verdict]]] = defaultdict(list)
    for t in trajectories:
        if t.start is Start.ROOT and not t.probe and t.id in verdicts:
            tried[t.task_id].append((t, verdicts[t.id]))
    new = [row for task in tasks if task.id in tried and (row := diagnose(task, tried[task.id], tasks_identity, cycle)) is not None]
    kept = [row for row in previous if row["task_id"] not in tried]
    return sorted({str(r["task_id"]): r for r in [*kept, *new]}.values(), key=_newest_first)[:CAPACITY]


def _newest_first(row: Row) -> tuple[list[int], float, str]:
    return [-ord(c) for c in str(row["cycle"])], -float(str(row["best_score"])), str(row["task_id"])


def cell_weights(rows: Iterable[Row]) -> dict[str, float]:
    """Cell -> weight: one for each failed task, two for one that was nearly solved."""
    weights: dict[str, float] = defaultdict(float)
    for row in rows:
        weights[f"{row['family']}/d{row['difficulty']}"] += 1 + float(str(row["best_score"]))
    return dict(sorted(weights.items()))


def diagnosis_of(rows: Iterable[Row], cell: str) -> str:
    """What a person reads of a cell: how many tasks failed, and mostly of what."""
    mine = [r for r in rows if f"{r['family']}/d{r['difficulty']}" == cell]
    causes = Counter((str(r["verdict"]), str(r["decided_by"]), str(r["reason_class"])) for r in mine)
    (verdict, decided_by, reason), n = min(causes.items(), key=lambda item: (-item[1], item[0]))
    return f"{len(mine)} unsolved tasks, {n} of them {verdict} by {decided_by}{f' ({reason})' if reason else ''}"


def run(config: RunConfig, rollouts: Artifact, verdicts: Artifact, tasks: Artifact, *, previous: Artifact | None = None, store: Store,
        ledger: Ledger, run_id: str = "") -> Artifact:
    """Failures of one judged ROLLOUTS set, added to those of the cycle before. Returns the FAILURE_MEMORY table."""
    rolled = store.read_record(rollouts, RolloutSet)
    old = store.read_table(previous).to_pylist() if previous is not None else []
    rows = remember(tasks_from_table(store.read_table(tasks)), rolling.load(store, rollouts),
                    verify.load(store, verdicts), tasks.identity, rolled.cycle, old)
    ledger.count("failure_memory.rows", len(rows))
    ledger.count("failure_memory.new", sum(r["cycle"] == rolled.cycle for r in rows))
    inputs = [("rollouts", rollouts), ("verdicts", verdicts), ("tasks", tasks)] + ([("previous", previous)] if previous is not None else [])
    return store.put_table(pa.Table.from_pylist(rows, schema=SCHEMA), ("task_id",), Provenance(
        kind=Kind.FAILURE_MEMORY, stage=STAGE, parents=tuple(Parent(role=r, kind=a.kind, identity=a.identity) for r, a in inputs),
        config_sha256=config.sha256(), code_version=code_version(), seed=config.runtime.seed, counters=ledger.counters(), run_id=run_id))
