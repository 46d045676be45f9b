"""The examples a task shows its policy: what a lookup table would be made of.

Read from the prompt's own notations (a doctest, an assert, `f(2) = 4`, `f(2) ==> 4`) and from `params["visible_cases"]`; nothing is run.
Not here: hidden cases. They are in `trusted`, and no prompt may hold them (admission).
"""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dormouse_core.tasks.task import Task

MAX_PROMPT = 1 << 16
"""Bytes of a prompt that are searched."""
_DOCTEST = re.compile(r">>>\s*(.+)\n\s*(.+)")
_PROMPT = re.compile(r">>>\s*(.+==.+)")
_ASSERT = re.compile(r"\bassert\s+(.+)")
_CALL = re.compile(r"^\W*(\w+\(.*\))\s*(?:#\s*)?(?:==>|==|=>|->|➞|=|returns?)\s*(.+?)[.,;]?\s*$")


class Example(NamedTuple):
    """One shown call: a tuple of argument values and the value shown for it."""

    args: tuple[object, ...]
    expected: object


def visible_examples(task: Task) -> tuple[Example, ...]:
    """Every shown (arguments, value) whose text is literal, in order of appearance, none twice. Total over any prompt."""
    return _literal((*_listed(task), *_prompted(task)))


def prompted_examples(task: Task) -> tuple[Example, ...]:
    """Those that stand in the prompt's own text."""
    return _literal(_prompted(task))


def _literal(pairs: Iterable[tuple[str, str]]) -> tuple[Example, ...]:
    found: dict[str, Example] = {}
    for args, expected in pairs:
        try:
            example = Example(ast.literal_eval(args), ast.literal_eval(expected))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        if type(example.args) is tuple:
            found.setdefault(repr(example), example)
    return tuple(found.values())


def _listed(task: Task) -> Iterator[tuple[str, str]]:
    rows = task.params.get("visible_cases", ())
    for row in rows if isinstance(rows, list | tuple) else ():
        if isinstance(row, dict) and {"args", "expected"} <= row.keys():
            yield str(row["args"]), str(row["expected"])


def _prompted(task: Task) -> Iterator[tuple[str, str]]:
    name = str(task.trusted.get("entry_point"))
    if not name.isidentifier():
        return
    text = task.prompt[:MAX_PROMPT].decode("utf-8", "replace")
    for call, value in _DOCTEST.findall(text):
        if (args := _arguments(call, name)) is not None:
            yield args, value.strip()
    claims = [_asserted(claim) for claim in _ASSERT.findall(text)]
    for tree in claims + [_expression(line.strip()) for line in _PROMPT.findall(text)]:
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
            left, right = ast.unparse(tree.left), ast.unparse(tree.comparators[0])
            if (args := _arguments(left, name)) is not None:
                yield args, right
    for line in text.splitlines():
        if ">>>" not in line and name in line and (shown := _CALL.match(line)) and (args := _arguments(shown[1], name)) is not None:
            yield args, shown[2].strip()


def _arguments(call: str, name: str) -> str | None:
    """The text of the argument tuple where `call` is a plain call of `name`."""
    tree = _expression(call.strip())
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.func.id != name or tree.keywords:
        return None
    return ast.unparse(ast.Tuple(tree.args, ast.Load()))


def _asserted(text: str) -> ast.expr | None:
    """What `assert TEXT` asserts, its message left out."""
    try:
        (only,) = ast.parse(f"assert {text}").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return only.test if isinstance(only, ast.Assert) else None


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
