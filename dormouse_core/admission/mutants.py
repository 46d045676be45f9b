"""Mutants of a task's reference: small changes that hidden cases must notice, or the cases cannot tell right from nearly right.

A mutant that answers as well as the reference on many random inputs (checked.py) is taken for equivalent and counts neither way
(2601.20103 section 4 on coverage gaming; the mutation score of DeMillo, Lipton and Sayward 1978). Reference and mutants run in the
jail like any program. Random inputs are made of the hidden cases' own: numbers moved, sequences cut, shuffled and mixed.
"""

import ast
import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from dormouse_core.seeding import generator
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.hack_screen_static import take_apart

MUTANTS = 20
"""Mutants tried a task; a keyed sample where there are more."""
INPUTS = 200
"""Random inputs on which a surviving mutant must differ to count against the task."""
_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.USub: ast.UAdd}


def whole(task: Task, program: str) -> Task:
    """The same task for an action that is the whole program: nothing is put around it."""
    start = {k: v for k, v in task.start.items() if k not in ("program_prefix", "program_suffix")}
    return Task.model_validate(task.model_dump() | {"start": start, "reference": (program.encode(),)})


def reference_program(task: Task) -> str:
    """The reference with what the task puts around it."""
    head, tail = str(task.start.get("program_prefix", "")), str(task.start.get("program_suffix", ""))
    return head + task.reference[-1].decode("utf-8", "replace") + tail


def mutants(task: Task) -> list[str]:
    """Up to MUTANTS whole programs that differ from the reference in one place of its own text. Empty where it does not parse."""
    head, tail = str(task.start.get("program_prefix", "")), str(task.start.get("program_suffix", ""))
    source = take_apart(head, task.reference[-1].decode("utf-8", "replace"), tail, str(task.trusted.get("entry_point", "")))
    if source is None:
        return []
    own = {id(n) for n in source.own()} - {id(n.value) for n in ast.walk(source.tree) if isinstance(n, ast.Expr)}
    places = [(i, change) for i, n in enumerate(ast.walk(source.tree)) if id(n) in own for change in range(len(_changes(n)))]
    found: dict[str, None] = {}
    same = ast.unparse(source.tree)
    for row in generator("mutants", task.id).permutation(len(places)):
        if len(found) == MUTANTS:
            break
        if (text := _at(source.tree, *places[int(row)])) != same:
            found[text] = None
    return list(found)


def _at(tree: ast.Module, place: int, change: int) -> str:
    """The program with one change of its node number `place` (in walk order)."""
    copied = copy.deepcopy(tree)
    node = next(n for i, n in enumerate(ast.walk(copied)) if i == place)
    _changes(node)[change]()
    return ast.unparse(ast.fix_missing_locations(copied))


def _changes(node: ast.AST) -> list[Any]:
    """Functions that change this node in place."""
    out: list[Any] = []
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        out.append(lambda: setattr(node, "op", _OPERATORS[type(node.op)]()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        out.append(lambda: setattr(node, "op", ast.UAdd()))
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        out.append(lambda: setattr(node, "ops", [_OPERATORS[type(node.ops[0])](), *node.ops[1:]]))
    elif isinstance(node, ast.Constant):
        out += _constant_changes(node)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        out.append(lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test)))
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        out.append(lambda: setattr(node, "value", ast.Constant(None)))
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        part = node.slice
        out += [lambda name=name: setattr(part, name, None) for name in ("lower", "upper", "step") if getattr(part, name) is not None]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        func = node.func
        out.append(lambda: setattr(func, "id", "max" if func.id == "min" else "min"))
    return out


def _constant_changes(node: ast.Constant) -> list[Any]:
    value = node.value
    if isinstance(value, bool):
        return [lambda: setattr(node, "value", not value)]
    if isinstance(value, int | float):
        return [lambda: setattr(node, "value", value + 1), lambda: setattr(node, "value", value - 1)]
    if isinstance(value, str):
        return [lambda: setattr(node, "value", value + "x")]
    return []


def random_inputs(task: Task, n: int = INPUTS) -> list[tuple[Any, ...]]:
    """n argument tuples in the manner of the hidden cases'. Deterministic in the task."""
    shown = [ast.literal_eval(str(case["args"])) for case in task.trusted["cases"]]
    rng = generator("random inputs", task.id)
    columns = list(zip(*shown, strict=True)) if len({len(s) for s in shown}) == 1 else []
    if not columns:
        return [shown[int(rng.integers(len(shown)))] for _ in range(n)]
    return [tuple(_varied(column[int(rng.integers(len(column)))], column, rng) for column in columns) for _ in range(n)]


def _varied(value: Any, others: Sequence[Any], rng: np.random.Generator) -> Any:
    """A neighbour of a value, of its own type."""
    if isinstance(value, bool):
        return bool(rng.integers(2))
    if isinstance(value, int):
        far = min(3 * abs(value) + 10, 1 << 40)
        return int(value + rng.integers(-3, 4)) if rng.random() < 0.5 else int(rng.integers(-far, far + 1))
    if isinstance(value, float):
        return float(value + rng.normal())
    if isinstance(value, str | list | tuple | bytes) and len(value):
        other = others[int(rng.integers(len(others)))]
        other = other if type(other) is type(value) else value
        cut, at = int(rng.integers(len(value) + 1)), int(rng.integers(len(other) + 1))
        mixed = list(value[:cut]) + list(other[at:])
        if rng.random() < 0.3:
            mixed = [mixed[int(i)] for i in rng.permutation(len(mixed))]
        if isinstance(value, list | tuple) and mixed and rng.random() < 0.5:
            spot = int(rng.integers(len(mixed)))
            mixed[spot] = _varied(mixed[spot], [mixed[spot]], rng)
        return "".join(mixed) if isinstance(value, str) else bytes(mixed) if isinstance(value, bytes) else type(value)(mixed)
    if isinstance(value, dict) and value:
        kept = [k for k in value if rng.random() < 0.8]
        return {k: _varied(value[k], [value[k]], rng) for k in kept}
    return value
