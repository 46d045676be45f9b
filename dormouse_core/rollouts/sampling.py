"""One sampled byte a row: inverse CDF in float64 at a uniform that is a function of (seed, step, byte) alone.

The distribution is `Policy.action_log_probs`, the same function the trainer and the evaluation read. Temperature 0 takes the
most likely byte and records its log-prob at temperature 1.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch

from dormouse_core import seeding
from dormouse_core.rollouts.deviation import NOTHING


class Distribution(Protocol):
    """The policy's action distribution: logits [X, V] -> log-probs [X, V], -inf outside its support."""

    def __call__(self, logits_XV: torch.Tensor, temperature: float = 1.0) -> torch.Tensor: ...


class Draw(NamedTuple):
    """What was sampled: bytes, their log-probs under the policy (never under the excluded distribution), entropies in nats."""

    byte_X: np.ndarray  # uint8
    log_prob_X: np.ndarray  # float32
    entropy_X: np.ndarray  # float32


def log_probs(distribution: Distribution, logits_XV: torch.Tensor, temperature_X: np.ndarray) -> np.ndarray:
    """Log-probs [X, V] float32 at each row's own temperature; rows at temperature 0 get those at 1."""
    effective_X = np.where(temperature_X == 0.0, 1.0, temperature_X)
    first = float(effective_X[0])
    if (effective_X == first).all():
        return distribution(logits_XV, first).cpu().numpy()
    out_XV = np.empty(tuple(logits_XV.shape), dtype=np.float32)
    for temperature in np.unique(effective_X):
        rows = np.flatnonzero(effective_X == temperature)
        out_XV[rows] = distribution(logits_XV[torch.from_numpy(rows).to(logits_XV.device)], float(temperature)).cpu().numpy()
    return out_XV


def draw(log_prob_XV: np.ndarray, temperature_X: np.ndarray, seed_X: np.ndarray, step_X: np.ndarray, byte_X: np.ndarray,
         avoid_X: np.ndarray) -> Draw:
    """Sample one byte a row. seed_X, step_X, byte_X int64 name the draw; avoid_X int64 holds a byte that gets no mass, or NOTHING."""
    rows = np.arange(len(log_prob_XV))
    log64_XV = log_prob_XV.astype(np.float64)
    prob_XV = np.exp(log64_XV)
    entropy_X = -np.einsum("xv,xv->x", prob_XV, np.maximum(log64_XV, -1e30))
    avoiding = avoid_X != NOTHING
    if avoiding.any():
        prob_XV[rows[avoiding], avoid_X[avoiding]] = 0.0
    cdf_XV = torch.from_numpy(prob_XV).cumsum(1).numpy()  # a running sum along each row, four times faster than numpy's
    total_X = cdf_XV[:, -1]
    point_X = np.minimum(seeding.uniform(seed_X, step_X, byte_X) * total_X, np.nextafter(total_X, 0.0))
    chosen_X = (cdf_XV > point_X[:, None]).argmax(axis=1)
    greedy = temperature_X == 0.0
    if greedy.any():
        chosen_X[greedy] = prob_XV[greedy].argmax(axis=1)
    return Draw(chosen_X.astype(np.uint8), log_prob_XV[rows, chosen_X], entropy_X.astype(np.float32))
