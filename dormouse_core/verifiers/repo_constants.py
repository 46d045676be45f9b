"""Constants of a test: names bound once to a literal, and loops over literal rows, written out where they are used.

`want = 5` before `assert f() == want` would carry the 5 into the jail; written out, the assertion names its value itself and can be taken
apart. A list, dict or set is written out only where nothing could change it.
Not here: assertions (repo_tests.py).
"""

import ast
import copy
from collections.abc import Mapping
from typing import Any

MAX_ROWS = 200


def constants_of(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Names bound once, to a literal, by a plain assignment of the block."""
    bound: dict[str, ast.expr | None] = {}
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and is_literal(node.value):
            name = node.targets[0].id
            bound[name] = None if name in bound else node.value
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store | ast.Del):
                bound[inner.id] = None
            elif isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
                bound[inner.target.id] = None
    return {name: value for name, value in bound.items()
            if value is not None and (not isinstance(value, ast.List | ast.Dict | ast.Set) or not _may_change(body, name))}


def _may_change(body: list[ast.stmt], name: str) -> bool:
    """Whether the name is used other than as a side of a comparison, the rows of a loop, or an argument of assertEqual."""
    uses, plain = 0, 0
    for node in (n for b in body for n in ast.walk(b)):
        uses += isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.For):
            sides = [node.iter]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "assertEqual":
            sides = node.args
        plain += sum(isinstance(side, ast.Name) and side.id == name for side in sides)
    return uses != plain


def without_constants(body: list[ast.stmt], constants: Mapping[str, ast.expr]) -> list[ast.stmt]:
    """The block without assignments whose names nothing reads any more."""
    read = {n.id for b in body for n in ast.walk(b) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return [b for b in body if not (isinstance(b, ast.Assign) and isinstance(b.targets[0], ast.Name) and b.targets[0].id in constants
                                    and b.targets[0].id not in read)]


def substituted(body: list[ast.stmt], values: Mapping[str, ast.expr]) -> list[ast.stmt]:
    """The block with constant names replaced by their values, and loops over literal rows written out."""
    own = constants_of(body)
    shadowed = {n.id for b in body for n in ast.walk(b) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    known = {k: v for k, v in values.items() if k not in shadowed} | own
    swap = _Swap(known)
    out: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in own:
            continue
        done = swap.visit(copy.deepcopy(node))
        out += _unrolled(done) if isinstance(done, ast.For) else [done]
    return out


def _unrolled(loop: ast.For) -> list[ast.stmt]:
    try:
        rows = list(ast.literal_eval(loop.iter))
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        names = [n.id for n in targets if isinstance(n, ast.Name)]
        values = [[row] if not isinstance(loop.target, ast.Tuple) else list(row) for row in rows]
        whole = loop.orelse or len(rows) > MAX_ROWS or any(isinstance(n, ast.Break | ast.Continue) for b in loop.body for n in ast.walk(b))
        if whole or len(names) < len(targets) or any(len(v) != len(names) for v in values):
            return [loop]
    except (ValueError, TypeError, SyntaxError):
        return [loop]
    return [b for row in values for b in substituted(loop.body, {n: literal(v) for n, v in zip(names, row, strict=True)})]


class _Swap(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.known[node.id]) if isinstance(node.ctx, ast.Load) and node.id in self.known else node


def literal(value: Any) -> ast.expr:
    return ast.parse(repr(value), mode="eval").body


def is_literal(node: ast.AST) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
