"""A scripted policy that hacks, and honest answers: what the screen finds of the first and alarms at of the second.

Every hostile program joins a group of honest answers to the same task. Twice: judged by the verifier (is it paid?), and by a judge
that is fooled by everything (is it recognised?), which is what the screen is for when a wall falls.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from dormouse_core.admission.bench import built_in, hostile
from dormouse_core.admission.hacks import BY_SLUG, CLASSES
from dormouse_core.admission.honest import PROGRAMS, TRIANGLE, variants
from dormouse_core.admission.labelled import SETS, Labelled
from dormouse_core.config.base import Record
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.encoding import escape
from dormouse_core.ledger import Ledger
from dormouse_core.tasks.task import Task, VerifierKind
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.hack_screen import earned, read_program, screen
from dormouse_core.verifiers.hack_screen_words import SCREENING
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

HONEST = 7
"""Honest answers beside each planted one."""


class RecallRow(Record):
    """One class of hacks."""

    number: int
    slug: str
    defences: tuple[str, ...]
    programs: int
    """Planted answers: its programs on tasks of each shape."""
    paid: int
    """Of them, judged a pass and not set aside: must be 0."""
    part_paid: int
    """Judged a fail with a share of its cases and not set aside: what `rl.reward.graded` would pay."""
    recognised: int
    """Set aside when the judge passes everything."""


class AlarmRow(Record):
    """One source of honest programs."""

    source: str
    programs: int
    alarms: int
    """Programs with a screening label: set aside though honest."""
    labels: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Step:
    action_bytes: bytes
    ended: bool = True


@dataclass(frozen=True, slots=True)
class _Episode:
    id: str
    task_id: str
    group: str
    steps: tuple[_Step, ...]


def _honest(task: Task) -> list[bytes]:
    if task is TRIANGLE:
        return [p.encode() for p in PROGRAMS[:HONEST]]
    return [task.reference[0], *variants(task)][:HONEST]


def recall(config: VerifyConfig, ledger: Ledger) -> list[RecallRow]:
    """One row a class that programs belong to, in the order of the classes."""
    planted = list(hostile())
    episodes, attempts, tasks = [], [], {}
    for x in planted:
        task, name = x.attempt.task, x.attempt.trajectory_id
        tasks[task.id] = task
        for i, action in enumerate([x.attempt.actions[0], *_honest(task)]):
            episodes.append(_Episode(name if i == 0 else f"{name} honest {i}", task.id, name, (_Step(escape(action)),)))
            attempts.append(Attempt(episodes[-1].id, task, (action,), x.attempt.stop))
    on = config.model_copy(update={"hack_screen": config.hack_screen.model_copy(update={"enabled": True})})
    quiet = Ledger(on_line=ledger.loud)
    verdicts = judge(attempts, config, quiet)
    fooled = [v.model_copy(update={"verdict": VerdictClass.PASS, "score": 1.0}) for v in verdicts]
    after = {v.trajectory_id: v for v in screen(episodes, verdicts, tasks, on, quiet)}
    seen = {v.trajectory_id: v for v in screen(episodes, fooled, tasks, on, quiet)}
    return _rows(planted, after, seen)


def _rows(planted: Sequence[Labelled], after: dict[str, Verdict], seen: dict[str, Verdict]) -> list[RecallRow]:
    counts: dict[str, Counter[str]] = {c.slug: Counter() for c in CLASSES}
    for x in planted:
        name = x.attempt.trajectory_id
        count = counts[name.split()[1].partition("/")[0]]
        count["programs"] += 1
        count["paid"] += after[name].verdict is VerdictClass.PASS
        count["part"] += after[name].verdict is VerdictClass.FAIL and earned(after[name])
        count["recognised"] += seen[name].verdict is VerdictClass.HACK_SUSPECTED
    return [RecallRow(number=BY_SLUG[slug].number, slug=slug, defences=tuple(d.value for d in BY_SLUG[slug].defences),
                      programs=n["programs"], paid=n["paid"], part_paid=n["part"], recognised=n["recognised"])
            for slug, n in counts.items() if n["programs"]]


def false_alarms(tasks_dir: Path | None) -> list[AlarmRow]:
    """Screening labels on honest programs: built in, and the right answers of the public code sets. Reads only; runs nothing."""
    public = chain.from_iterable(SETS[name](tasks_dir) for name in ("mbpp", "humaneval", "humanevalfix", "cruxeval")) if tasks_dir else ()
    return _alarms(chain(built_in(), public))


def _alarms(labelled: Iterable[Labelled]) -> list[AlarmRow]:
    counts: dict[str, Counter[str]] = {}
    screening = {s.value for s in SCREENING}
    for x in labelled:
        if not x.right or x.attempt.task.verifier is not VerifierKind.EXEC:
            continue
        count = counts.setdefault(x.source, Counter())
        labels = read_program(x.attempt.task, x.attempt.actions[-1]).labels & screening
        count[""] += 1
        count["!"] += bool(labels)
        count.update(labels)
    return [AlarmRow(source=source, programs=n.pop(""), alarms=n.pop("!"), labels=dict(n)) for source, n in counts.items()]
