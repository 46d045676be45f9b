"""One sampled byte a row: inverse CDF in float64 at a uniform that is a function of (seed, step, byte) alone.

The distribution is `action_log_probs`, the same function the trainer and the evaluation read. Temperature 0 takes the
most likely byte and records its log-prob at temperature 1. Logits on a GPU are drawn from there, by one kernel
(kernels/gpu/sampling.py), and only what was drawn comes back.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch

from dormouse_core import seeding
from dormouse_core.encoding import POLICY_MAY_WRITE
from dormouse_core.kernels.dispatch import Op, Results, run, wanted
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.rollouts.deviation import NOTHING


class Distribution(Protocol):
    """The policy's action distribution: logits [X, V] -> log-probs [X, V], -inf outside its support."""

    def __call__(self, logits_XV: torch.Tensor, temperature: float = 1.0) -> torch.Tensor: ...


class Sampler(Protocol):
    """What draws one byte a row: `sample`, or its native form (native_draw)."""

    def __call__(self, logits_XV: torch.Tensor, temperature_X: np.ndarray, seed_X: np.ndarray, step_X: np.ndarray, byte_X: np.ndarray,
                 avoid_X: np.ndarray, /) -> "Draw": ...


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


def _sample(
    logits_XV: torch.Tensor, may_write_V: torch.Tensor, temperature_X: torch.Tensor, seed_X: torch.Tensor, step_X: torch.Tensor,
    byte_X: torch.Tensor, avoid_X: torch.Tensor,
) -> Results:
    """`log_probs` and `draw` on tensors. The support is the policy's own; `may_write_V` tells the kernel the same."""
    names = [x.cpu().numpy() for x in (temperature_X, seed_X, step_X, byte_X, avoid_X)]
    drawn = draw(log_probs(action_log_probs, logits_XV, names[0]), *names)
    return tuple(torch.from_numpy(x).to(logits_XV.device) for x in drawn)


def agree(got: Results, want: Results) -> str | None:
    """None, or how two draws differ: log-probs of equal bytes within rounding; a byte may differ where a uniform meets a border of the
    CDF, which is rare."""
    (byte_X, log_prob_X, entropy_X), (wanted_X, other_X, expected_X) = got, want
    same_X = byte_X == wanted_X
    if int((~same_X).sum()) > 1:
        return f"{int((~same_X).sum())} of {len(byte_X)} bytes differ"
    mine, other = torch.cat((log_prob_X[same_X], entropy_X)), torch.cat((other_X[same_X], expected_X))
    off = ~torch.isclose(mine, other, rtol=0, atol=1e-4, equal_nan=True)  # infinite and undefined where the definition has them
    return f"log-probs or entropies are off by {float((mine - other)[off].abs().max()):.2g}" if off.any() else None


SAMPLE = Op("sample", "sampling.sample", _sample, agree=agree)


def sample(logits_XV: torch.Tensor, temperature_X: np.ndarray, seed_X: np.ndarray, step_X: np.ndarray, byte_X: np.ndarray,
           avoid_X: np.ndarray) -> Draw:
    """One byte a row from the policy's distribution at each row's temperature. Arguments as in `log_probs` and `draw`."""
    if not wanted(logits_XV):
        return draw(log_probs(action_log_probs, logits_XV, temperature_X), temperature_X, seed_X, step_X, byte_X, avoid_X)
    words = np.stack((seed_X, step_X, byte_X, avoid_X)).astype(np.int64)
    device = logits_XV.device
    temperature, may_write = (torch.from_numpy(x).to(device) for x in (temperature_X.astype(np.float64), POLICY_MAY_WRITE))
    return Draw(*(x.cpu().numpy() for x in run(SAMPLE, logits_XV, may_write, temperature, *torch.from_numpy(words).to(device))))
