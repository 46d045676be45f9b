"""Hidden tests of a repository, taken apart: what may enter the jail (code that computes a value), what may not (the value expected).

A test is a `test_*` function, or a method of a class, of a trusted file. Each of its assertions becomes a *site*: in the jail the site
claims a value, here stands what the value must be. `assert f(x) == 3` claims f(x), and 3 stays here. Constants the test names first, loops
over literal rows and parametrized rows are written out (repo_constants.py), so that their values stay here too. What has no expected
value to keep back (`assert f(x)`, `assertIn`, an expected exception) claims a truth value or names, and is *weak*: a program that claims
anything could guess it. A FAIL_TO_PASS test without a strong site is refused, by name.
A site outside every branch and loop must be claimed, once; the others may be.
Not here: running the tests (repo_driver.py, in the jail), patches and verdicts (repo.py).
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dormouse_core.sandbox import wire
from dormouse_core.verifiers.attempt import BadTask
from dormouse_core.verifiers.compare import Rule, Typing, holds_nan
from dormouse_core.verifiers.repo_constants import MAX_ROWS, constants_of, is_literal, literal, substituted, without_constants

CLAIM, RAISED = "__claim__", "__raised__"
"""Names the driver provides: claim(site, value), and the name of what a block raises."""
_WEAK_METHODS = {"assertIn": ast.In, "assertNotIn": ast.NotIn, "assertIs": ast.Is, "assertIsNot": ast.IsNot, "assertLess": ast.Lt,
                 "assertLessEqual": ast.LtE, "assertGreater": ast.Gt, "assertGreaterEqual": ast.GtE, "assertNotEqual": ast.NotEq}


@dataclass(frozen=True, slots=True)
class Site:
    """One assertion: what its claim must be, and whether it must be made."""

    tree: wire.Tree
    rule: Rule
    required: bool
    strong: bool
    raises: bool = False
    """The claim is a list of names of what was raised, and must hold the expected one."""


@dataclass(slots=True)
class HiddenTest:
    """One test as the jail runs it. `name` is its id, `file` and `qualname` where the driver finds it."""

    name: str
    file: str
    qualname: str
    sites: list[Site] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HiddenFile:
    """A trusted test file: its tests, and its source without a value any site expects."""

    source: str
    tests: dict[str, HiddenTest]


def take_apart(path: str, source: str) -> HiddenFile:
    """Raises BadTask where the file is no Python, or a test in it has a form this verifier cannot take apart."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadTask(f"the hidden test file {path} is no Python: {type(error).__name__}") from error
    tests: dict[str, HiddenTest] = {}
    constants = constants_of(module.body)
    body: list[ast.stmt] = []
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            body += _written_out(path, node, "", constants, tests)
        elif isinstance(node, ast.ClassDef):
            inner: list[ast.stmt] = []
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name.startswith("test"):
                    inner += _written_out(path, each, f"{node.name}.", constants, tests)
                else:
                    inner.append(each)
            node.body = inner or [ast.Pass()]
            body.append(node)
        elif not _is_import(node, "pytest"):
            body.append(node)
    module.body = without_constants(body, constants)
    _without_docstrings(module)
    return HiddenFile(ast.unparse(ast.fix_missing_locations(module)), tests)


def _written_out(path: str, node: ast.FunctionDef, owner: str, constants: dict[str, ast.expr],
                 tests: dict[str, HiddenTest]) -> Iterator[ast.FunctionDef]:
    """The test, once a parametrized row, with every site claimed."""
    rows = _rows(node, path)
    for number, (suffix, values) in enumerate(rows):
        one = copy.deepcopy(node)
        one.decorator_list = []
        one.name = node.name if suffix == "" else f"{node.name}__{number}"
        given = {a.arg for a in one.args.args} - ({"self"} if owner else set())
        if given != set(values):
            raise BadTask(f"{path}::{node.name} needs the fixture(s) {', '.join(sorted(given - set(values)))}: this verifier has none")
        one.args.args = [a for a in one.args.args if a.arg == "self" and owner]
        test = HiddenTest(f"{path}::{owner.replace('.', '::')}{node.name}{suffix}", path, f"{owner}{one.name}")
        one.body = _Sites(test).block(substituted(one.body, {**constants, **values}), required=True) or [ast.Pass()]
        tests[test.name] = test
        yield one


