"""Public task sets, read from a folder the user names; none is part of the repository.

Which rows may be trained on is decided here, by set and id, not by a file's own word: GSM8K's training part and MBPP 601-974; all
else is for evaluation. A broken line is named, skipped and counted; the rest of its file loads.
Not here: model outputs in the folder (admission/labelled.py: they try verifiers and are never training targets).
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks import repair
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind

Row = dict[str, Any]
_SHOWN = 5
"""Broken lines of one file named one by one; the rest are counted."""
_BROKEN = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What a row that is not in the documented format raises (JSON and validation errors are ValueErrors)."""
MBPP_TRAIN = range(601, 975)
ANY_ORDER = frozenset(f"MBPP/{n}" for n in (2, 193, 560, 579, 769))
"""Tasks that ask for the elements of a set: their references write them in the order that Python's hashing left, and no other
answer can know it. Any order is right."""


@dataclass(frozen=True, slots=True)
class PublicSet:
    """One set: files inside the folder, and how a row becomes a task (None: the row cannot be graded exactly, by design)."""

    files: tuple[str, ...]
    licence: str
    make: Callable[[Row], Task | None]
    about: str


def load_public(name: str, tasks_dir: Path | str, ledger: Ledger, use: Use | None = None) -> list[Task]:
    """The tasks of one public set, in file order; only those of one use where it is given.

    Raises DormouseError for an unknown set, a folder or file that is not there, and a file without one good line.
    """
    found = PUBLIC.get(name)
    if found is None:
        near = get_close_matches(name, PUBLIC, n=2) or sorted(PUBLIC)
        raise DormouseError(f"no public task set {name!r}; did you mean {' or '.join(near)}?")
    tasks: list[Task] = []
    for file in found.files:
        tasks += _load_file(Path(tasks_dir) / file, file, found.make, ledger)
    return [t for t in tasks if use is None or t.use is use]


def available(tasks_dir: Path | str) -> dict[str, bool]:
    """Which public sets the folder holds."""
    return {name: all((Path(tasks_dir) / f).is_file() for f in s.files) for name, s in PUBLIC.items()}


def _load_file(path: Path, shown: str, make: Callable[[Row], Task | None], ledger: Ledger) -> list[Task]:
    if not path.is_file():
        folder = path.parents[shown.count("/")]
        raise DormouseError(f"no task file {shown} under {folder}; name the folder of public task files with --tasks-dir or "
                            "DORMOUSE_TASKS_DIR, or leave the set out")
    tasks, broken = [], 0
    for number, line in _lines(path, shown, ledger):
        try:
            task = make(json.loads(line))
        except _BROKEN as error:
            broken += 1
            if broken <= _SHOWN:
                cause = f"no field {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {str(error).splitlines()[0]}"
                ledger.loud(f"tasks: {shown} line {number} is broken ({cause}); skipped")
            continue
        if task is None:
            ledger.count("tasks_not_exactly_gradable")
        else:
            tasks.append(task)
    ledger.count("tasks_loaded", len(tasks))
    ledger.count("tasks_broken_lines", broken)
    if broken > _SHOWN:
        ledger.loud(f"tasks: {shown} has {broken} broken lines in all; {len(tasks)} tasks were loaded")
    if not tasks:
        raise DormouseError(f"{shown} holds not one task that can be read ({broken} broken lines); fetch the file again")
    return tasks


def _lines(path: Path, shown: str, ledger: Ledger) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank. A file that ends in the middle is read up to there, and said aloud."""
    number = 0
    try:
        with gzip.open(path, "rb") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        ledger.count("tasks_broken_files")
        ledger.loud(f"tasks: {shown} cannot be read past line {number} ({type(error).__name__}: {error}); what stands before it was loaded")


def _public(name: str, pool: Pool, row: Row, prompt: str, verifier: VerifierKind, trusted: Row, reference: str, use: Use,
            start: Row | None = None, part: str = "") -> Task:
    family = f"{name}_{part}" if part else name
    action = _text(reference).encode()
    return Task(pool=pool, family=family, params={"id": _text(row["id"])}, prompt=_text(prompt).encode(), environment="answer",
                start=start or {}, verifier=verifier, trusted=trusted, reference=(action,), reference_steps=1,
                byte_budget=max(64, 2 * len(action) + 64), guess_bound=1.0, split=Split.PUBLIC, use=use,
                licence=PUBLIC[name].licence, source=f"{family} {row['id']}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text was expected, not {type(value).__name__}")
    return value


def _suite(row: Row) -> Row:
    """Literal cases where they are the whole suite, else the suite's source (decided inside the child, and labelled so)."""
    name = _text(row["entry_point"])
    if row.get("tests_complete") and row["tests"]:
        cases = [{"args": _text(c["args"]), "expected": _text(c["expected"])} for c in row["tests"]]
        return {"entry_point": name, "cases": cases, "typing": "python"} | ({"relax": "order"} if row["id"] in ANY_ORDER else {})
    return {"entry_point": name, "test_src": _text(row["test_src"])}


