"""Wilson bounds: the rates that a score test at 95 % just does not reject, and an interval that always holds its own estimate."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core.verifiers.rates import Z, wilson_bounds


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_bounds_are_wilsons_hold_the_rate_and_are_exact_where_nothing_or_everything_passed(trial: tuple[int, int]) -> None:
    passed, counted = trial
    low, high = wilson_bounds(passed, counted)
    p = passed / counted
    for bound in (low, high):
        assert abs(p - bound) == pytest.approx(Z * sqrt(bound * (1 - bound) / counted), abs=1e-9)
    assert low <= p <= high
    assert (low == 0.0) == (passed == 0) and (high == 1.0) == (passed == counted)


def test_without_trials_the_interval_is_everything() -> None:
    assert wilson_bounds(0, 0) == (0.0, 1.0)
