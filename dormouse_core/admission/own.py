"""The gate over a folder of task files: what `dormouse tasks check DIR` prints."""

from collections import Counter
from pathlib import Path

from dormouse_core.admission.asserts import convert
from dormouse_core.admission.gate import Admission, gate
from dormouse_core.config.base import Record
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.own import own_tasks
from dormouse_core.tasks.task import Task, VerifierKind


class SourceRow(Record):
    """One file or public set."""

    source: str
    tasks: int
    admitted: int
    refused: dict[str, int]
    """By the first rule that fails."""
    unchecked: dict[str, int]
    """Tasks a rule had nothing to check by."""
    broken: int
    """Lines that are no task."""


class FolderReport(Record):
    rows: tuple[SourceRow, ...]
    refused: tuple[Admission, ...]
    counters: dict[str, int]
    seconds: float

    @property
    def holds(self) -> bool:
        return bool(self.rows) and not self.refused and not any(row.broken or not row.tasks for row in self.rows)

    def examples(self) -> list[Admission]:
        """The first refusal of each cell and rule."""
        return list({(r.cell, r.refused_by): r for r in reversed(self.refused)}.values())[::-1]


def admit_folder(folder: Path, limit: int, ledger: Ledger) -> FolderReport:
    """Every task of the folder's files through the gate, file by file; at most `limit` of each where it is not 0. Novelty looks inside
    one file. Raises DormouseError where there is no task file."""
    rows, refused = [], []
    for source, tasks, broken in own_tasks(folder, ledger):
        tasks = _with_cases(tasks[:limit] if limit else tasks, ledger)
        found = gate(tasks, VerifyConfig(), ledger) if tasks else []
        out = [a for a in found if a.refused_by is not None]
        refused += out
        rows.append(SourceRow(
            source=source, tasks=len(tasks), admitted=len(tasks) - len(out), broken=broken,
            refused=dict(Counter(str(a.refused_by) for a in out)), unchecked=dict(Counter(str(r) for a in found for r in a.unchecked))))
        ledger.progress("tasks check", len(rows), len(rows), "files")
    if not rows:
        raise DormouseError(f"{folder} holds no task file: put one task a line into files ending in .jsonl or .jsonl.gz "
                            "(docs/mechanisms/admission.md gives the fields)")
    return FolderReport(rows=tuple(rows), refused=tuple(refused), counters=ledger.counters(), seconds=ledger.seconds["admission"])


def _with_cases(tasks: list[Task], ledger: Ledger) -> list[Task]:
    """Suites of asserts as cases, where they can be recorded."""
    if not any(t.verifier is VerifierKind.EXEC and "cases" not in t.trusted for t in tasks):
        return tasks
    with Runners(VerifyConfig(), Ledger(on_line=ledger.loud)) as runners:
        return convert(tasks, runners, ledger)
