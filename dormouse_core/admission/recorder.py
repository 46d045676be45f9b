"""One suite of asserts, rewritten to record instead of to judge.

`assert f(..) == E` becomes a note of the arguments and of E. Where an assert accepts more than one value (`abs(poly(x, f(x))) < 1e-4`,
`len(f(3)) == 2`, or `y = f(..)` and an assert about `y`) the note holds the arguments and the names the assert looks at, and its
expression becomes a function of a trusted checker (verifiers/checker.py). An assert that compares a call with the same call notes the
reference's value: that is what the suite it was copied from compares with.
Not here: running the rewritten suite, and what becomes of its notes (asserts.py).
"""

import ast
from typing import NamedTuple

from dormouse_core.verifiers.attempt import BadTask

HEAD = """
import copy as __copy__
__rows__, __called__ = [], {}
def __record__(*row):
    __rows__.append(__copy__.deepcopy(row))
def __call__(name, candidate, *args):
    __called__[name] = __copy__.deepcopy(args)
    return candidate(*args)
"""
TAIL = "\ndef __claim__():\n    return __rows__\n"
VALUE = "__value__"
_INSIDE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
_FAULTS = "TypeError, ValueError, ArithmeticError, LookupError, AttributeError"
"""What an assert's expression raises over a value of another kind: such an assert does not hold."""


class Site(NamedTuple):
    """One assert that a checker decides: its expression over `__value__`, and the names it is told."""

    expression: str
    names: tuple[str, ...]

    def function(self, number: int, arguments: dict[str, int]) -> str:
        """Source of the checker's function. arguments: names that are the case's own arguments, by place; the rest come as `known`."""
        bound = [f"{name} = args[{arguments[name]}]" if name in arguments else f"{name} = known[{name!r}]" for name in self.names]
        lines = [f"def {function_name(number)}(args, {VALUE}, known=None):", "    try:", *(f"        {line}" for line in bound),
                 f"        return bool({self.expression})", f"    except ({_FAULTS}):", "        return False"]
        return "\n".join(lines) + "\n"


def function_name(number: int) -> str:
    return f"__check_{number}__"


