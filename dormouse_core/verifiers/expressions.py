"""What a closed form is worth: exactly, where that is decidable, and always between two bounds.

A value is exact as a sum of c * sqrt(n) * pi**k (c rational, n squarefree). Such sums are equal exactly when their terms are: roots of
distinct squarefree integers are independent over the rationals, and pi is transcendental. Every value also has an interval that holds it,
and disjoint intervals prove two values different; what is neither is unknown. No value grows beyond MAX_BITS or sixty digits, so the cost
is bounded by the length of the text.
"""

from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, DivisionByZero, InvalidOperation
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import NamedTuple

from dormouse_core.verifiers.forms import Node, parse

MAX_BITS = 4096
"""Bits of a numerator or denominator past which a value is kept as an interval only."""
MAX_TERMS = 64
_SQUAREFREE_UP_TO = 10**12
_DIGITS = 60
_SLACK = Decimal("1e-50")  # relative room for roots and powers, whose last digits are not rounded the way asked
_DOWN = Context(prec=_DIGITS, rounding=ROUND_FLOOR, Emax=999999, Emin=-999999, traps=[InvalidOperation, DivisionByZero])
_UP = Context(prec=_DIGITS, rounding=ROUND_CEILING, Emax=999999, Emin=-999999, traps=[InvalidOperation, DivisionByZero])
# Every operation names its context: a bare `1 + x` or `-x` would round to the 28 digits of the thread's own.
_BELOW, _ABOVE = _DOWN.subtract(Decimal(1), _SLACK), _UP.add(Decimal(1), _SLACK)
_PI = "3.14159265358979323846264338327950288419716939937510582097494"
_EULER = "2.71828182845904523536028747135266249775724709369995957496696"
_INFINITY = Decimal("Infinity")

Exact = dict[tuple[int, int], Fraction]
"""{(n, k): c}: the sum of c * sqrt(n) * pi**k; empty is 0."""


class Comparison(StrEnum):
    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


class Value(NamedTuple):
    """A real number: exactly, where known, and always between two bounds."""

    exact: Exact | None
    low: Decimal
    high: Decimal


class NoValue(ArithmeticError):
    """A form without a real value: a division by zero, a root of a negative number."""


def compare(claim: str, want: str) -> Comparison:
    """Raises forms.NoForm where `claim` is outside the grammar. `want` is trusted to be a form with a value."""
    tree = parse(claim)
    try:
        ours, theirs = evaluate(tree), evaluate(parse(want))
    except NoValue:
        return Comparison.DIFFERENT
    if ours.exact is not None and theirs.exact is not None:
        return Comparison.EQUAL if ours.exact == theirs.exact else Comparison.DIFFERENT
    return Comparison.DIFFERENT if ours.high < theirs.low or theirs.high < ours.low else Comparison.UNKNOWN


def evaluate(tree: Node) -> Value:
    """Raises NoValue where the form has no real value."""
    match tree[0]:
        case "number":
            return _rational(tree[1])
        case "pi":
            return Value({(1, 1): Fraction(1)}, Decimal(_PI), _DOWN.next_plus(Decimal(_PI)))
        case "e":
            return Value(None, Decimal(_EULER), _DOWN.next_plus(Decimal(_EULER)))
        case "neg":
            return _product(_rational(Fraction(-1)), evaluate(tree[1]))
        case "+":
            return _sum(evaluate(tree[1]), evaluate(tree[2]))
        case "-":
            return _sum(evaluate(tree[1]), _product(_rational(Fraction(-1)), evaluate(tree[2])))
        case "*":
            return _product(evaluate(tree[1]), evaluate(tree[2]))
        case "/":
            return _product(evaluate(tree[1]), _inverse(evaluate(tree[2])))
        case "root":
            degree = _integer(evaluate(tree[1]))
            if degree is None or not 1 <= degree <= 100:
                raise NoValue("no whole degree of a root")
            return _root(evaluate(tree[2]), degree)
    return _power(evaluate(tree[1]), evaluate(tree[2]))


