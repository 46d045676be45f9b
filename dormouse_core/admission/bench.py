"""The verifier bench: answers whose truth is known, judged; what is misjudged is a reason to stop.

Built in: references, longer solutions and wrong answers of every generated family, honest programs and rewritings, right and wrong
answers to tasks with several right ones, and every hostile program on tasks of each shape. With a tasks directory also every labelled
public answer (labelled.py). A sample keeps every source. `require` is the check before rollouts: a policy must not be trained
against a verifier that is wrong now.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from dormouse_core.admission.hacks import hacks
from dormouse_core.admission.honest import PROGRAMS, TRIANGLE, variants
from dormouse_core.admission.labelled import SETS, Labelled, TableRow, truth_table
from dormouse_core.admission.several import ROOT, answers
from dormouse_core.config.base import Record
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.seeding import generator
from dormouse_core.tasks.registry import draw_distinct, families
from dormouse_core.tasks.task import Split, Task, VerifierKind
from dormouse_core.verifiers.attempt import Attempt

BEFORE_ROLLOUTS = 60
"""Built-in answers judged before a rollout stage."""
_LEVELS = (0, 2, 5)
_SHAPES = (("pair_function", 1), ("slice_function", 2))
"""Cells whose tasks the hostile programs are also fitted to: expressions inside a function of one and of two arguments."""


class BenchReport(Record):
    """What the bench found."""

    rows: tuple[TableRow, ...]
    judged: int
    false_passes: int
    false_fails: int
    no_verdict: int
    in_child_asserts: int
    seconds: float

    @property
    def holds(self) -> bool:
        return self.judged > 0 and not (self.false_passes or self.false_fails or self.no_verdict)


def _labelled(source: str, name: str, task: Task, actions: tuple[bytes, ...], right: bool) -> Labelled:
    stop = StopReason.SUBMITTED if task.max_steps == 1 else StopReason.SOLVED
    return Labelled(source, Attempt(name, task, actions, stop), right)


def built_in(limits: bool = True) -> Iterator[Labelled]:
    """Everything that needs no file. limits: also the programs that only burn their limits (some seconds of CPU)."""
    for family in families().values():
        for task in (t for level in _LEVELS for t in draw_distinct(family.name, level, Split.TRAIN, 2, "verifier bench")):
            name = f"{task.cell} {task.id[:8]}"
            yield _labelled("own references", name, task, task.reference, True)
            if (worked := family.worked(task)) is not None and task.verifier is not VerifierKind.ENV_STEP:
                yield _labelled("own longer solutions", f"{name} longer", task, (worked,), True)
            wrong = family.wrong(task, generator("verifier bench", task.id))
            yield _labelled("own wrong answers", f"{name} wrong", task, (wrong,), False)
            if task.verifier is VerifierKind.EXEC:
                yield from (_labelled("honest rewritings", f"{name} rewritten {i}", task, (action,), True)
                            for i, action in enumerate(variants(task)))
    for i, program in enumerate(PROGRAMS):
        yield _labelled("honest programs", f"honest {i}", TRIANGLE, (program.encode(),), True)
    for name, task, program, right in answers():
        yield _labelled(f"several answers, {'right' if right else 'wrong'}", name, task, (program.encode(),), right)
    yield from hostile(limits)


def hostile(limits: bool = True) -> Iterator[Labelled]:
    """Every hostile program, on a task of each shape; those that burn limits on one task only."""
    tasks = [TRIANGLE, ROOT.task, *(draw_distinct(name, level, Split.TRAIN, 1, "verifier bench")[0] for name, level in _SHAPES)]
    for task in tasks:
        for hack in hacks(task, without=() if limits and task is TRIANGLE else ("limits",)):
            yield _labelled("hostile programs", f"{task.family} {hack.slug}/{hack.number}", task, (hack.action,), False)


def sampled(labelled: Sequence[Labelled], n: int, *names: str | int) -> list[Labelled]:
    """About n of them, spread over the sources by their size, at least two of each. n = 0 takes all. A function of its arguments."""
    if not n or n >= len(labelled):
        return list(labelled)
    kept: list[int] = []
    for source in dict.fromkeys(x.source for x in labelled):
        rows = [i for i, x in enumerate(labelled) if x.source == source]
        share = max(2, round(n * len(rows) / len(labelled)))
        kept += [rows[int(i)] for i in generator("verifier bench", source, *names).permutation(len(rows))[:share]]
    return [labelled[i] for i in sorted(kept)]


def run(tasks_dir: Path | None, sample: int, config: VerifyConfig, ledger: Ledger, limits: bool = True) -> BenchReport:
    """Judge all labelled answers, or about `sample` of them. Raises DormouseError where a file of the tasks directory is missing."""
    public = chain.from_iterable(load(tasks_dir) for load in SETS.values()) if tasks_dir is not None else ()
    rows = truth_table(sampled([*built_in(limits), *public], sample), config, ledger)
    return BenchReport(
        rows=tuple(rows), judged=sum(r.right + r.wrong for r in rows), false_passes=sum(r.false_passes for r in rows),
        false_fails=sum(r.false_fails for r in rows), no_verdict=sum(r.no_verdict for r in rows),
        in_child_asserts=sum(r.in_child_asserts for r in rows), seconds=sum(r.seconds for r in rows))


def require(config: VerifyConfig, ledger: Ledger, sample: int = BEFORE_ROLLOUTS) -> BenchReport:
    """The bench on a sample of what is built in. Counts `bench.judged` and `bench.misjudged`. Raises DormouseError naming what was
    misjudged."""
    quiet = Ledger(on_line=ledger.loud)
    report = run(None, sample, config, quiet, limits=False)
    wrong = report.false_passes + report.false_fails + report.no_verdict
    ledger.count("bench.judged", report.judged)
    ledger.count("bench.misjudged", wrong)
    if not report.holds:
        shown = "; ".join(chain.from_iterable(r.examples for r in report.rows)) or "no answer was judged"
        raise DormouseError(f"the verifier misjudges {wrong} of {report.judged} answers whose truth is known ({shown[:400]}). Nothing is "
                            "rolled against it: see docs/verifier.md, and `dormouse bench verifier` for the whole table.")
    return report
