"""Beliefs about a cell, and the band they put it in."""

import numpy as np
import pytest

from dormouse_core.evolution.posterior import Band, Posterior, single_rate


def test_probabilities_agree_with_scipys_beta() -> None:
    stats = pytest.importorskip("scipy.stats")
    for passes, trials in [(0, 0), (0, 8), (3.7, 8.2), (70, 80), (80, 80), (0.2, 75)]:
        belief = Posterior(np.array([passes]), np.array([trials]))
        beta = stats.beta(1 + passes, 1 + trials - passes)
        assert belief.above(0.9)[0] == pytest.approx(beta.sf(0.9), abs=2e-3)
        assert belief.between(0.05, 0.3)[0] == pytest.approx(beta.cdf(0.3) - beta.cdf(0.05), abs=4e-3)
        assert belief.mean_C[0] == pytest.approx(beta.mean())
        assert belief.spread_C()[0] == pytest.approx(beta.expect(lambda p: p * (1 - p)), abs=1e-6)
        low, high = belief.interval()
        assert (low[0], high[0]) == pytest.approx(beta.interval(0.9), abs=1e-3)


@pytest.mark.parametrize(("passes", "trials", "tried", "band"), [
    (0, 0, 0, Band.FRONTIER), (0, 8, 8, Band.BOUNDARY), (4, 8, 8, Band.FRONTIER), (1, 40, 40, Band.FRONTIER), (20, 20, 20, Band.FRONTIER),
    (30, 30, 30, Band.MASTERED), (0, 46, 46, Band.ARCHIVED), (0, 20, 20, Band.BOUNDARY), (0.01, 70, 400, Band.ARCHIVED)])
def test_bands_follow_the_posterior(passes: float, trials: float, tried: int, band: Band) -> None:
    assert Posterior(np.array([passes]), np.array([trials])).bands(np.array([tried])) == [band]


def test_no_cell_is_archived_before_32_tries() -> None:
    belief = Posterior(np.array([0.0]), np.array([60.0]))
    assert belief.bands(np.array([31])) == [Band.BOUNDARY]
    assert belief.bands(np.array([32])) == [Band.ARCHIVED]


def test_more_passes_than_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and its trials"):
        Posterior(np.array([3.0]), np.array([2.0]))


def test_single_rate_inverts_pass_at_k() -> None:
    assert 1 - (1 - single_rate(0.45, 8)) ** 8 == pytest.approx(0.45)