def _rational(value: Fraction) -> Value:
    num, den = Decimal(value.numerator), Decimal(value.denominator)
    return Value({(1, 0): value} if value else {}, _DOWN.divide(num, den), _UP.divide(num, den))


def _fraction(value: Value) -> Fraction | None:
    """The value where it is rational."""
    if value.exact is None or set(value.exact) - {(1, 0)}:
        return None
    return value.exact.get((1, 0), Fraction(0))


def _integer(value: Value) -> int | None:
    found = _fraction(value)
    return int(found) if found is not None and found.denominator == 1 else None


def _kept(exact: Exact) -> Exact | None:
    """Without zero terms; None where it grew too large."""
    exact = {key: c for key, c in exact.items() if c}
    large = len(exact) > MAX_TERMS or any(max(c.numerator.bit_length(), c.denominator.bit_length()) > MAX_BITS for c in exact.values())
    return None if large else exact


def _sum(a: Value, b: Value) -> Value:
    exact = None
    if a.exact is not None and b.exact is not None:
        exact = _kept({key: a.exact.get(key, Fraction(0)) + b.exact.get(key, Fraction(0)) for key in {*a.exact, *b.exact}})
    return Value(exact, *_bounded(lambda: (_DOWN.add(a.low, b.low), _UP.add(a.high, b.high))))