def _rows(node: ast.FunctionDef, path: str) -> list[tuple[str, dict[str, ast.expr]]]:
    """(suffix of the id, values by name) of every parametrized row; one row without values where the test has none."""
    if not node.decorator_list:
        return [("", {})]
    marks = [d for d in node.decorator_list if isinstance(d, ast.Call) and ast.unparse(d.func) == "pytest.mark.parametrize"]
    if len(marks) != len(node.decorator_list) or len(marks) != 1 or len(marks[0].args) != 2:
        raise BadTask(f"{path}::{node.name} has a decorator this verifier does not know")
    try:
        names = ast.literal_eval(marks[0].args[0])
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        rows: list[tuple[str, dict[str, ast.expr]]] = []
        for row in ast.literal_eval(marks[0].args[1]):
            values = [row] if len(names) == 1 else list(row)
            suffix = "-".join(str(v) if isinstance(v, str | int | float | bool | None) else f"{n}{len(rows)}"
                              for n, v in zip(names, values, strict=True))
            rows.append((f"[{suffix}]", {n: literal(v) for n, v in zip(names, values, strict=True)}))
    except (ValueError, TypeError, SyntaxError) as error:
        raise BadTask(f"{path}::{node.name}: its parametrized rows are no literals") from error
    if not rows or len(rows) > MAX_ROWS:
        raise BadTask(f"{path}::{node.name} has {len(rows)} parametrized rows")
    return rows


def _is_import(node: ast.stmt, name: str) -> bool:
    return (isinstance(node, ast.Import) and any(a.name == name for a in node.names)) \
        or (isinstance(node, ast.ImportFrom) and node.module == name)


def _without_docstrings(module: ast.Module) -> None:
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body and isinstance(node.body[0], ast.Expr) \
                and isinstance(node.body[0].value, ast.Constant):
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])


