"""Verdicts as a table and as a report a person can check line by line."""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from dormouse_core.config.base import Record
from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.task import Task, VerifierKind
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.verdict import NO_VERDICT, Verdict, VerdictClass

KEYS = ("trajectory_id",)
"""Columns that name a row."""
VOLATILE = ("wall_ms", "cpu_ms")
"""Columns that vary from run to run: kept, never part of an identity."""
SCHEMA = pa.schema([
    ("trajectory_id", pa.string()), ("task_id", pa.string()), ("kind", pa.string()), ("verdict", pa.string()), ("score", pa.float64()),
    ("cases_passed", pa.int32()), ("cases_total", pa.int32()), ("milestones_passed", pa.int32()), ("milestones_total", pa.int32()),
    ("isolation", pa.string()), ("layers", pa.string()), ("decided_by", pa.string()), ("reason", pa.string()), ("labels", pa.string()),
    ("verifier_sha256", pa.string()), ("wall_ms", pa.float64()), ("cpu_ms", pa.float64()),
])
_JOINED = ("layers", "labels")


def verdicts_to_table(verdicts: Sequence[Verdict]) -> pa.Table:
    """One row a verdict. Layers and labels are one space-separated string each."""
    columns = {name: [getattr(v, name) for v in verdicts] for name in SCHEMA.names}
    for name in _JOINED:
        columns[name] = [" ".join(x) for x in columns[name]]
    for name in ("kind", "verdict"):
        columns[name] = [x.value for x in columns[name]]
    return pa.table([pa.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)


def verdicts_from_table(table: pa.Table) -> list[Verdict]:
    """Inverse of `verdicts_to_table`. Raises DormouseError where a column is missing."""
    missing = set(SCHEMA.names) - set(table.column_names)
    if missing:
        raise DormouseError(f"this is no table of verdicts: it lacks {', '.join(sorted(missing))}. Verify the rollouts again.")
    rows = table.select(SCHEMA.names).to_pylist()
    return [Verdict(**row | {name: tuple(row[name].split()) for name in _JOINED}) for row in rows]


class SmokeRow(Record):
    """One line of `dormouse smoke`: a verifier decision and everything it rests on."""

    task: str
    """`family/dN` and the first digits of the task's id."""
    prompt: str
    candidate: str
    """What the policy wrote, shortened, non-printing bytes escaped."""
    verdict: VerdictClass
    cases: str
    """`passed/total` of hidden cases or milestones."""
    isolation: str
    layers: tuple[str, ...]
    decided_by: str
    reason: str


def smoke_rows(attempts: Sequence[Attempt], verdicts: Sequence[Verdict]) -> list[SmokeRow]:
    """Attempts beside their verdicts, in order. Raises ValueError where they do not belong together."""
    rows = []
    for attempt, v in zip(attempts, verdicts, strict=True):
        if attempt.trajectory_id != v.trajectory_id:
            raise ValueError(f"verdict of {v.trajectory_id[:16]} beside attempt {attempt.trajectory_id[:16]}")
        cases = f"{v.cases_passed}/{v.cases_total}" if v.cases_total else f"{v.milestones_passed}/{v.milestones_total}"
        rows.append(SmokeRow(
            task=_name(attempt.task), prompt=shown(attempt.task.prompt), candidate=shown(b" ; ".join(attempt.actions)), verdict=v.verdict,
            cases=cases, isolation=v.isolation, layers=v.layers, decided_by=v.decided_by, reason=v.reason))
    return rows


def _name(task: Task) -> str:
    return f"{task.cell} {task.id[:8]}"


def shown(content: bytes, width: int = 48) -> str:
    """Bytes a person can read on one line."""
    text = content[: 2 * width].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= width else text[: width - 1] + "…"


class VerdictSummary(Record):
    """What a verify stage says of itself."""

    verdicts: int
    by_class: dict[str, int]
    by_kind: dict[str, int]
    by_isolation: dict[str, int]
    no_verdict_share: float
    """undecided and verifier_error, of all."""
    pass_share: float
    """Passes, of the verdicts that count."""


def summary(verdicts: Sequence[Verdict]) -> VerdictSummary:
    counted = [v for v in verdicts if v.verdict.counts]
    return VerdictSummary(
        verdicts=len(verdicts), by_class=dict(sorted(Counter(v.verdict.value for v in verdicts).items())),
        by_kind={kind.value: n for kind in VerifierKind if (n := sum(v.kind is kind for v in verdicts))},
        by_isolation=dict(sorted(Counter(v.isolation for v in verdicts).items())),
        no_verdict_share=sum(v.verdict in NO_VERDICT for v in verdicts) / max(len(verdicts), 1),
        pass_share=sum(v.verdict is VerdictClass.PASS for v in counted) / max(len(counted), 1))
