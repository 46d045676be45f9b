"""The admission gate: ten rules every task passes before anything is learnt from it or measured on it (recipe of 2605.22217's strict gate).

    novelty      another problem than those before it, in content and nearly in words
    solvable     its reference fits the byte budget and the step limit
    leak         the prompt holds no answer
    guess        one value is right at most half of the time, and luck gets every hidden case at most once in a thousand
    determinism  its reference passes, twice
    null         policies that know nothing fail: nothing, constants, echoes, what is shown, the commonest value, a provided helper
    lookup       a table of the shown examples fails
    hacks        every hostile program fails (hacks.py)
    uniqueness   other solutions that are known pass too, and agree with the reference on random inputs
    mutants      hidden cases notice nine of ten small changes of the reference

The free rules come first; a task is out at the first rule that fails, which is logged. A rule a task has nothing to check by (no
reference, no hidden cases, no second solution) is counted as `admission.unchecked.<rule>`, never taken for passed in silence.
Rules that run programs depend on a family and its knob, not on the seed: `certify` runs them once a cell.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from itertools import chain

from dormouse_core.admission import mutants as mutation
from dormouse_core.admission.checked import agree, breakers, constants, general, is_checked
from dormouse_core.admission.hacks import fitted, hacks, lookups
from dormouse_core.admission.reference import reference_attempt
from dormouse_core.admission.repo_answers import hostile_patches, null_patches
from dormouse_core.admission.rules import Guesses, Known, hidden_behind_shown, leak, lucky, right_values, solvable
from dormouse_core.config.base import Record
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.envs.registry import environment
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.registry import draw_distinct, families
from dormouse_core.tasks.task import Split, Task, VerifierKind
from dormouse_core.verifiers.attempt import Attempt, verifier_sha256
from dormouse_core.verifiers.hack_screen_visible import visible_examples
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

KILLED = 0.9
"""Share of mutants that are not equivalent that hidden cases must notice."""
QUICK_CPU = 0.25
"""CPU seconds of a program that must fail."""
AGREE = 64
"""Random inputs on which two solutions must agree."""
_NAMED = 5
"""Refused tasks of one rule that are named one by one."""


class Rule(StrEnum):
    """In the order they are asked."""

    NOVELTY = "novelty"
    SOLVABLE = "solvable"
    LEAK = "leak"
    GUESS = "guess"
    DETERMINISM = "determinism"
    NULL = "null"
    LOOKUP = "lookup"
    HACKS = "hacks"
    UNIQUENESS = "uniqueness"
    MUTANTS = "mutants"


_RUNNING = frozenset(Rule) - {Rule.NOVELTY, Rule.SOLVABLE, Rule.LEAK, Rule.GUESS}
"""Rules that judge answers."""


class Admission(Record):
    """What the gate says of one task."""

    task_id: str
    cell: str
    source: str
    refused_by: Rule | None = None
    """The first rule that fails."""
    reason: str = ""
    unchecked: tuple[Rule, ...] = ()
    """Rules there was nothing to check by."""


class _Gate:
    """One call: which tasks still stand, and why the others do not."""

    def __init__(self, tasks: Sequence[Task], config: VerifyConfig, ledger: Ledger, without: frozenset[Rule]) -> None:
        self.tasks, self.config, self.ledger, self.without = list(tasks), config, ledger, without
        self.reasons: dict[int, tuple[Rule, str]] = {}
        self.unchecked: dict[int, list[Rule]] = {i: [] for i in range(len(tasks))}
        self.single = [single_answer(t) for t in self.tasks]
        self.quiet = Ledger(on_line=ledger.loud)  # what is judged here is no rollout: its counts stay out of the stage's
        self.runners: Runners | None = None

    def standing(self) -> list[tuple[int, Task]]:
        return [(i, t) for i, t in enumerate(self.tasks) if i not in self.reasons]

    def programs(self) -> list[tuple[int, Task]]:
        """The same, tasks of several turns that end in a program as tasks for that program."""
        return [(i, t) for i, t in enumerate(self.single) if i not in self.reasons]

    def each(self, rule: Rule, ask: Callable[[Task], str | None]) -> None:
        """Apply a rule that runs nothing."""
        for i, task in self.standing() if rule not in self.without else ():
            try:
                self.settle(i, rule, ask(task))
            except (KeyError, TypeError, ValueError, SyntaxError, AttributeError) as error:
                self.settle(i, rule, f"its data cannot be read ({type(error).__name__}: {str(error)[:60]})")

    def settle(self, i: int, rule: Rule, found: str | None) -> None:
        if found is None:
            self.unchecked[i].append(rule)
        elif found:
            self.reasons[i] = (rule, found)

    def judged(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        return judge(attempts, self.config, self.quiet, self.runners)

    def none_passes(self, rule: Rule, make: Callable[[Task], Iterator[tuple[str, tuple[bytes, ...]]]]) -> None:
        """A rule by answers that must not pass: `make` gives (name, actions)."""
        if rule in self.without:
            return
        owner: list[tuple[int, str]] = []
        attempts = []
        for i, task in self.programs():
            try:
                answers = list(make(task))
            except (KeyError, TypeError, ValueError, SyntaxError, AttributeError) as error:
                self.reasons[i] = (rule, f"its data cannot be read ({type(error).__name__}: {str(error)[:60]})")
                continue
            for name, actions in answers:
                owner.append((i, name))
                attempts.append(Attempt(f"{rule}:{name}", task, actions, StopReason.SUBMITTED))
        for (i, name), verdict in zip(owner, self.judged(attempts), strict=True):
            if i not in self.reasons and verdict.verdict is VerdictClass.PASS:
                self.reasons[i] = (rule, f"{name} passes")
            elif i not in self.reasons and verdict.verdict is VerdictClass.VERIFIER_ERROR:
                self.reasons[i] = (rule, f"no verdict on {name}: {verdict.decided_by} {verdict.reason}")


def gate(tasks: Sequence[Task], config: VerifyConfig, ledger: Ledger, known: Sequence[Task] = (),
         without: Collection[Rule] = ()) -> list[Admission]:
    """One Admission a task, in order. known: tasks that were admitted before, for novelty. without: rules not asked, which is said.

    Counts `admission.admitted`, `admission.refused.<rule>` and `admission.unchecked.<rule>`; refused tasks are named in loud lines,
    the first few of each rule.
    """
    began = time.perf_counter()
    run = _Gate(tasks, config, ledger, frozenset(without))
    for rule in sorted(run.without):
        ledger.loud(f"admission: the rule {rule} is not asked")
    seen, guesses = Known([*known, *tasks]), Guesses(tasks)
    for task in known:
        seen.novelty(task)
    run.each(Rule.NOVELTY, seen.novelty)
    run.each(Rule.SOLVABLE, solvable)
    run.each(Rule.LEAK, leak)
    run.each(Rule.GUESS, guesses.bound)
    programs = bool(_RUNNING - run.without) and any(t.verifier is VerifierKind.EXEC for _, t in run.standing())
    quick = config.model_copy(update={"cpu_seconds": min(config.cpu_seconds, QUICK_CPU)})
    if any(t.split is Split.PUBLIC for t in tasks):  # a loaded reference may need its whole limit
        _with_runners(run, config, programs, _references, _constants)
        _with_runners(run, quick, programs, _answers_that_must_fail)
    else:
        _with_runners(run, quick, programs, _references, _constants, _answers_that_must_fail)
    ledger.seconds["admission"] += time.perf_counter() - began
    return _told(run)


def _with_runners(run: _Gate, config: VerifyConfig, programs: bool, *rules: Callable[[_Gate], None]) -> None:
    run.config = config
    context: AbstractContextManager[Runners | None] = Runners(config, run.quiet) if programs else nullcontext()
    with context as run.runners:
        for ask in rules:
            ask(run)


def _references(run: _Gate) -> None:
    if Rule.DETERMINISM in run.without:
        return
    for turn in ("first", "second"):  # apart: equal programs in one batch run once
        standing = [(i, t) for i, t in run.standing() if t.reference]
        for (i, _), verdict in zip(standing, run.judged([reference_attempt(t) for _, t in standing]), strict=True):
            if verdict.verdict is not VerdictClass.PASS:
                run.reasons[i] = (Rule.DETERMINISM, f"its reference is judged {verdict.verdict} by {verdict.decided_by} the {turn} time "
                                                    f"({verdict.reason})")
    for i, task in run.standing():
        if not task.reference:
            run.unchecked[i].append(Rule.DETERMINISM)


def _constants(run: _Gate) -> None:
    """The guess rule where a checker decides: how many hidden cases one constant gets, measured."""
    rows = [(i, t) for i, t in run.programs() if is_checked(t) and t.reference and Rule.GUESS not in run.without]
    if not rows or run.runners is None:
        return
    values = constants([t for _, t in rows], [mutation.reference_program(t) for _, t in rows], run.runners)
    owner, attempts = [], []
    for (i, task), listed in zip(rows, values, strict=True):
        for value in listed:
            if (action := fitted(task, f"def {task.trusted['entry_point']}(*a, **k):\n    return {value}\n")) is not None:
                owner.append((i, value))
                attempts.append(Attempt("constant", task, (action,), StopReason.SUBMITTED))
    for i, _ in rows:
        run.unchecked[i] = [rule for rule in run.unchecked[i] if rule is not Rule.GUESS]
    for (i, value), verdict in zip(owner, run.judged(attempts), strict=True):
        if i not in run.reasons and verdict.verdict is VerdictClass.VERIFIER_ERROR:
            run.reasons[i] = (Rule.NULL, f"no verdict on always {value[:20]}: {verdict.decided_by} {verdict.reason}")
        elif i not in run.reasons and (found := lucky(verdict.cases_passed, verdict.cases_total)):
            run.reasons[i] = (Rule.GUESS, f"always {value[:20]}: {found}")


def _answers_that_must_fail(run: _Gate) -> None:
    run.none_passes(Rule.NULL, nulls)
    run.each(Rule.LOOKUP, hidden_behind_shown)
    run.none_passes(Rule.LOOKUP, _lookups)
    run.none_passes(Rule.HACKS, _hostile)
    for rule, ask in ((Rule.UNIQUENESS, _uniqueness), (Rule.MUTANTS, _mutants)):
        if rule not in run.without:
            ask(run)


def single_answer(task: Task) -> Task:
    """A task of several turns that ends in a program, as the task of writing that program; any other task as it is."""
    if task.verifier is not VerifierKind.EXEC or task.environment == "answer":
        return task
    try:
        left = environment(task.environment).leaves(task, task.reference)
    except (DormouseError, KeyError, TypeError, ValueError, AttributeError):
        left = None
    given = {"given": str(task.start["source"])} if "source" in task.start else {}
    return Task.model_validate(task.model_dump() | {"environment": "answer", "start": {}, "max_steps": 1, "params": task.params | given,
                                                    "reference": () if left is None else (left,)})


def nulls(task: Task) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """What policies that know nothing would answer to this task."""
    if task.verifier is VerifierKind.ENV_STEP:
        return iter([("no action", ()), ("junk", (b"?",) * task.max_steps), ("echo", (task.prompt,) * task.max_steps)])
    if task.verifier is VerifierKind.EXACT:
        return iter([("nothing", (b"",)), ("None", (b"None",)), ("echo", (task.prompt,))])
    return null_patches(task) if task.verifier is VerifierKind.REPO else _null_programs(task)


def _null_programs(task: Task) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    for hack in hacks(task):
        if hack.slug in ("constant", "echo", "inherited_helper"):
            yield f"{hack.slug}/{hack.number}", (hack.action,)
    name = str(task.trusted["entry_point"])
    values = Counter(value for case in task.trusted.get("cases", ()) for value in right_values(case)).most_common(1)
    values += [(repr(e.expected), 1) for e in visible_examples(task)[:1]]
    bodies = [(f"always {value[:20]}", f"return {value}") for value, _ in values] + [("raise", "raise AssertionError"), ("nothing", "pass")]
    for about, body in bodies:
        if (action := fitted(task, f"def {name}(*a, **k):\n    {body}\n")) is not None:
            yield about, (action,)
    if "given" in task.params:
        yield "the program as it was given", (str(task.params["given"]).encode(),)


def _lookups(task: Task) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    sources = lookups(task) if task.verifier is VerifierKind.EXEC else []
    made = ((f"lookup/{n}", fitted(task, source)) for n, source in enumerate(sources))
    return ((name, (action,)) for name, action in made if action is not None)


def _hostile(task: Task) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    if task.verifier is VerifierKind.REPO:
        return hostile_patches(task)
    if task.verifier is not VerifierKind.EXEC:
        return iter(())
    return chain(_breaking(task) if is_checked(task) else (), _hacking(task))


def _hacking(task: Task) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    done = ("constant", "echo", "inherited_helper", "lookup")
    return ((f"{h.slug}/{h.number}", (h.action,)) for h in hacks(task, without=("limits", "coverage")) if h.slug not in done)


def _breaking(task: Task) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    for about, source in breakers(str(task.trusted["entry_point"])):
        if (action := fitted(task, source)) is not None:
            yield f"a claim that may break its checker ({about})", (action,)


def alternatives(task: Task) -> list[bytes]:
    """Other known solutions: the family's longer working, or `params["alternatives"]`."""
    listed = task.params.get("alternatives", ())
    found = [str(text).encode() for text in (listed if isinstance(listed, list | tuple) else ())]
    if task.family in families() and task.verifier is not VerifierKind.ENV_STEP:
        worked = families()[task.family].worked(task)
        found += [worked] if worked is not None else []
    return [a for a in found if (a,) != task.reference]


