"""A task's hidden cases, made ready once: inputs as they are sent, and what each claim is decided by.

trusted = {"entry_point": "f", "cases": [CASE, ...]}. Every CASE has "args" (the repr of a tuple), and one of
  "expected": repr           that value
  "any_of": [repr, ...]      one of these values
  "check": name              whatever that function of trusted["checker"] says yes to (checker.py); `check` where none of the three is
                             there. "known": repr is told to it beside arguments and claim
and, for the task or one case, "typing", "tolerance", "relax" (compare.py). "cpu_seconds" is for a task that needs more than the
configured limit. trusted = {"entry_point": "f", "test_src": source} runs asserts inside the candidate's process (exec.py).
"""

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dormouse_core.sandbox import limits, wire
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers import checker
from dormouse_core.verifiers.attempt import BadTask
from dormouse_core.verifiers.checker import Check, Checker
from dormouse_core.verifiers.compare import Relax, Rule, Typing, equal, holds_nan

MAX_CPU_SECONDS = 60
MAX_ANY_OF = 256
"""Values of which one is right; more than these are a checker's business."""


class Wanted(NamedTuple):
    """Right values of one case, as they are encoded and as they are compared."""

    encoded: tuple[bytes, ...]
    trees: tuple[wire.Tree, ...]
    rule: Rule = Rule()

    def met(self, claim: wire.Tree) -> bool:
        return any(equal(claim, tree, self.rule) for tree in self.trees)


@dataclass(frozen=True, slots=True)
class Cases:
    """One task's cases. `wanted` and `checks` name every case between them, by its index."""

    entry_point: str
    inputs: tuple[bytes, ...]
    wanted: Mapping[int, Wanted]
    output_limit: int
    checks: Mapping[int, Check]
    checker: Checker | None = None
    cpu_seconds: float = 0.0
    test_src: str = ""


def prepare(task: Task) -> Cases:
    """Raises BadTask where the trusted data cannot be used, with the case and the cause."""
    trusted = task.trusted
    entry_point = trusted.get("entry_point")
    if not isinstance(entry_point, str) or not entry_point.isidentifier():
        raise BadTask(f"entry_point {str(entry_point)[:40]!r} is no function name")
    if "cases" not in trusted and trusted.get("test_src"):
        token = hashlib.sha256(task.id.encode()).hexdigest()[:16]
        return Cases("__claim__", (wire.encode(()),), {0: wanted([token])}, limits.OUTPUT_SLACK, {},
                     test_src=f"\n\n{trusted['test_src']}\n\ndef __claim__():\n    return {token!r}\n")
    cpu = trusted.get("cpu_seconds") or 0.0
    if not isinstance(cpu, int | float) or not 0 <= cpu <= MAX_CPU_SECONDS:
        raise BadTask(f"cpu_seconds must be a number up to {MAX_CPU_SECONDS}")
    rows = trusted.get("cases")
    if not isinstance(rows, list | tuple) or not rows:
        raise BadTask("no hidden cases: nothing could fail")
    inputs: list[bytes] = []
    values: dict[int, Wanted] = {}
    checks: dict[int, Check] = {}
    for index, row in enumerate(rows):
        try:
            args = ast.literal_eval(row["args"])
            if type(args) is not tuple:
                raise ValueError("args is not a tuple")
            inputs.append(wire.encode(args, in_order=True))
            if (values_of := _values(row)) is None:
                checks[index] = _check(row, inputs[-1])
            else:
                values[index] = wanted(values_of, rule_of(trusted, row))
        except (KeyError, ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError) as error:
            raise BadTask(f"case {index}: {type(error).__name__}: {str(error)[:80]}") from error
    room = limits.OUTPUT_SLACK + 16 * sum(max(map(len, w.encoded)) for w in values.values())
    return Cases(entry_point, tuple(inputs), values, min(limits.MAX_OUTPUT, room), checks, _checker(trusted, checks), float(cpu))


def _checker(trusted: Mapping[str, Any], checks: Mapping[int, Check]) -> Checker | None:
    try:
        if checks and "checker" not in trusted:
            raise ValueError(f"case {min(checks)} has no expected value, and the task has no checker")
        if not checks and "checker" in trusted:
            raise ValueError("no case is decided by the task's checker")
        return checker.prepare(trusted["checker"], {c.function for c in checks.values()}) if checks else None
    except ValueError as error:
        raise BadTask(f"checker: {error}") from error


def _values(row: Mapping[str, Any]) -> list[Any] | None:
    """The right values of a case; None where the checker decides."""
    if len(row.keys() & {"expected", "any_of", "check"}) > 1:
        raise ValueError("a case is decided by one of expected, any_of and check")
    if "any_of" not in row:
        return [ast.literal_eval(row["expected"])] if "expected" in row else None
    listed = row["any_of"]
    if not isinstance(listed, list | tuple) or not 1 <= len(listed) <= MAX_ANY_OF:
        raise ValueError(f"any_of is a list of 1 to {MAX_ANY_OF} values")
    return [ast.literal_eval(each) for each in listed]


def _check(row: Mapping[str, Any], args: bytes) -> Check:
    known = wire.encode(ast.literal_eval(row["known"]), in_order=True) if "known" in row else None
    if len(args) + len(known or b"") > checker.CHUNK:
        raise ValueError("arguments too long for a checker")
    return Check(str(row.get("check", checker.ENTRY)), args, known)


def wanted(values: list[Any], rule: Rule = Rule()) -> Wanted:  # noqa: B008 - a frozen tuple
    """Raises ValueError for a value outside the wire format or with a NaN, which equals nothing."""
    encoded = tuple(map(wire.encode, values))
    trees = tuple(map(wire.decode_tree, encoded))
    if any(map(holds_nan, trees)):
        raise ValueError("expects NaN, which equals nothing")
    return Wanted(encoded, trees, rule)


def rule_of(trusted: Mapping[str, Any], row: Mapping[str, Any]) -> Rule:
    """The comparison of one case: its own settings before the task's. Raises ValueError on an unknown one."""
    pick = {name: row.get(name, trusted.get(name)) for name in ("typing", "tolerance", "relax")}
    tolerance, relax = float(pick["tolerance"] or 0.0), Relax(pick["relax"] or "")
    if not 0 <= tolerance < float("inf"):
        raise ValueError(f"tolerance {tolerance} is not a finite number of at least 0")
    if tolerance and relax is Relax.ORDER:
        raise ValueError("values in any order are compared exactly: no tolerance")
    return Rule(Typing(pick["typing"] or "strict"), tolerance, relax)
