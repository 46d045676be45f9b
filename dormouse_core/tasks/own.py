"""A user's own tasks: every JSON-lines file of a folder (`*.jsonl`, `*.jsonl.gz`), one task a line.

    {"prompt" or "question": text, "answer": text, "form"?: number|string|set|literal, "units"?, "tolerance"?}            exact
    {"prompt": text, "entry_point": name, "tests": [{"args": "(1, 2)", "expected": "3"}], "reference"?: text, ...}        program
    the same with "any_of": ["3", "-3"] for "expected", or neither and "checker": {"program", "accepts"}           several right answers
    {"instance_id", "problem_statement", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", "files": {path: text}}      repository
    a whole task record, as `dormouse tasks show --json` prints it                                                         any

A program's prompt is put ahead of the action where the two parse together (a signature to complete), else it is only shown. `id`,
`alternatives` (other solutions), `visible` (shown cases), `byte_budget`, `typing` and `licence` may stand in any line.
Files of the public sets are read as those sets are (tasks/public.py). A broken line is named, skipped and counted.
"""

import ast
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.public import PUBLIC, available, load_public
from dormouse_core.tasks.repo import repo_task
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind

_SHOWN = 5
"""Broken lines of a file that are named one by one."""
NO_TASKS = frozenset({"bigbench_mistake"})
"""Folders of the public data that hold no tasks."""
_PLAIN = ("units", "tolerance", "casefold", "expressions", "typing", "relax", "cpu_seconds", "checker")


def own_tasks(folder: Path, ledger: Ledger) -> Iterator[tuple[str, list[Task], int]]:
    """(file or set, its tasks, lines that are none) for everything in the folder, in order of name."""
    there = available(folder)
    for name in sorted(n for n, held in there.items() if held):
        own = Ledger(on_line=ledger.loud)
        yield name, load_public(name, folder, own), own.counters().get("tasks_broken_lines", 0)
    taken = {file.split("/")[0] for s in PUBLIC.values() for file in s.files} | NO_TASKS
    for path in sorted(p for pattern in ("*.jsonl", "*.jsonl.gz") for p in folder.rglob(pattern)):
        shown = path.relative_to(folder)
        if shown.parts[0] not in taken:
            yield str(shown), *_file(path, str(shown), ledger)


def _file(path: Path, shown: str, ledger: Ledger) -> tuple[list[Task], int]:
    tasks, broken = [], 0
    try:
        with (gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = None
                try:
                    row = json.loads(line)
                    tasks.append(own_task(row, f"{shown}:{number}"))
                except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
                    broken += 1
                    if broken <= _SHOWN:
                        named = row.get("id", row.get("instance_id")) if isinstance(row, dict) else None
                        ledger.loud(f"tasks: {shown} line {number}{f' ({str(named)[:40]})' if named is not None else ''} is no task "
                                    f"({_cause(error)}); skipped")
    except (OSError, EOFError) as error:
        broken += 1
        ledger.loud(f"tasks: {shown} cannot be read to its end ({type(error).__name__}: {error}); what stands before it was loaded")
    if broken > _SHOWN:
        ledger.loud(f"tasks: {broken} lines of {shown} in all are no tasks")
    return tasks, broken


def _cause(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"no field {error}" if isinstance(error, KeyError) else str(error).splitlines()[0][:120] if str(error) else type(error).__name__


def own_task(row: Any, name: str) -> Task:
    """One line as a task. Raises KeyError, TypeError or ValueError where it is none; name: what it is called where it has no id."""
    if not isinstance(row, dict):
        raise ValueError("a line is one JSON object")
    if "verifier" in row and "environment" in row:
        return Task.model_validate_json(json.dumps({k: v for k, v in row.items() if k not in ("id", "cell")}))
    if "instance_id" in row and "files" in row:
        try:
            return repo_task(row, row["files"], Use(row.get("use", "train")))
        except DormouseError as error:
            raise ValueError(str(error)) from error
    prompt = row["prompt"] if "prompt" in row else row["question"]
    if not isinstance(prompt, str):
        raise TypeError("prompt is not text")
    params = {k: row[k] for k in ("alternatives",) if k in row} | ({"visible_cases": row["visible"]} if "visible" in row else {})
    common: dict[str, Any] = {
        "prompt": prompt.encode(), "environment": "answer", "split": Split.PUBLIC, "use": Use(row.get("use", "train")), "guess_bound": 1.0,
        "family": str(row.get("family", "own")), "licence": str(row.get("licence", "unknown")), "source": str(row.get("id", name)),
        "params": params | {"id": str(row.get("id", name))}, "reference_steps": 1}
    settings = {k: row[k] for k in _PLAIN if k in row}
    if "entry_point" in row:
        return _program(row, prompt, settings, common)
    answer = str(row["answer"])
    return Task(pool=Pool.MATH, verifier=VerifierKind.EXACT, reference=(answer.encode(),), byte_budget=_budget(row, answer),
                trusted={"answer": answer, "form": row.get("form", _form(answer)), **settings}, **common)


def _program(row: dict[str, Any], prompt: str, settings: dict[str, Any], common: dict[str, Any]) -> Task:
    reference = str(row.get("reference", ""))
    if not row.get("tests") and not row.get("test_src"):
        raise ValueError("no hidden cases: neither tests nor test_src holds any, so nothing could fail")
    suite = {"cases": [_case(c) for c in row["tests"]]} if row.get("tests") else {"test_src": str(row["test_src"])}
    start = {"program_prefix": prompt} if reference and not _parses(reference) and _parses(prompt + reference) else {}
    return Task(pool=Pool.CODE, verifier=VerifierKind.EXEC, reference=(reference.encode(),) if reference else (), start=start,
                byte_budget=_budget(row, reference), trusted={"entry_point": str(row["entry_point"]), **suite, **settings}, **common)


def _case(case: Any) -> dict[str, Any]:
    if not isinstance(case, dict):
        raise TypeError('a test is an object such as {"args": "(1, 2)", "expected": "3"}')
    return {k: str(v) if k in ("args", "expected", "known") else [str(one) for one in v] if k == "any_of" else v for k, v in case.items()}


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _budget(row: dict[str, Any], reference: str) -> int:
    return int(row.get("byte_budget", max(64, 2 * len(reference.encode()) + 64)))


def _form(answer: str) -> str:
    return "number" if answer.strip().lstrip("-").replace(",", "").replace(".", "", 1).isdigit() else "string"
