"""Closed forms against an independent library: every interval holds the number, and every exact value is the number."""

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.verifiers.expressions import Comparison, NoValue, compare, evaluate
from dormouse_core.verifiers.forms import Node, NoForm, parse, render

mpmath.mp.dps = 90
NUMBERS = st.fractions(min_value=-20, max_value=20, max_denominator=30).map(lambda v: ("number", v))
LEAVES = NUMBERS | st.just(("pi",)) | st.just(("e",))
SMALL = st.integers(-4, 5).map(lambda n: ("number", Fraction(n)))
TREES = st.recursive(LEAVES, lambda inner: st.one_of(
    st.tuples(st.sampled_from("+-*/"), inner, inner), st.tuples(st.just("neg"), inner),
    st.tuples(st.just("root"), st.just(("number", Fraction(2))), inner), st.tuples(st.just("^"), inner, SMALL)), max_leaves=7)


def number(tree: Node) -> mpmath.mpf:
    """The oracle: plain mpmath at 90 digits. Raises ValueError where there is no real value."""
    match tree[0]:
        case "number":
            return mpmath.mpf(tree[1].numerator) / tree[1].denominator
        case "pi":
            return +mpmath.pi
        case "e":
            return +mpmath.e
        case "neg":
            return -number(tree[1])
        case "root":
            inside = number(tree[2])
            if inside < 0:
                raise ValueError
            return mpmath.sqrt(inside)
    a, b = number(tree[1]), number(tree[2])
    if (tree[0] == "/" and b == 0) or (tree[0] == "^" and a == 0 and b < 0):
        raise ValueError
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b, "^": lambda: a**b}[tree[0]]()


@given(TREES)
@settings(max_examples=250, deadline=None)
def test_every_interval_holds_the_number_and_every_exact_value_is_it(tree: Node) -> None:
    try:
        value = evaluate(tree)
    except NoValue:
        return  # the oracle cannot tell an exact zero from a small number
    try:
        true = number(tree)
    except ValueError:
        return
    room = abs(true) * mpmath.mpf("1e-80") + mpmath.mpf("1e-80")
    low, high = (mpmath.mpf(str(x).replace("Infinity", "inf")) for x in (value.low, value.high))
    assert low - room <= true <= high + room
    if value.exact is not None:
        exact = sum((mpmath.mpf(c.numerator) / c.denominator * mpmath.sqrt(n) * mpmath.pi**k for (n, k), c in value.exact.items()),
                    mpmath.mpf(0))
        assert abs(exact - true) <= max(abs(true), 1) * mpmath.mpf("1e-60")


@given(TREES)
@settings(max_examples=150, deadline=None)
def test_a_form_written_back_and_read_again_is_the_same_number(tree: Node) -> None:
    try:
        evaluate(tree)
    except NoValue:
        return
    assert compare(render(tree), render(parse(render(tree)))) is not Comparison.DIFFERENT


@given(st.text("0123456789+-*/^(){}[].,e \\sqrtfacpi√π", max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_or_refused_and_has_a_value_or_none(text: str) -> None:
    try:
        evaluate(parse(text))
    except (NoForm, NoValue):
        return


@pytest.mark.parametrize("text", ["1/2sqrt(3)", "6/2(1+2)", "2\\frac{1}{2}", "\\frac{1}", "sqrt()", "2^", "(1", "1)", "()", "x", "1 2"])
def test_what_reads_in_two_ways_or_none_is_refused(text: str) -> None:
    with pytest.raises(NoForm):
        parse(text)
