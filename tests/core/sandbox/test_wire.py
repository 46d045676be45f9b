"""The wire format: what goes in comes out, and nothing a hostile writer sends can hurt its reader."""

import contextlib
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.sandbox import wire

numbers = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
scalars = st.none() | numbers | st.text() | st.binary()
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner), max_leaves=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.sets(hashable) | st.dictionaries(hashable, inner), max_leaves=20)


def typed(value: object) -> object:
    """A form in which 1, 1.0 and True differ."""
    if isinstance(value, list | tuple):
        return type(value).__name__, [typed(v) for v in value]
    if isinstance(value, set):
        return "set", sorted(repr(typed(v)) for v in value)
    if isinstance(value, dict):
        return "dict", sorted((repr(typed(k)), repr(typed(v))) for k, v in value.items())
    return type(value).__name__, repr(value)


@given(values)
def test_every_value_of_the_twelve_types_comes_back_with_its_types(value: object) -> None:
    assert typed(wire.decode(wire.encode(value))) == typed(value)
    assert typed(wire.decode(wire.encode(value, in_order=True))) == typed(value)


@given(st.dictionaries(st.integers(), st.integers(), min_size=2))
def test_equal_dicts_have_equal_bytes_and_arguments_keep_their_order(value: dict[int, int]) -> None:
    turned = dict(reversed(value.items()))
    assert wire.encode(value) == wire.encode(turned)
    assert list(wire.decode(wire.encode(turned, in_order=True))) == list(turned)  # type: ignore[call-overload]


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_any_bytes_decode_to_a_tree_or_a_wire_error(data: bytes) -> None:
    with contextlib.suppress(wire.WireError):
        wire.decode_tree(data)


@given(values, st.data())
def test_a_damaged_value_never_raises_anything_else(value: object, data: st.DataObject) -> None:
    good = bytearray(wire.encode(value))
    good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(wire.WireError):
        wire.decode_tree(bytes(good))


def test_values_past_a_limit_are_refused_by_the_writer() -> None:
    deep: list[object] = []
    for _ in range(wire.MAX_DEPTH + 1):
        deep = [deep]
    loop: list[object] = []
    loop.append(loop)
    for value in (deep, loop, "x" * (wire.MAX_BYTES + 1), 1 << (8 * wire.MAX_INT_BYTES), [0] * (wire.MAX_NODES + 1), object(), frozenset()):
        with pytest.raises(wire.WireError):
            wire.encode(value)


def test_subclasses_are_written_by_their_base_whatever_they_say() -> None:
    class Int(int):
        def __index__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class List(list):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter([9])

        def __len__(self) -> int:
            return 1

    class Dict(dict):  # type: ignore[type-arg]
        def items(self):  # type: ignore[no-untyped-def]
            return [(1, 2)]

    class Text(str):
        def encode(self, *_: object) -> bytes:  # type: ignore[override]
            return b"lie"

    assert wire.decode(wire.encode([Int(3), List([1, 2]), Dict({5: 6}), Text("a")])) == [3, [1, 2], {5: 6}, "a"]


def test_a_bomb_of_counts_or_depth_is_refused_at_once() -> None:
    start = time.perf_counter()
    bombs = (
        b"l\xff\xff\xff\xff" + b"N" * 100, b"l\x01\x00\x00\x00" * 5000, b"d\xff\xff\xff\x7f", b"i\xff\xff\xff\xff1",
        b"i\x00\x00\x00\x00", b"s\xff\xff\xff\xffa", b"l\x02\x00\x00\x00" * 60 + b"N")
    for bomb in bombs:
        with pytest.raises(wire.WireError):
            wire.decode_tree(bomb)
    assert time.perf_counter() - start < 0.2


def test_a_reply_of_colliding_keys_costs_its_length() -> None:
    modulus = (1 << 61) - 1
    colliding = b"".join(wire.encode(k * modulus) for k in range(20_000))
    start = time.perf_counter()
    tag, items = wire.decode_tree(b"S" + (20_000).to_bytes(4, "little") + colliding)
    assert (tag, len(items)) == (wire.SET, 20_000)
    assert time.perf_counter() - start < 1.0


def test_nan_and_infinities_travel() -> None:
    assert math.isnan(wire.decode(wire.encode(math.nan)))  # type: ignore[arg-type]
    assert wire.decode(wire.encode([math.inf, -math.inf])) == [math.inf, -math.inf]