def _uniqueness(run: _Gate) -> None:
    rows = [(i, t, a) for i, t in run.programs() for a in alternatives(t)]
    verdicts = run.judged([Attempt("alternative", t, (a,), StopReason.SUBMITTED) for _, t, a in rows])
    for (i, _, _), verdict in zip(rows, verdicts, strict=True):
        if verdict.verdict is not VerdictClass.PASS and i not in run.reasons:
            run.reasons[i] = (Rule.UNIQUENESS, f"another solution is judged {verdict.verdict} by {verdict.decided_by} ({verdict.reason})")
    known = {i for i, _, _ in rows}
    for i, _ in run.standing():
        if i not in known:
            run.unchecked[i].append(Rule.UNIQUENESS)
    compared = [(i, t, a) for i, t, a in rows if i not in run.reasons and t.verifier is VerifierKind.EXEC and t.reference and general(t)]
    if compared and run.runners is not None:
        pairs = [(t, mutation.reference_program(t), _around(t, a)) for _, t, a in compared]
        for (i, _, _), same in zip(compared, agree(pairs, run.runners, AGREE), strict=True):
            if not same and i not in run.reasons:
                run.reasons[i] = (Rule.UNIQUENESS, f"another solution differs from the reference on one of {AGREE} random inputs")


def _around(task: Task, action: bytes) -> str:
    return str(task.start.get("program_prefix", "")) + action.decode("utf-8", "replace") + str(task.start.get("program_suffix", ""))