def _product(a: Value, b: Value) -> Value:
    def corners() -> tuple[Decimal, Decimal]:
        pairs = [(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return min(_DOWN.multiply(x, y) for x, y in pairs), max(_UP.multiply(x, y) for x, y in pairs)

    exact = None
    if a.exact is not None and b.exact is not None and len(a.exact) * len(b.exact) <= MAX_TERMS**2:
        total: Exact = {}
        for (n, k), c in a.exact.items():
            for (m, j), d in b.exact.items():
                square, rest = _squarefree(n * m)
                if not rest:
                    return Value(None, *_bounded(corners))
                key = (rest, k + j)
                total[key] = total.get(key, Fraction(0)) + c * d * square
        exact = _kept(total)
    return Value(exact, *_bounded(corners))


def _inverse(a: Value) -> Value:
    if a.exact == {}:
        raise NoValue("division by zero")
    exact = None
    if a.exact is not None and len(a.exact) == 1:
        ((n, k), c), = a.exact.items()
        exact = _kept({(n, -k): 1 / (c * n)})
    elif a.exact is not None and len(a.exact) == 2 and all(k == 0 for _, k in a.exact):
        (one, c), (other, d) = a.exact.items()  # 1/(x+y) = (x-y)/(x^2-y^2)
        norm = c * c * one[0] - d * d * other[0]
        exact = _kept({one: c / norm, other: -d / norm})
    if a.low <= 0 <= a.high:
        return Value(exact, -_INFINITY, _INFINITY)
    return Value(exact, *_bounded(lambda: (_DOWN.divide(Decimal(1), a.high), _UP.divide(Decimal(1), a.low))))


def _root(a: Value, degree: int) -> Value:
    """The real root: of the sign of `a` for odd degrees, the positive one for even."""
    if a.high < 0:
        if degree % 2 == 0:
            raise NoValue("an even root of a negative number")
        return _product(_rational(Fraction(-1)), _root(_product(_rational(Fraction(-1)), a), degree))
    value, exact = _fraction(a), None
    if value is not None and value >= 0:
        over, under = _whole_root(value.numerator, degree), _whole_root(value.denominator, degree)
        if over is not None and under is not None:
            return _rational(Fraction(over, under))
        if degree == 2:
            square, rest = _squarefree(value.numerator * value.denominator)
            exact = _kept({(rest, 0): Fraction(square, value.denominator)}) if rest else None
    return Value(exact, *_bounded(lambda: (_widened(a.low, degree, -1), _widened(a.high, degree, 1))))


def _widened(x: Decimal, degree: int, side: int) -> Decimal:
    if x <= 0:
        return Decimal(0)
    root = _DOWN.sqrt(x) if degree == 2 else _DOWN.power(x, _DOWN.divide(Decimal(1), Decimal(degree)))
    return _DOWN.multiply(root, _BELOW) if side < 0 else _UP.multiply(root, _ABOVE)


def _power(a: Value, b: Value) -> Value:
    whole, share = _integer(b), _fraction(b)
    if whole is not None:
        return _whole_power(a, whole)
    if share is not None and share.denominator <= 100 and abs(share.numerator) <= 100:
        return _root(_whole_power(a, share.numerator), share.denominator)
    if a.high < 0:
        raise NoValue("a power of a negative number")
    return Value(None, *_power_bounds(a, b))


def _whole_power(a: Value, n: int) -> Value:
    if n < 0:
        return _whole_power(_inverse(a), -n)
    if n == 0:
        return _rational(Fraction(1))
    exact: Exact | None = None
    if a.exact is not None and _size(a.exact) * n <= MAX_BITS and (len(a.exact) <= 1 or n <= 16):
        value = Value({(1, 0): Fraction(1)}, Decimal(1), Decimal(1))
        for _ in range(n):
            value = _product(value, a)
        exact = value.exact
    count = Value(None, *_rational(Fraction(n))[1:])
    if a.low > 0:
        return Value(exact, *_power_bounds(a, count))
    if a.high < 0:
        flipped = Value(None, *_power_bounds(Value(None, a.high.copy_negate(), a.low.copy_negate()), count))
        bounds = flipped[1:] if n % 2 == 0 else (flipped.high.copy_negate(), flipped.low.copy_negate())
        return Value(exact, *bounds)
    if a.exact == {}:
        return _rational(Fraction(0))
    return Value(exact, -_INFINITY, _INFINITY)


def _power_bounds(a: Value, b: Value) -> tuple[Decimal, Decimal]:
    """Bounds of a**b for positive a: at the corners, x**y being monotone in each."""
    def corners() -> tuple[Decimal, Decimal]:
        found = [_DOWN.power(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return _DOWN.multiply(min(found), _BELOW), _UP.multiply(_UP.next_plus(max(found)), _ABOVE)

    return _bounded(corners) if a.low > 0 else (-_INFINITY, _INFINITY)


def _bounded(make: Callable[[], tuple[Decimal, Decimal]]) -> tuple[Decimal, Decimal]:
    """What `make` encloses, or everything where it has no bounds (infinity minus infinity, zero times infinity)."""
    try:
        low, high = make()
    except (InvalidOperation, DivisionByZero):
        return -_INFINITY, _INFINITY
    return low, high


def _size(exact: Exact) -> int:
    return max((max(c.numerator.bit_length(), c.denominator.bit_length()) + n.bit_length() for (n, _), c in exact.items()), default=1)


def _whole_root(n: int, degree: int) -> int | None:
    if degree == 2:
        root = isqrt(n)
        return root if root * root == n else None
    if n.bit_length() > 900:
        return None
    near = round(float(n) ** (1 / degree)) if n.bit_length() < 1000 else 0
    return next((r for r in (near - 1, near, near + 1) if r >= 0 and r**degree == n), None)


@lru_cache(maxsize=4096)
def _squarefree(n: int) -> tuple[int, int]:
    """(s, r) with n = s*s*r and r squarefree; (1, 0) where n is too large to tell. Every factor up to the cube root is taken out; what
    is left has at most two."""
    if n > _SQUAREFREE_UP_TO:
        root = isqrt(n)
        return (root, 1) if root * root == n else (1, 0)
    square, rest, p = 1, 1, 2
    while p * p * p <= n:
        while n % (p * p) == 0:
            n, square = n // (p * p), square * p
        if n % p == 0:
            n, rest = n // p, rest * p
        p += 1
    root = isqrt(n)
    return (square * root, rest) if root * root == n else (square, rest * n)