class Recorder(ast.NodeTransformer):
    """Rewrites the body of one `check(candidate)`. Raises BadTask where something is asked of the candidate that cannot be noted."""

    def __init__(self, check: ast.FunctionDef) -> None:
        self.candidate = check.args.args[0].arg
        self.sites: list[Site] = []
        self.claims = {n.targets[0].id for n in ast.walk(check) if isinstance(n, ast.Assign) and self._names_a_claim(n)}  # type: ignore[attr-defined]
        imports = [n for n in ast.walk(check) if isinstance(n, ast.Import | ast.ImportFrom)]
        self.imports = [ast.unparse(n) for n in imports]
        imported = {(alias.asname or alias.name).split(".")[0] for n in imports for alias in n.names}
        self.locals = {n.id for n in ast.walk(check) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - imported
        self.inner = {n.name for n in ast.walk(check) if isinstance(n, ast.FunctionDef | ast.ClassDef)} - {check.name}

    def _names_a_claim(self, node: ast.Assign) -> bool:
        return len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and self._is_call(node.value)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if not self._names_a_claim(node):
            return self.generic_visit(node)
        call = node.value
        assert isinstance(call, ast.Call) and isinstance(node.targets[0], ast.Name)
        self._plain(call)
        inside = ast.Call(ast.Name("__call__", ast.Load()), [ast.Constant(node.targets[0].id), call.func, *call.args], [])
        return ast.copy_location(ast.Assign(node.targets, inside), node)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id == self.candidate or node.id in self.claims:
            raise BadTask(f"the candidate or what it returned is used outside an assert at line {node.lineno}")
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        test = node.test
        if isinstance(test, ast.Constant) and test.value is True:
            return ast.Pass()
        if self._is_claim(test):
            return self._record(test, ast.Constant(True), relax="truth")
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and self._is_claim(test.operand):
            return self._record(test.operand, ast.Constant(False), relax="truth")
        simple = isinstance(test, ast.Compare) and len(test.ops) == 1
        found = self._comparison(test.left, test.ops[0], test.comparators[0]) if simple else None  # type: ignore[attr-defined]
        return found or self._checked(test)

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.stmt | None:
        if isinstance(op, ast.Eq | ast.Is):
            if not self._mentions(left):
                left, right = right, left
            same = ast.dump(left) == ast.dump(right)
            typing = {"typing": "strict"} if isinstance(op, ast.Is) else {}
            if self._mentions(right) and not same:
                return None
            if self._is_claim(left):
                return self._record(left, right, **typing)
            if isinstance(op, ast.Eq) and self._wraps(left, ("tuple", "list")):
                return self._record(left.args[0], right, relax="sequence")  # type: ignore[attr-defined]
        if isinstance(op, ast.Lt | ast.LtE) and self._wraps(left, ("abs", "fabs"), difference=True) and isinstance(right, ast.Constant) \
                and isinstance(right.value, int | float):
            difference = left.args[0]  # type: ignore[attr-defined]
            sides = (difference.left, difference.right)
            claim, other = sides if self._is_claim(sides[0]) else sides[::-1]
            return None if self._mentions(other) else self._record(claim, other, tolerance=float(right.value))
        return None

    def _record(self, claim: ast.expr, expected: ast.expr, **extra: str | float) -> ast.stmt:
        settings = ast.Dict([ast.Constant(k) for k in extra], [ast.Constant(v) for v in extra.values()])
        return self._note([self._arguments(claim), expected, settings])

    def _checked(self, test: ast.expr) -> ast.stmt:
        """An assert of any other form, where it looks at exactly one claim and outside any loop of its own."""
        calls = [n for n in ast.walk(test) if isinstance(n, ast.Call) and self._is_call(n)]
        names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and n.id in self.claims}
        if len(calls) + len(names) != 1:
            raise BadTask(f"an assert about {len(calls) + len(names)} claims at line {test.lineno}")
        looping = [n for n in ast.walk(test) if isinstance(n, _INSIDE)]
        if calls and any(n is calls[0] for inside in looping for n in ast.walk(inside)):
            raise BadTask(f"the candidate is called in a loop inside an assert at line {test.lineno}")
        claim: ast.expr = calls[0] if calls else ast.Name(names.pop(), ast.Load())
        arguments = self._arguments(claim)
        expression = ast.unparse(_Replace(claim).visit(test))
        bound = {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        bound |= {a.arg for n in looping if isinstance(n, ast.Lambda) for a in ast.walk(n.args) if isinstance(a, ast.arg)}
        loaded = {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - bound
        if self.candidate in loaded or loaded & self.inner:
            raise BadTask(f"an assert that uses the candidate or an inner function as a value at line {test.lineno}")
        site = Site(expression, tuple(sorted(loaded & self.locals)))
        if site not in self.sites:
            self.sites.append(site)
        known = ast.Dict([ast.Constant(n) for n in site.names], [ast.Name(n, ast.Load()) for n in site.names])
        return self._note([arguments, ast.Constant(self.sites.index(site)), known, ast.Constant("check")])

    def _note(self, row: list[ast.expr]) -> ast.stmt:
        return ast.Expr(ast.Call(ast.Name("__record__", ast.Load()), row, []))

    def _arguments(self, claim: ast.expr) -> ast.expr:
        if isinstance(claim, ast.Name):
            return ast.Subscript(ast.Name("__called__", ast.Load()), ast.Constant(claim.id), ast.Load())
        assert isinstance(claim, ast.Call)
        self._plain(claim)
        return ast.Tuple(claim.args, ast.Load())

    def _plain(self, call: ast.Call) -> None:
        if call.keywords or any(map(self._mentions, call.args)):
            raise BadTask("the candidate is called by keyword, or for its own input")

    def _is_claim(self, node: ast.AST) -> bool:
        return self._is_call(node) or (isinstance(node, ast.Name) and node.id in self.claims)

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
            return name in names and (self._is_claim(inner.left) or self._is_claim(inner.right))
        return name in names and self._is_claim(inner)

    def _mentions(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and (n.id == self.candidate or n.id in self.claims) for n in ast.walk(node))


class _Replace(ast.NodeTransformer):
    """`__value__` in the place of a claim."""

    def __init__(self, claim: ast.expr) -> None:
        self.claim = claim

    def visit(self, node: ast.AST) -> ast.AST:
        same = node is self.claim or (isinstance(self.claim, ast.Name) and isinstance(node, ast.Name) and node.id == self.claim.id)
        return ast.copy_location(ast.Name(VALUE, ast.Load()), node) if same else super().visit(node)