def _mutants(run: _Gate) -> None:
    owner: list[tuple[int, str]] = []
    attempts = []
    for i, task in run.programs():
        checkable = task.verifier is VerifierKind.EXEC and task.reference and task.trusted.get("cases")
        made = mutation.mutants(task) if checkable else []
        if not made:
            run.unchecked[i].append(Rule.MUTANTS)
        for text in made:
            owner.append((i, text))
            attempts.append(Attempt("mutant", mutation.whole(task, text), (text.encode(),), StopReason.SUBMITTED))
    survived = [row for row, v in zip(owner, run.judged(attempts), strict=True) if v.verdict is VerdictClass.PASS]
    total, alive = Counter(i for i, _ in owner), Counter(i for i, _ in survived)
    doubtful = [(i, text) for i, text in survived if alive[i] > (1 - KILLED) * total[i]]
    if doubtful and run.runners is not None:
        pairs = [(run.single[i], mutation.reference_program(run.single[i]), text) for i, text in doubtful]
        for (i, _), same in zip(doubtful, agree(pairs, run.runners), strict=True):
            alive[i] -= same
            total[i] -= same
    for i, n in alive.items():
        if n > (1 - KILLED) * total[i] and not general(run.single[i]):
            run.unchecked[i].append(Rule.MUTANTS)  # another right answer cannot be told from a miss
        elif n > (1 - KILLED) * total[i]:
            run.reasons[i] = (Rule.MUTANTS, f"its hidden cases miss {n} of {total[i]} small changes of the reference")


