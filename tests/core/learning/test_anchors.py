"""The anchors are what counting scores, to the last bit of a plain recount."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.learning import anchors


def by_hand(train: bytes, rows: list[bytes], order: int) -> float:
    """Witten-Bell by dictionaries: bits per byte of an n-gram of `order` on bytes 1.. of each row."""
    counts = {n: Counter(train[i : i + n + 1] for i in range(len(train) - n)) for n in range(order)}
    bits = []
    for row in rows:
        for i in range(1, len(row)):
            p = 1 / 256
            for n in range(min(order, i + 1)):
                context = row[i - n : i]
                seen = {g[-1:]: c for g, c in counts[n].items() if g[:-1] == context}
                if seen:
                    p = (seen.get(row[i : i + 1], 0) + len(seen) * p) / (sum(seen.values()) + len(seen))
            bits.append(-np.log2(p))
    return float(np.mean(bits))


text = st.lists(st.sampled_from(b"abc\xff"), min_size=1, max_size=60).map(bytes)


@settings(max_examples=60, deadline=None)
@given(text, st.lists(st.lists(st.sampled_from(b"abcd\xff"), min_size=9, max_size=9).map(bytes), min_size=1, max_size=3))
def test_anchors_equal_a_plain_recount(train: bytes, rows: list[bytes]) -> None:
    window_WL = np.array([list(r) for r in rows], dtype=np.int64)
    scored = anchors.score(np.frombuffer(train, dtype=np.uint8), window_WL)
    assert scored.uniform == 8.0
    assert scored.unigram == pytest.approx(by_hand(train, rows, 1), abs=1e-9)
    assert scored.five_gram == pytest.approx(by_hand(train, rows, 5), abs=1e-9)


def test_text_that_repeats_costs_a_five_gram_almost_nothing_and_a_unigram_its_entropy() -> None:
    train = np.frombuffer(b"abcd" * 5000, dtype=np.uint8)
    scored = anchors.score(train, train[: 400].reshape(4, 100).astype(np.int64))
    assert scored.five_gram < 0.1
    assert scored.unigram == pytest.approx(2.0, abs=0.01)


def test_every_distribution_sums_to_one() -> None:
    train = np.frombuffer(b"the cat sat on the mat", dtype=np.uint8)
    rows = np.array([[*b"the ", b] for b in range(256)], dtype=np.int64)
    total = 0.0
    for row in rows:
        whole = anchors.score(train, row[None]).five_gram * 4
        head = anchors.score(train, row[None, :4]).five_gram * 3
        total += 2 ** -(whole - head)
    assert total == pytest.approx(1.0, abs=1e-9)
