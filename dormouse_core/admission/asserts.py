"""Assert-style suites turned into cases, once, by recording: inputs and expected values instead of code that judges.

A public code task may come with a `check(candidate)` function instead of literal cases. Each of its asserts is rewritten to
record the arguments it would pass and the value it would accept; the rewritten suite then runs once beside the task's own
reference, in the runner like any program. An assert of a form not listed in `_Recorder` leaves the task as it is: its
verdicts then carry `in_child_asserts`. Forms: `f(..) == E`, `f(..) is E`, `tuple|list(f(..)) == E`, `abs(f(..) - E) < T`, `f(..)`,
`not f(..)`, `True`.
"""

import ast
from collections.abc import Sequence
from typing import Any

from dormouse_core.envs.registry import environment
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox import wire
from dormouse_core.sandbox.runner import End, Job, Runners
from dormouse_core.tasks.task import Task, VerifierKind
from dormouse_core.verifiers.attempt import BadTask

_HEAD = """
import copy as __copy__
__rows__ = []
def __record__(*row):
    __rows__.append(__copy__.deepcopy(row))
"""
_TAIL = "\ndef __claim__():\n    return __rows__\n"


def convert(tasks: Sequence[Task], runners: Runners, ledger: Ledger) -> list[Task]:
    """Tasks in order; those judged by `test_src` alone come back with cases where every assert could be recorded.
    Counts `admission.asserts_converted` and `admission.asserts_kept`."""
    jobs: dict[int, Job] = {}
    done = list(tasks)
    for index, task in enumerate(tasks):
        if task.verifier is VerifierKind.EXEC and "cases" not in task.trusted and task.trusted.get("test_src"):
            try:
                jobs[index] = Job(_recording_program(task), "__claim__", (wire.encode(()),))
            except (BadTask, SyntaxError, RecursionError):
                ledger.count("admission.asserts_kept")
    for index, outcome in zip(jobs, runners.run(list(jobs.values()))[0], strict=True):
        try:
            if outcome.end is not End.CLEAN or len(outcome.claims) != 1 or outcome.claims[0].kind != b"V":
                raise BadTask("the reference did not get through its own suite")
            rows = wire.decode(outcome.claims[0].payload)
            cases = [_case(row) for row in rows] if isinstance(rows, list) else []
            if not cases:
                raise BadTask("no assert was reached")
        except (BadTask, ValueError, SyntaxError):
            ledger.count("admission.asserts_kept")
            continue
        ledger.count("admission.asserts_converted")
        trusted = {k: v for k, v in tasks[index].trusted.items() if k != "test_src"} | {"cases": cases, "typing": "python"}
        done[index] = tasks[index].model_copy(update={"trusted": trusted})
        done[index].__dict__.pop("id", None)  # the id is a function of the content just changed
    return done


def _case(row: Any) -> dict[str, Any]:
    args, expected, extra = row
    case: dict[str, Any] = {"args": repr(args), "expected": repr(expected), **extra}
    for name in ("args", "expected"):
        ast.literal_eval(str(case[name]))
    return case


def _recording_program(task: Task) -> bytes:
    """The reference, then the suite with every assert recording. Raises BadTask where an assert has another form."""
    if not task.reference:
        raise BadTask("no reference to record with")
    tree = ast.parse(task.trusted["test_src"])
    checks = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check" and len(n.args.args) == 1]
    if len(checks) != 1:
        raise BadTask("no single check(candidate) in the suite")
    recorder = _Recorder(checks[0].args.args[0].arg)
    suite = ast.fix_missing_locations(recorder.visit(tree))
    head, tail = str(task.start.get("program_prefix", "")), str(task.start.get("program_suffix", ""))
    program = environment(task.environment).leaves(task, task.reference)
    if program is None:
        raise BadTask("the reference leaves no program")
    return head.encode() + program + (tail + _HEAD + ast.unparse(suite) + _TAIL).encode()


class _Recorder(ast.NodeTransformer):
    """Rewrites the asserts of one suite."""

    def __init__(self, candidate: str) -> None:
        self.candidate = candidate

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        test = node.test
        if isinstance(test, ast.Constant) and test.value is True:
            return ast.Pass()
        if self._is_call(test):
            return self._record(test, ast.Constant(True), relax="truth")
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and self._is_call(test.operand):
            return self._record(test.operand, ast.Constant(False), relax="truth")
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._comparison(test.left, test.ops[0], test.comparators[0])
        raise BadTask(f"assert of an unknown form at line {node.lineno}")

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.stmt:
        if isinstance(op, ast.Eq | ast.Is):
            if not self._mentions(left):
                left, right = right, left
            typing = {"typing": "strict"} if isinstance(op, ast.Is) else {}
            if self._is_call(left):
                return self._record(left, right, **typing)
            if isinstance(op, ast.Eq) and self._wraps(left, ("tuple", "list")):
                return self._record(left.args[0], right, relax="sequence")  # type: ignore[attr-defined]
        if isinstance(op, ast.Lt | ast.LtE) and self._wraps(left, ("abs", "fabs"), difference=True) and isinstance(right, ast.Constant) \
                and isinstance(right.value, int | float):
            difference = left.args[0]  # type: ignore[attr-defined]
            sides = (difference.left, difference.right)
            call, other = sides if self._is_call(sides[0]) else sides[::-1]
            return self._record(call, other, tolerance=float(right.value))
        raise BadTask("comparison of an unknown form")

    def _record(self, call: ast.expr, expected: ast.expr, **extra: str | float) -> ast.stmt:
        assert isinstance(call, ast.Call)
        if call.keywords or self._mentions(expected) or any(map(self._mentions, call.args)):
            raise BadTask("the candidate is called by keyword, or for its own input or expected value")
        settings = ast.Dict([ast.Constant(k) for k in extra], [ast.Constant(v) for v in extra.values()])
        row: list[ast.expr] = [ast.Tuple(call.args, ast.Load()), expected, settings]
        return ast.Expr(ast.Call(ast.Name("__record__", ast.Load()), row, []))

    def _is_call(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == self.candidate

    def _wraps(self, node: ast.AST, names: tuple[str, ...], difference: bool = False) -> bool:
        """`name(f(..))`, or with `difference` `name(f(..) - E)` or `name(E - f(..))`."""
        if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
            return False
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        inner = node.args[0]
        if difference:
            if not isinstance(inner, ast.BinOp) or not isinstance(inner.op, ast.Sub):
                return False
            return name in names and (self._is_call(inner.left) or self._is_call(inner.right))
        return name in names and self._is_call(inner)

    def _mentions(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id == self.candidate for n in ast.walk(node))