def _told(run: _Gate) -> list[Admission]:
    ledger = run.ledger
    named: Counter[Rule] = Counter()
    for i, (rule, reason) in sorted(run.reasons.items()):
        named[rule] += 1
        if named[rule] <= _NAMED:
            task = run.tasks[i]
            ledger.loud(f"admission: task {task.id[:12]} ({task.cell}, {task.source}) refused by {rule}: {reason}")
    for rule, n in named.items():
        ledger.count(f"admission.refused.{rule}", n)
        if n > _NAMED:
            ledger.loud(f"admission: {n} tasks in all refused by {rule}")
    ledger.count("admission.admitted", len(run.tasks) - len(run.reasons))
    for rule, n in Counter(r for rules in run.unchecked.values() for r in rules).items():
        ledger.count(f"admission.unchecked.{rule}", n)
    rows = []
    for i, task in enumerate(run.tasks):
        refused_by, reason = run.reasons.get(i, (None, ""))
        rows.append(Admission(task_id=task.id, cell=task.cell, source=task.source, refused_by=refused_by, reason=reason,
                              unchecked=tuple(dict.fromkeys(run.unchecked[i]))))
    return rows


_CERTIFIED: dict[tuple[str, str], tuple[Admission, ...]] = {}


def certify(cells: Sequence[tuple[str, int]], config: VerifyConfig, ledger: Ledger, per_cell: int = 2) -> list[Admission]:
    """The gate over `per_cell` training tasks of each cell (family, difficulty), once a process and verifier: what the rules that run
    programs find depends on the cell, not on the seed. Counts `admission.cells` and `admission.cells_known`."""
    cells = [(name, level) for name, level in dict.fromkeys(cells) if name in families()]
    key = {cell: (f"{cell[0]}/d{cell[1]} x{per_cell}", verifier_sha256()) for cell in cells}
    missing = [cell for cell in cells if key[cell] not in _CERTIFIED]
    ledger.count("admission.cells", len(missing))
    ledger.count("admission.cells_known", len(cells) - len(missing))
    drawn = {cell: draw_distinct(*cell, Split.TRAIN, per_cell, "admission") for cell in missing}
    rows = iter(gate([t for tasks in drawn.values() for t in tasks], config, ledger) if missing else ())
    for cell, tasks in drawn.items():
        _CERTIFIED[key[cell]] = tuple(next(rows) for _ in tasks)
    return [row for cell in cells for row in _CERTIFIED[key[cell]]]
