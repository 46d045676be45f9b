"""Excluded sampling without rejection: an action that is not the realised one, exactly as the policy would have drawn it.

With q_j the policy's probability of the realised byte j, an action differs first at byte j with probability
prod_{m<j} q_m * (1 - q_j); given that it differs at all, that is divided by 1 - prod q. So the index is drawn from the stored
log-probs, the byte there from the policy's distribution without the realised byte, and everything after it freely
(recipe card A1 of 2609.33875). Not here: which steps are forked (forks).
"""

from dataclasses import dataclass

import numpy as np

from dormouse_core import seeding
from dormouse_core.encoding import END
from dormouse_core.rollouts.trajectory import Step

NOTHING = -1
"""Where a byte may be excluded: none is."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """Where an alternative leaves the realised action (bytes before `at` are shared), and the byte it must not write there."""

    at: int
    byte: int


def realised_bytes(step: Step) -> bytes:
    """Every byte the policy wrote in a step, its END included."""
    return step.action_bytes + (END if step.ended else b"")


def log_probability(step: Step) -> float:
    """log pi(a|s) of the realised byte string, float64."""
    return float(step.log_probs.astype(np.float64).sum())


def can_deviate(step: Step) -> bool:
    """False where the policy gave every realised byte probability 1: nothing else can be drawn, and 1 - pi(a|s) is 0."""
    return log_probability(step) < 0.0


def index_probabilities(step: Step) -> np.ndarray:
    """P(first difference at byte j | the action differs) [n] float64."""
    log_q_n = step.log_probs.astype(np.float64)
    before_n = np.concatenate([[0.0], np.cumsum(log_q_n)[:-1]])
    weight_n = np.exp(before_n) * -np.expm1(log_q_n)
    return weight_n / weight_n.sum()


def deviate(step: Step, seed: int) -> Deviation:
    """Draw where an alternative to `step` leaves it; a function of the stream `seed` alone."""
    cdf_n = np.cumsum(index_probabilities(step))
    zero = np.zeros(1, dtype=np.int64)
    point = min(seeding.uniform(np.array([seeding.key("deviation", seed)], dtype=np.int64), zero, zero)[0] * cdf_n[-1],
                np.nextafter(cdf_n[-1], 0.0))
    at = int((cdf_n > point).argmax())
    return Deviation(at, realised_bytes(step)[at])
