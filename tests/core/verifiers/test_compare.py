"""Comparison of claimed and expected values: types decide, NaN equals nothing, options loosen only what they name."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dormouse_core.sandbox import wire
from dormouse_core.verifiers.compare import Relax, Rule, Typing, equal, holds_nan, truth

STRICT, NUMERIC, PYTHON = Rule(), Rule(Typing.NUMERIC), Rule(Typing.PYTHON)


def tree(value: object) -> wire.Tree:
    return wire.decode_tree(wire.encode(value))


def same(a: object, b: object, rule: Rule) -> bool:
    return equal(tree(a), tree(b), rule)


def test_strict_keeps_every_type_apart() -> None:
    distinct = [None, True, 1, 1.0, 1 + 0j, "1", b"1", (1,), [1], {1}, {1: 1}, False, 0, 0.0, "", b"", (), [], set(), {}]
    for i, a in enumerate(distinct):
        for j, b in enumerate(distinct):
            assert same(a, b, STRICT) == (i == j), (a, b)


def test_zeros_of_either_sign_are_one_value_also_inside_sets_and_keys() -> None:
    for rule in (STRICT, NUMERIC, PYTHON):
        assert same(-0.0, 0.0, rule) and same({-0.0}, {0.0}, rule) and same({-0.0: 1}, {0.0: 1}, rule)
        assert same({complex(-0.0, 1)}, {complex(0.0, 1)}, rule)


def test_numeric_joins_int_and_float_and_leaves_bool_out() -> None:
    assert same(1, 1.0, NUMERIC) and same([2.0], [2], NUMERIC) and same({1.0}, {1}, NUMERIC) and same({1.0: 2}, {1: 2.0}, NUMERIC)
    assert not same(True, 1, NUMERIC) and not same(1 + 0j, 1, NUMERIC) and not same((1,), [1], NUMERIC)


numbers = st.booleans() | st.integers(-4, 4) | st.floats(-2, 2,
                                                         allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, 2.0, 1e300, 10**400, 1j,
                                                                                             1 + 0j])
hashable = st.recursive(numbers | st.sampled_from(["", "a", b"a", None]), lambda x: st.tuples(x, x), max_leaves=3)
values = st.recursive(hashable,
                      lambda x: st.lists(x, max_size=3) | st.sets(hashable, max_size=3) | st.dictionaries(hashable, x, max_size=3),
                      max_leaves=6)


@given(values, values)
def test_python_typing_says_what_python_says(a: object, b: object) -> None:
    assert same(a, b, PYTHON) == (a == b)


@given(values)
def test_every_value_equals_itself_under_every_typing(a: object) -> None:
    assert all(same(a, a, rule) for rule in (STRICT, NUMERIC, PYTHON))


def test_nan_equals_nothing() -> None:
    for rule in (STRICT, NUMERIC, PYTHON, Rule(tolerance=1.0)):
        assert not same(math.nan, 1.0, rule) and not same([math.nan], [1.0], rule) and not same({math.nan}, {1.0}, rule)
        assert not same(math.nan, math.nan, rule)
    assert holds_nan(tree([{1: (math.nan,)}])) and holds_nan(tree({math.nan})) and holds_nan(tree(complex(0, math.nan)))
    assert not holds_nan(tree([math.inf, 1, "nan"]))


def test_tolerance_acts_on_floats_alone() -> None:
    near = Rule(tolerance=1e-3)
    assert same(0.1 + 0.2, 0.3, near) and same([1.0005], [1.0], near) and same({"a": 1.0005}, {"a": 1.0}, near)
    assert not same(1.002, 1.0, near) and not same(1, 1.0, near) and not same(1001, 1000,
                                                                              Rule(Typing.NUMERIC, 2.0)) and not same({1.0005}, {1.0}, near)
    assert not same(10**400, 1.0, Rule(Typing.NUMERIC, 1.0)) and not same(math.inf, 1.0, near) and same(math.inf, math.inf, near)


def test_relaxations_reach_the_outermost_value_only() -> None:
    sequence = Rule(relax=Relax.SEQUENCE)
    assert same([1, 2], (1, 2), sequence) and same((1, 2), [1, 2], sequence)
    assert not same([[1]], ([1], 2), sequence) and not same([(1,)], [[1]], sequence) and not same({1}, [1], sequence)
    for value in (None, True, 0, 0.0, "", "a", (), (0,), [], set(), {}, {1: 1}, 0j, 1j, b"", math.nan):
        assert truth(tree(value)) == bool(value)
        assert same(value, bool(value), Rule(relax=Relax.TRUTH))


def test_any_order_moves_the_outermost_elements_and_keeps_their_number_and_type() -> None:
    order = Rule(relax=Relax.ORDER)
    assert same([1, 2, 2], [2, 1, 2], order) and same(((1,), "a"), ("a", (1,)), order) and same([], [], order)
    for wrong in ([1, 2], [1, 1, 2], [1, 2, 2, 2], (1, 2, 2), {1, 2}, [1.0, 2, 2], [True, 2, 2], "122", None):
        assert not same(wrong, [1, 2, 2], order), wrong
    assert not same([[1, 2]], [[2, 1]], order) and not same([math.nan], [0.0], order)
    assert same([1.0, True], [1, 1], Rule(Typing.PYTHON, relax=Relax.ORDER)) and same(3, 3, order) and not same([3], 3, order)


def test_a_forged_set_with_repeats_is_not_the_set() -> None:
    one = wire.encode(1)
    forged = b"S" + (2).to_bytes(4, "little") + one + one
    assert not equal(wire.decode_tree(forged), tree({1, 2}), PYTHON)
    assert not equal(wire.decode_tree(forged), tree({1}), PYTHON)
    twice = b"d" + (2).to_bytes(4, "little") + (one + wire.encode("a")) * 2
    assert not equal(wire.decode_tree(twice), tree({1: "a"}), PYTHON)