class _Sites:
    """Rewrites the assertions of one test into claims."""

    def __init__(self, test: HiddenTest) -> None:
        self.test = test

    def block(self, body: list[ast.stmt], required: bool) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for node in body:
            out += self.statement(node, required)
        return out

    def statement(self, node: ast.stmt, required: bool) -> list[ast.stmt]:
        if isinstance(node, ast.Assert):
            return self.check(node.test, required)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and self._method(node.value.func):
            return self.method(node.value, required)
        if isinstance(node, ast.With) and len(node.items) == 1 and (name := self._raises(node.items[0].context_expr)):
            return [self.raised(node, name, required)]
        if isinstance(node, ast.With):
            node.body = self.block(node.body, required)
        elif isinstance(node, ast.If | ast.For | ast.While | ast.Try):
            for part in ("body", "orelse", "finalbody"):
                if getattr(node, part, None):
                    setattr(node, part, self.block(getattr(node, part), False))
            for handler in getattr(node, "handlers", ()):
                handler.body = self.block(handler.body, False)
        return [node]

    def check(self, test: ast.expr, required: bool) -> list[ast.stmt]:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return [s for value in test.values for s in self.check(value, required)]
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            return self.equal(test.left, test.comparators[0], required)
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is) and is_literal(test.comparators[0]):
            return self.claim(test.left, ast.literal_eval(test.comparators[0]), required, Rule(Typing.STRICT))
        return self.truth(test, required)

    def equal(self, left: ast.expr, right: ast.expr, required: bool, tolerance: float = 0.0) -> list[ast.stmt]:
        if is_literal(left) and not is_literal(right):
            left, right = right, left
        if isinstance(right, ast.Call) and ast.unparse(right.func) == "pytest.approx" and len(right.args) == 1 and not right.keywords \
                and is_literal(right.args[0]):
            value = ast.literal_eval(right.args[0])
            if isinstance(value, int | float):
                return self.claim(left, float(value), required, Rule(Typing.PYTHON, max(1e-6 * abs(value), 1e-12)))
        if is_literal(right) and not is_literal(left):
            return self.claim(left, ast.literal_eval(right), required, Rule(Typing.PYTHON, tolerance))
        return self.truth(ast.Compare(left, [ast.Eq()], [right]), required)

    def truth(self, test: ast.expr, required: bool) -> list[ast.stmt]:
        expected = True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, expected = test.operand, not expected
        return self.claim(ast.Call(ast.Name("bool", ast.Load()), [test], []), expected, required, Rule(Typing.STRICT))

    def claim(self, value: ast.expr, expected: Any, required: bool, rule: Rule) -> list[ast.stmt]:
        return [ast.Expr(ast.Call(ast.Name(CLAIM, ast.Load()), [ast.Constant(self.site(expected, required, rule)), value], []))]

    def site(self, expected: Any, required: bool, rule: Rule, raises: bool = False) -> int:
        try:
            encoded = wire.encode(expected)
        except (wire.WireError, RecursionError) as error:
            raise BadTask(f"{self.test.name} expects a value that cannot be compared: {error}") from error
        tree = wire.decode_tree(encoded)
        if holds_nan(tree):
            raise BadTask(f"{self.test.name} expects NaN, which equals nothing")
        strong = not raises and not (expected is None or isinstance(expected, bool))
        self.test.sites.append(Site(tree, rule, required, strong, raises))
        return len(self.test.sites) - 1

    def method(self, call: ast.Call, required: bool) -> list[ast.stmt]:
        name = self._method(call.func)
        args = call.args
        if name in ("assertEqual", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual") and len(args) >= 2:
            return self.equal(args[0], args[1], required)
        if name == "assertAlmostEqual" and len(args) >= 2:
            places = next((k.value for k in call.keywords if k.arg == "places"), args[2] if len(args) > 2 else ast.Constant(7))
            return self.equal(args[0], args[1], required, 0.5 * 10.0 ** -int(ast.literal_eval(places)))
        if name in ("assertTrue", "assertFalse") and args:
            return self.truth(args[0] if name == "assertTrue" else ast.UnaryOp(ast.Not(), args[0]), required)
        if name in ("assertIsNone", "assertIsNotNone") and args:
            test = ast.Compare(args[0], [ast.Is() if name == "assertIsNone" else ast.IsNot()], [ast.Constant(None)])
            return self.truth(test, required)
        if name in _WEAK_METHODS and len(args) >= 2:
            return self.truth(ast.Compare(args[0], [_WEAK_METHODS[name]()], [args[1]]), required)
        raise BadTask(f"{self.test.name} uses {name}, which this verifier cannot take apart")

    def raised(self, node: ast.With, name: str, required: bool) -> ast.stmt:
        """`with raises(E): body` -> `with __raised__(site): body`: the name of what was raised is claimed, E stays here."""
        site = self.site(name, required, Rule(), raises=True)
        call = ast.Call(ast.Name(RAISED, ast.Load()), [ast.Constant(site)], [])
        return ast.With([ast.withitem(call, node.items[0].optional_vars)], self.block(node.body, False))

    def _method(self, func: ast.expr) -> str:
        if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"):
            return ""
        return func.attr if func.attr.startswith("assert") else ""

    def _raises(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("pytest.raises", "self.assertRaises"):
            return ""
        if len(node.args) != 1 or node.keywords or not isinstance(node.args[0], ast.Name | ast.Attribute):
            raise BadTask(f"{self.test.name} expects an exception in a form this verifier cannot take apart")
        return ast.unparse(node.args[0]).rpartition(".")[2]
