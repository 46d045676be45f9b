"""The first rule of admission: a task whose own reference does not pass is refused, by name.

Not here: the other rules (null policies, mutants, leaks).
"""

from collections.abc import Sequence

from dormouse_core.config.base import Record
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import VerdictClass


class Refusal(Record):
    """A task that was refused, and why."""

    task_id: str
    source: str
    cell: str
    verdict: VerdictClass
    decided_by: str
    reason: str


def reference_attempt(task: Task) -> Attempt:
    """The task's own solution, as an attempt."""
    stop = StopReason.SUBMITTED if task.max_steps == 1 else StopReason.SOLVED
    return Attempt(f"reference:{task.id}", task, task.reference, stop)


def admit(tasks: Sequence[Task], config: VerifyConfig, ledger: Ledger,
          runners: Runners | None = None) -> tuple[list[Task], list[Refusal]]:
    """Tasks whose reference passes, in order, and the refused ones. Tasks without a reference pass unproven, counted.

    Counts `admission.refused` and `admission.no_reference`; every refused task is named in a loud line.
    """
    proven = [t for t in tasks if t.reference]
    ledger.count("admission.no_reference", len(tasks) - len(proven))
    quiet = Ledger(on_line=ledger.loud)  # the reference run is no rollout: its verdict counts stay out of the stage's
    verdicts = judge([reference_attempt(t) for t in proven], config, quiet, runners)
    refused = {t.id: Refusal(task_id=t.id, source=t.source, cell=t.cell, verdict=v.verdict, decided_by=v.decided_by, reason=v.reason)
               for t, v in zip(proven, verdicts, strict=True) if v.verdict is not VerdictClass.PASS}
    for refusal in refused.values():
        ledger.loud(f"task {refusal.task_id[:12]} ({refusal.cell}, {refusal.source}) refused: its own reference is judged "
                    f"{refusal.verdict} by {refusal.decided_by} ({refusal.reason}). Correct the task or take it out.")
    ledger.count("admission.refused", len(refused))
    return [t for t in tasks if t.id not in refused], list(refused.values())
