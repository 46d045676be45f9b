"""Every draw is a function of its keys; the generator is the published one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core import seeding

NAMES = st.lists(st.text(max_size=5) | st.integers(-5, 300) | st.binary(max_size=5), max_size=4)

KNOWN = [  # (counter, key, words) of Philox4x32-10, from Random123's known-answer tests
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> np.ndarray:
    return np.array([[int(w, 16)] for w in text.split()], dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    assert (seeding.philox(words(counter), words(key)) == words(expected)).all()


@given(NAMES, NAMES)
def test_two_names_share_a_key_only_when_they_are_the_same_name(one: list[str | int | bytes], other: list[str | int | bytes]) -> None:
    same = [(type(n), n) for n in one] == [(type(n), n) for n in other]
    assert (seeding.key(*one) == seeding.key(*other)) == same


def test_splitting_a_name_makes_another_name() -> None:
    names: list[tuple[str | int | bytes, ...]] = [("a", "b"), ("ab",), ("ab", ""), ("a", b"b"), (1,), ("1",)]
    assert len({seeding.key(*name) for name in names}) == len(names)


def test_a_key_fits_a_signed_64_bit_integer() -> None:
    assert all(0 <= seeding.key("x", i) < 2**63 for i in range(200))


def test_a_row_of_uniform_depends_on_its_own_counters_alone() -> None:
    seed = np.array([seeding.key("s", i) for i in range(50)])
    step, byte = np.arange(50), np.arange(50)[::-1].copy()
    together = seeding.uniform(seed, step, byte)
    alone = np.array([seeding.uniform(seed[i : i + 1], step[i : i + 1], byte[i : i + 1])[0] for i in range(50)])
    assert (together == alone).all()
    order = np.random.default_rng(0).permutation(50)
    assert (seeding.uniform(seed[order], step[order], byte[order]) == together[order]).all()


def test_uniform_is_uniform() -> None:
    n = 200_000
    u = seeding.uniform(np.full(n, seeding.key("u")), np.arange(n), np.zeros(n, dtype=np.int64))
    assert u.min() >= 0 and u.max() < 1
    counts = np.bincount((u * 64).astype(int), minlength=64)
    chi2 = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert chi2 < 120  # 63 degrees of freedom: p < 2e-5
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01


def test_named_generators_are_their_own_streams() -> None:
    assert (seeding.generator("a", 1).random(5) == seeding.generator("a", 1).random(5)).all()
    assert (seeding.generator("a", 1).random(5) != seeding.generator("a", 2).random(5)).all()
