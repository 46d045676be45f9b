"""Labelled answers of a public tasks directory: what a verifier is tried on before it is believed.

Right ones are the sets' own references and answers (in several spellings) and model outputs labelled right; wrong ones are
model outputs labelled wrong, buggy programs, other tasks' answers and near misses. Model outputs are never trained on.
Not here: the tasks a policy is trained or evaluated on (tasks/public.py).
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dormouse_core.admission.asserts import convert
from dormouse_core.config.base import Record
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.public import ANY_ORDER
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.exec import IN_CHILD
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import NO_VERDICT, Verdict, VerdictClass


class Labelled(NamedTuple):
    """An attempt whose truth is known."""

    source: str
    attempt: Attempt
    right: bool


class TableRow(Record):
    """One line of the truth table. The two counts that must be 0 are named first."""

    source: str
    false_passes: int
    false_fails: int
    right: int
    wrong: int
    no_verdict: int
    in_child_asserts: int
    """Verdicts decided by asserts inside the child (no cases could be recorded)."""
    seconds: float
    examples: tuple[str, ...] = ()
    """Up to three misjudged attempts: name, class, who decided, why."""


def _rows(tasks_dir: Path, name: str) -> list[dict[str, Any]]:
    path = tasks_dir / f"{name}.jsonl.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, ValueError, EOFError) as error:
        raise DormouseError(f"{path} cannot be read ({type(error).__name__}: {error}): name a folder of public task files with "
                            "--tasks-dir or DORMOUSE_TASKS_DIR") from error


def _task(kind: VerifierKind, family: str, name: str, trusted: dict[str, Any], reference: str, prefix: str = "") -> Task:
    start = {"program_prefix": prefix} if prefix else {}
    return Task(pool=Pool.CODE if kind is VerifierKind.EXEC else Pool.MATH, family=family, prompt=name.encode(), environment="answer",
                start=start, verifier=kind, trusted=trusted, reference=(reference.encode(),), split=Split.PUBLIC, use=Use.EVALUATION,
                source=name)


def _attempt(name: str, task: Task, text: str) -> Attempt:
    return Attempt(name, task, (text.encode(),), StopReason.SUBMITTED)


def _suite(row: dict[str, Any]) -> dict[str, Any]:
    """Literal cases where they are the whole suite, else its source."""
    if row.get("tests_complete") and row["tests"]:
        any_order = {"relax": "order"} if row["id"] in ANY_ORDER else {}
        return {"entry_point": row["entry_point"], "cases": row["tests"], "typing": "python"} | any_order
    return {"entry_point": row["entry_point"], "test_src": row["test_src"]}


def mbpp(tasks_dir: Path) -> Iterator[Labelled]:
    for row in _rows(tasks_dir, "mbpp/tasks"):
        slow = {"cpu_seconds": 10} if row["ref_seconds"] > 0.8 else {}
        task = _task(VerifierKind.EXEC, "mbpp", row["id"], _suite(row) | slow, row["reference"], row["prompt"])
        yield Labelled("mbpp references", _attempt(row["id"], task, row["reference"]), True)
        yield Labelled("mbpp empty bodies", _attempt(f"{row['id']}/none", task, "  return None\n"), False)
        if row["id"] in ANY_ORDER:
            for change, right in (("[::-1]", True), ("[1:]", False), (" * 2", False)):
                yield Labelled("mbpp sets in another order", _attempt(f"{row['id']}/{change}", task, _changed(row, change)), right)


def _changed(row: dict[str, Any], change: str) -> str:
    """The reference, with something done to what it returns."""
    name = row["entry_point"]
    return f"{row['reference']}\n\n_first = {name}\ndef {name}(*a):\n    return _first(*a){change}\n"


def humaneval(tasks_dir: Path) -> Iterator[Labelled]:
    tasks = {}
    for row in _rows(tasks_dir, "humaneval/tasks"):
        tasks[row["id"]] = task = _task(VerifierKind.EXEC, "humaneval", row["id"], _suite(row), row["reference"], row["prompt"])
        yield Labelled("humaneval references", _attempt(row["id"], task, row["reference"]), True)
    for row in _rows(tasks_dir, "humaneval/contracts"):
        yield Labelled("humaneval second references", _attempt(f"{row['id']}/second", tasks[row["id"]], row["alt_reference"]), True)
    for row in _rows(tasks_dir, "humaneval/model_samples_codegen16b"):
        yield Labelled("humaneval samples", _attempt(row["id"], tasks[row["task_id"]], row["completion"]), bool(row["passed"]))


def humanevalfix(tasks_dir: Path) -> Iterator[Labelled]:
    for row in _rows(tasks_dir, "humanevalfix/tasks"):
        task = _task(VerifierKind.EXEC, "humanevalfix", row["id"], _suite(row), row["reference"])
        yield Labelled("humanevalfix fixed", _attempt(row["id"], task, row["reference"]), True)
        yield Labelled("humanevalfix buggy", _attempt(f"{row['id']}/buggy", task, row["buggy"]), False)


def humanevalfix_traps(tasks_dir: Path) -> Iterator[Labelled]:
    """Buggy programs that pass every visible test they have: what hidden tests are for. Which they are is found by running them."""
    rows = _rows(tasks_dir, "humanevalfix/tasks")
    suites = [{"entry_point": row["entry_point"], "test_src": row["example_test_src"]} for row in rows]
    shown = [_task(VerifierKind.EXEC, "humanevalfix_shown", row["id"], suite, row["reference"])
             for row, suite in zip(rows, suites, strict=True)]
    quiet = Ledger()
    with Runners(VerifyConfig(), quiet) as runners:
        tasks = convert(shown, runners, quiet)
        verdicts = judge([_attempt(t.source, t, row["buggy"]) for t, row in zip(tasks, rows, strict=True)], VerifyConfig(), quiet, runners)
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.verdict is VerdictClass.PASS and "assert" in row["example_test_src"]:
            hidden = _task(VerifierKind.EXEC, "humanevalfix", row["id"], _suite(row), row["reference"])
            yield Labelled("humanevalfix buggy, visible tests pass", _attempt(f"{row['id']}/trap", hidden, row["buggy"]), False)


def cruxeval(tasks_dir: Path) -> Iterator[Labelled]:
    tasks = {}
    for row in _rows(tasks_dir, "cruxeval/tasks"):
        trusted = {"entry_point": "__case__", "cases": [{"args": "()", "expected": row["output"]}], "typing": "python"}
        run = _task(VerifierKind.EXEC, "cruxeval", row["id"], trusted, row["prompt"])
        call = f"\n\ndef __case__():\n    return {row['entry_point']}({row['input']})\n"
        run = run.model_copy(update={"start": {"program_suffix": call}})
        yield Labelled("cruxeval f(input)", _attempt(row["id"], run, row["prompt"]), True)
        trusted = {"answer": row["output"], "form": "literal", "typing": "python"}
        tasks[row["id"]] = _task(VerifierKind.EXACT, "cruxeval_output", row["id"], trusted, row["output"])
        yield Labelled("cruxeval outputs", _attempt(row["id"], tasks[row["id"]], row["output"]), True)
    for row in _rows(tasks_dir, "cruxeval/model_predictions"):
        yield Labelled("cruxeval predictions", _attempt(row["id"], tasks[row["task_id"]], row["prediction"]), bool(row["is_correct"]))


def gsm8k(tasks_dir: Path) -> Iterator[Labelled]:
    tasks = {}
    for name in ("train", "test_even"):
        for row in _rows(tasks_dir, f"gsm8k/{name}"):
            answer = row["answer"]
            trusted = {"answer": answer, "form": "number", "units": ["$"]}
            tasks[row["id"]] = task = _task(VerifierKind.EXACT, "gsm8k", row["id"], trusted, answer)
            right, wrong = spellings(int(answer))
            for index, text in enumerate(right):
                yield Labelled("gsm8k right spellings", _attempt(f"{row['id']}/{index}", task, text), True)
            for index, text in enumerate(wrong):
                yield Labelled("gsm8k near misses", _attempt(f"{row['id']}/x{index}", task, text), False)
            yield Labelled("gsm8k rationales", _attempt(f"{row['id']}/r", task, f"{row['rationale']}\nA: {answer}"), True)
    for row in _rows(tasks_dir, "gsm8k/model_solutions_even"):
        yield Labelled("gsm8k model solutions", _attempt(row["id"], tasks[row["task_id"]], row["solution"]), bool(row["is_correct"]))


def spellings(n: int) -> tuple[list[str], list[str]]:
    """Ways to write n that are right, and neighbours that are not."""
    right = [f"{n}", f"A: {n}", f"#### {n}", f"x = {n}", f"{n}.", f"{n:,}", f"{n}.00", f"the answer is {n}.", f"\\boxed{{{n}}}",
             f"1+1=2\n{n}", f"{n * 2}/2", f"${n}", f"A: {n + 1}\nA: {n}", f"{'-' if n < 0 else ''}00{abs(n)}"]
    wrong = [f"{n + 1}", f"A: {n - 1}", f"{n}0" if n else "10", f"{n}.5", f"A: {n}\nA:", f"{n} {n}", f"{n}%", f"{n}=",
             f"{n}/2" if n else "1/2", f"{n}e1" if n else "1e1", f"1{abs(n)}", f"{n}\n{n + 1}"]
    return right, wrong


def reasoning_gym(tasks_dir: Path) -> Iterator[Labelled]:
    rows = [r for r in _rows(tasks_dir, "reasoning_gym/tasks") if r["exact"]]
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        trusted = {"answer": row["answer"], "form": "string"}
        task = _task(VerifierKind.EXACT, f"rg_{row['task']}", row["id"], trusted, row["answer"])
        yield Labelled("reasoning_gym answers", _attempt(row["id"], task, row["answer"]), True)
        if other["answer"].strip() != row["answer"].strip():
            yield Labelled("reasoning_gym other answers", _attempt(f"{row['id']}/x", task, other["answer"]), False)


SETS: dict[str, Callable[[Path], Iterator[Labelled]]] = {
    "mbpp": mbpp, "humaneval": humaneval, "humanevalfix": humanevalfix, "humanevalfix_traps": humanevalfix_traps, "cruxeval": cruxeval,
    "gsm8k": gsm8k, "reasoning_gym": reasoning_gym}


def truth_table(labelled: Sequence[Labelled], config: VerifyConfig, ledger: Ledger) -> list[TableRow]:
    """Judge every labelled attempt; one row a source, in order of appearance."""
    table = []
    with Runners(config, ledger) as runners:
        labelled = _with_cases(labelled, runners, ledger)
        for source in dict.fromkeys(x.source for x in labelled):
            mine = [x for x in labelled if x.source == source]
            before = ledger.seconds["judge"]
            verdicts = judge([x.attempt for x in mine], config, ledger, runners)
            table.append(_row(source, mine, verdicts, ledger.seconds["judge"] - before))
    return table


def _with_cases(labelled: Sequence[Labelled], runners: Runners, ledger: Ledger) -> list[Labelled]:
    distinct = {x.attempt.task.id: x.attempt.task for x in labelled}
    after = dict(zip(distinct, convert(list(distinct.values()), runners, ledger), strict=True))
    return [x._replace(attempt=replace(x.attempt, task=after[x.attempt.task.id])) for x in labelled]


def _row(source: str, labelled: Sequence[Labelled], verdicts: Sequence[Verdict], seconds: float) -> TableRow:
    counts: Counter[str] = Counter()
    examples = []
    for known, verdict in zip(labelled, verdicts, strict=True):
        passed = verdict.verdict is VerdictClass.PASS
        counts["right" if known.right else "wrong"] += 1
        counts["in_child"] += IN_CHILD in verdict.labels
        counts["no_verdict"] += verdict.verdict in NO_VERDICT
        if passed != known.right:
            counts["false_pass" if passed else "false_fail"] += 1
            examples.append(f"{verdict.trajectory_id}: {verdict.verdict} by {verdict.decided_by} {verdict.reason}".strip())
    return TableRow(source=source, false_passes=counts["false_pass"], false_fails=counts["false_fail"], right=counts["right"],
                    wrong=counts["wrong"], no_verdict=counts["no_verdict"], in_child_asserts=counts["in_child"], seconds=seconds,
                    examples=tuple(examples[:3]))
