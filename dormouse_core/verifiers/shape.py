"""What kind of value a trusted checker takes, as a task writes it: `int | float`, `list[tuple[int, int]]`, `dict[str, any]`.

Read from text once; matched against a claim's tagged tree, so a claim of another kind is a wrong answer before any checker sees it. Types
are their own (bool is no int); bare `list`, `tuple`, `set` and `dict` hold anything; `tuple[int, ...]` is of any length.
"""

import ast
from typing import NamedTuple

from dormouse_core.sandbox.wire import BYTES, COMPLEX, DICT, FALSE, FLOAT, INT, LIST, NONE, SET, STR, TRUE, TUPLE, Tree

_PLAIN = {"None": (NONE,), "bool": (TRUE, FALSE), "int": (INT,), "float": (FLOAT,), "complex": (COMPLEX,), "str": (STR,), "bytes": (BYTES,),
          "any": (NONE, TRUE, FALSE, INT, FLOAT, COMPLEX, STR, BYTES, TUPLE, LIST, DICT, SET)}
_HOLDING = {"tuple": TUPLE, "list": LIST, "set": SET, "dict": DICT}


class Kind(NamedTuple):
    """One alternative: tags it may have, and what it holds (None: anything)."""

    tags: tuple[int, ...]
    parts: "tuple[Shape, ...] | None" = None
    fixed: bool = False
    """A tuple of just these parts, one after the other."""


class Shape(NamedTuple):
    text: str
    kinds: tuple[Kind, ...]


def read(text: object) -> Shape:
    """Raises ValueError where the text names no kind of value."""
    try:
        return _shape(ast.parse(str(text), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{str(text)[:60]!r} names no kind of value") from error


def _shape(node: ast.expr) -> Shape:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return Shape(ast.unparse(node), _shape(node.left).kinds + _shape(node.right).kinds)
    return Shape(ast.unparse(node), (_kind(node),))


def _kind(node: ast.expr) -> Kind:
    name = str(node.value) if isinstance(node, ast.Constant) and node.value is None else node.id if isinstance(node, ast.Name) else ""
    if name in _PLAIN:
        return Kind(_PLAIN[name])
    if name in _HOLDING:
        return Kind((_HOLDING[name],))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in _HOLDING:
        tag = _HOLDING[node.value.id]
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if tag == TUPLE and not (len(inside) == 2 and isinstance(inside[1], ast.Constant) and inside[1].value is ...):
            return Kind((tag,), tuple(map(_shape, inside)), fixed=True)
        inside = inside[:1] if tag == TUPLE else inside
        if len(inside) == (2 if tag == DICT else 1):
            return Kind((tag,), tuple(map(_shape, inside)))
    raise ValueError(f"{ast.unparse(node)[:60]!r} names no kind of value; kinds are {', '.join((*_PLAIN, *_HOLDING))}, as in "
                     "`int | float` or `list[tuple[int, int]]`")


def fits(tree: Tree, shape: Shape) -> bool:
    """Whether a claim is of one of the kinds."""
    return any(_fits(tree, kind) for kind in shape.kinds)


def _fits(tree: Tree, kind: Kind) -> bool:
    tag, payload = tree
    if tag not in kind.tags:
        return False
    if kind.parts is None:
        return True
    if kind.fixed:
        return len(payload) == len(kind.parts) and all(map(fits, payload, kind.parts))
    if tag == DICT:
        return all(fits(k, kind.parts[0]) and fits(v, kind.parts[1]) for k, v in payload)
    return all(fits(item, kind.parts[0]) for item in payload)
