"""Statistics against brute force, scipy and closed forms."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from dormouse_core import seeding
from dormouse_core.evaluation.statistics import mcnemar, pass_at_k, resample, wilson


@pytest.mark.parametrize(("n", "k"), [(4, 1), (4, 2), (5, 4), (8, 8)])
def test_pass_at_k_equals_the_share_of_k_subsets_that_hold_a_pass(n: int, k: int) -> None:
    for c in range(n + 1):
        answers = [True] * c + [False] * (n - c)
        subsets = list(combinations(answers, k))
        brute = sum(any(s) for s in subsets) / len(subsets)
        assert pass_at_k(np.array([n]), np.array([c]), k)[0] == pytest.approx(brute, abs=1e-12)
        assert brute == pytest.approx(1 - comb(n - c, k) / comb(n, k))


def test_pass_at_k_does_not_exist_with_fewer_than_k_answers_and_refuses_impossible_counts() -> None:
    assert np.isnan(pass_at_k(np.array([3]), np.array([1]), 4)[0])
    with pytest.raises(ValueError, match="more passes"):
        pass_at_k(np.array([3]), np.array([4]), 1)


def test_pass_at_k_is_unbiased_for_one_task() -> None:
    draws = seeding.generator("test", "unbiased").random((40_000, 4)) < 0.3
    estimate = pass_at_k(np.full(40_000, 4), draws.sum(1), 2).mean()
    assert estimate == pytest.approx(1 - 0.7**2, abs=0.01)


def test_bootstrap_interval_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = seeding.generator("test", "scipy")
    x = rng.beta(0.5, 0.9, 150)
    ours = resample(["one"] * 150, 8000, "t").mean(x)
    theirs = stats.bootstrap((x,), np.mean, n_resamples=8000, method="percentile", rng=np.random.default_rng(3)).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.005)
    assert ours.value == pytest.approx(x.mean())


def test_mean_of_pools_weighs_pools_evenly_whatever_their_size() -> None:
    weights = resample(["a"] * 10 + ["b"] * 90, 200, "t")
    interval = weights.mean(np.array([1.0] * 10 + [0.0] * 90))
    assert interval.value == pytest.approx(0.5)
    assert (interval.low, interval.high) == pytest.approx((0.5, 0.5)), "resampling stays inside the pool"


def test_rows_of_the_resampling_matrix_are_brute_force_resamples() -> None:
    weights = resample(["a", "b", "a", "b", "b"], 50, "t")
    assert weights.boot_BM.sum(1) == pytest.approx(np.ones(50))
    counts_BM = weights.boot_BM * np.array([2, 3, 2, 3, 3]) * 2
    assert counts_BM == pytest.approx(np.round(counts_BM)), "each weight is a whole number of draws of that task"
    assert weights.boot_BM[:, [0, 2]].sum(1) == pytest.approx(np.full(50, 0.5))


def test_paired_difference_cancels_what_both_share() -> None:
    rng = seeding.generator("test", "paired")
    hard = rng.random(200)
    weights = resample(["a"] * 200, 1000, "t")
    paired = weights.mean((hard + 0.02) - hard)
    assert paired.low > 0 > weights.mean(hard + 0.02).low - weights.mean(hard).high


def test_ratio_interval_brackets_the_ratio_and_names_the_impossible() -> None:
    rng = seeding.generator("test", "ratio")
    under, over = (rng.random(300) < 0.2).astype(float), (rng.random(300) < 0.5).astype(float)
    weights = resample(["a"] * 300, 2000, "t")
    ratio = weights.ratio(over, under)
    assert ratio is not None and ratio.value == pytest.approx(over.mean() / under.mean())
    assert ratio.high is not None and ratio.low < ratio.value < ratio.high
    brute = np.quantile([over[i].mean() / under[i].mean() for i in rng.integers(0, 300, (2000, 300))], [0.025, 0.975])
    assert (ratio.low, ratio.high) == pytest.approx(tuple(brute), rel=0.05)
    assert weights.ratio(over, np.zeros(300)) is None
    rare = np.zeros(300)
    rare[0] = 1.0
    unbounded = weights.ratio(over, rare)
    assert unbounded is not None and unbounded.high is None


def test_same_names_give_the_same_resamples_and_other_names_others() -> None:
    one, two, other = resample(["a"] * 9, 20, "x", 1), resample(["a"] * 9, 20, "x", 1), resample(["a"] * 9, 20, "x", 2)
    assert np.array_equal(one.boot_BM, two.boot_BM)
    assert not np.array_equal(one.boot_BM, other.boot_BM)


def test_wilson_agrees_with_scipy_and_keeps_its_width_at_zero() -> None:
    stats = pytest.importorskip("scipy.stats")
    for passed, counted in [(0, 40), (3, 40), (40, 40)]:
        theirs = stats.binomtest(passed, counted).proportion_ci(method="wilson")
        ours = wilson(passed, counted)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert wilson(0, 40).high > 0.05
    assert wilson(0, 0).high == 1.0


def test_mcnemar_is_the_exact_binomial_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    for a, b in [(0, 0), (3, 9), (9, 3), (5, 5), (0, 12)]:
        expected = stats.binomtest(a, a + b).pvalue if a + b else 1.0
        assert mcnemar(a, b) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Task difficulty ~ Beta(0.5, 0.9): the mean of pass@1 is 0.5 / 1.4 exactly. 600 experiments of 100 tasks x 8 answers."""
    rng = seeding.generator("test", "coverage")
    truth, hits = 0.5 / 1.4, 0
    weights = resample(["a"] * 50 + ["b"] * 50, 1000, "t")
    for _ in range(600):
        passed = rng.binomial(8, rng.beta(0.5, 0.9, 100))
        interval = weights.mean(pass_at_k(np.full(100, 8), passed, 1))
        hits += interval.low <= truth <= interval.high
    assert hits / 600 > 0.91
