"""Wilson bounds against scipy's, and an interval that always holds its own estimate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from dormouse_core.verifiers.rates import wilson_bounds


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_bounds_are_wilsons_hold_the_rate_and_are_exact_where_nothing_or_everything_passed(trial: tuple[int, int]) -> None:
    passed, counted = trial
    low, high = wilson_bounds(passed, counted)
    theirs = binomtest(passed, counted).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    assert low <= passed / counted <= high
    assert (low == 0.0) == (passed == 0) and (high == 1.0) == (passed == counted)


def test_without_trials_the_interval_is_everything() -> None:
    assert wilson_bounds(0, 0) == (0.0, 1.0)
