"""Estimators against brute force and against policies whose dependence is known."""

import numpy as np
import pytest

from dormouse_core import seeding
from dormouse_core.monitors.mutual_information import dependence, gap_R, information_R


def template_policy(n: int, k: int, length: int, own_share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers of position-wise categorical policies over 64 symbols: `own_share` of the mass depends on the prompt."""
    rng = seeding.generator("test", "template", n, k, length)
    template, own = rng.dirichlet(np.full(64, 0.5), length), rng.dirichlet(np.full(64, 0.5), (n, length))
    p = (1 - own_share) * template + own_share * own
    answers = np.array([[rng.choice(64, p=p[j, t]) for t in range(length)] for j in range(n) for _ in range(k)])
    log_RN = np.log(p[:, np.arange(length), answers].transpose(1, 0, 2)).sum(-1)
    return log_RN, np.repeat(np.arange(n), k), np.full(n * k, length)


def test_information_and_gap_equal_their_definitions() -> None:
    log = np.log(np.array([[0.5, 0.1, 0.1], [0.2, 0.2, 0.4]]))
    own, length = np.array([0, 2]), np.array([2, 4])
    assert information_R(log, own) == pytest.approx([np.log(0.5 / (0.7 / 3)), np.log(0.4 / (0.8 / 3))])
    assert gap_R(log, own, length) == pytest.approx([np.log(0.5 / 0.1) / 2, np.log(0.4 / 0.2) / 4])


def test_a_policy_that_ignores_its_prompt_shows_no_dependence() -> None:
    seen = dependence(*template_policy(8, 4, 32, 0.0), "t")
    assert seen.information == pytest.approx(0, abs=1e-9)
    assert seen.gap == pytest.approx(0, abs=1e-9)
    assert seen.accuracy == pytest.approx(seen.chance)
    assert abs(seen.null_z) < 3


def test_information_saturates_at_its_ceiling_where_the_gap_still_grows() -> None:
    half, most = (dependence(*template_policy(8, 4, 32, share), "t") for share in (0.6, 0.95))
    assert half.information == pytest.approx(half.ceiling, abs=0.01)
    assert most.information == pytest.approx(most.ceiling, abs=0.01)
    assert most.gap > 1.5 * half.gap
    assert half.accuracy == 1.0
    assert half.gap_low < half.gap < half.gap_high


def test_the_gap_rises_with_dependence() -> None:
    gaps = [dependence(*template_policy(16, 4, 64, share), "t").gap for share in (0.0, 0.05, 0.2, 0.6)]
    assert gaps == sorted(gaps)
    assert gaps[1] > 0.005


def test_unanswered_prompts_are_refused() -> None:
    log, own, length = template_policy(4, 2, 8, 0.5)
    with pytest.raises(ValueError, match="each answered"):
        dependence(log[:6], own[:6], length[:6], "t")