def _gsm8k(row: Row) -> Task:
    use = Use.TRAIN if _text(row["id"]).startswith("gsm8k/train/") else Use.EVALUATION
    trusted = {"answer": _text(row["answer"]), "form": "number", "units": ["$"]}
    return _public("gsm8k", Pool.MATH, row, row["question"], VerifierKind.EXACT, trusted, row["answer"], use)


def _mbpp(row: Row) -> Task:
    use = Use.TRAIN if int(_text(row["id"]).split("/")[1]) in MBPP_TRAIN else Use.EVALUATION
    return _body("mbpp", row, use)


def _body(family: str, row: Row, use: Use) -> Task:
    """The prompt is a signature with its docstring; the action is the body."""
    return _public(family, Pool.CODE, row, row["prompt"], VerifierKind.EXEC, _suite(row), row["reference"], use,
                   {"program_prefix": _text(row["prompt"])})


def _humaneval(row: Row) -> Task:
    return _body("humaneval", row, Use.EVALUATION)


def _humanevalfix(row: Row) -> Task:
    """The prompt is the instruction and the buggy function; the action is the whole corrected function."""
    prompt = f"{_text(row['instruction'])}\n{_text(row['buggy'])}"
    task = _public("humanevalfix", Pool.CODE, row, prompt, VerifierKind.EXEC, _suite(row), row["reference"], Use.EVALUATION)
    return task.model_copy(update={"params": task.params | {"given": _text(row["buggy"])}})


def _humanevalfix_repair(row: Row) -> Task:
    """The same programs in several turns: read, edit, run the visible tests, submit; the hidden suite decides."""
    name, buggy, reference = _text(row["entry_point"]), _text(row["buggy"]), _text(row["reference"])
    start = repair.start_state(buggy, name, repair.visible_tests(_text(row["example_test_src"]), name))
    actions = repair.repairing_actions(buggy, reference)
    task = _public("humanevalfix_repair", Pool.CODE, row, row["instruction"], VerifierKind.EXEC, _suite(row), reference, Use.EVALUATION,
                   start)
    return task.model_copy(update={
        "prompt": repair.prompt(_text(row["instruction"]), start), "environment": "repair", "reference": actions,
        "reference_steps": len(actions), "max_steps": max(repair.MAX_STEPS, len(actions) + 4), "byte_budget": 4 * len(reference) + 512})


def _cruxeval(row: Row) -> Task:
    prompt = f"{_text(row['prompt'])}\n{_text(row['entry_point'])}({_text(row['input'])})"
    trusted = {"answer": _text(row["output"]), "form": "literal", "typing": "python"}
    return _public("cruxeval", Pool.CODE, row, prompt, VerifierKind.EXACT, trusted, row["output"], Use.EVALUATION)


def _bbh(row: Row) -> Task:
    numeric = row["task"] in ("multistep_arithmetic_two", "object_counting")
    trusted = {"answer": _text(row["answer"]), "form": "number" if numeric else "string"}
    return _public("bbh", Pool.MATH, row, row["question"], VerifierKind.EXACT, trusted, row["answer"], Use.EVALUATION,
                   part=_text(row["task"]))


def _reasoning_gym(row: Row) -> Task | None:
    """Items whose answer has one right form; the library's own scorers, which the rest need, are not used."""
    if row["exact"] is not True:
        return None
    return _public("reasoning_gym", Pool.MATH, row, row["question"], VerifierKind.EXACT, {"answer": _text(row["answer"]), "form": "string"},
                   row["answer"], Use.EVALUATION, part=_text(row["task"]))


PUBLIC: dict[str, PublicSet] = {
    "gsm8k": PublicSet(("gsm8k/train.jsonl.gz", "gsm8k/test_even.jsonl.gz"), "MIT", _gsm8k,
                       "word problems; the training part may be trained on"),
    "mbpp": PublicSet(("mbpp/tasks.jsonl.gz",), "CC-BY-4.0", _mbpp, "function bodies; 601-974 may be trained on"),
    "humaneval": PublicSet(("humaneval/tasks.jsonl.gz",), "MIT", _humaneval, "function bodies"),
    "humanevalfix": PublicSet(("humanevalfix/tasks.jsonl.gz",), "MIT", _humanevalfix, "functions to repair"),
    "humanevalfix_repair": PublicSet(("humanevalfix/tasks.jsonl.gz",), "MIT", _humanevalfix_repair, "the same, repaired in several turns"),
    "cruxeval": PublicSet(("cruxeval/tasks.jsonl.gz",), "MIT", _cruxeval, "what a function returns"),
    "bbh": PublicSet(("bbh/tasks.jsonl.gz",), "MIT", _bbh, "16 exact-answer tasks; never to be trained on"),
    "reasoning_gym": PublicSet(("reasoning_gym/tasks.jsonl.gz",), "Apache-2.0", _reasoning_gym, "frozen items of 44 tasks"),
}


def describe(tasks: Sequence[Task]) -> dict[str, int]:
    """How many tasks of each use, for a person."""
    return {use.value: sum(t.use is use for t in tasks) for use in Use}
