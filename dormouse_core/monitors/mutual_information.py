"""Does what the policy writes still depend on what it was asked? Mutual information between prompts and answers, and its gap.

N prompts, K answers to each, every answer scored under every prompt: L[r, j] = log p(answer r | prompt j), nats. From this one
matrix (the sequence estimator of RAGEN-2, 2604.06268, and two more; derivation in docs/mechanisms/collapse.md):

    information   mean of L[r, own] - (logsumexp_j L[r, j] - ln N): nats an answer, at most ln N, so it saturates early
    gap           the same against the OTHER prompts only, a byte: uncapped, falls through the whole range; the headline
    accuracy      how often an answer's own prompt scores highest (ties shared); chance is 1/N
    null_z        information against the same matrix with shuffled ownership: how far from "cannot be told apart"

Entropy sees none of this: a policy that writes one varied template for every prompt keeps its entropy.
Not here: scoring the pairs (entropy.score_pairs), regimes and what to do about them (collapse).
"""

import numpy as np
from numpy.typing import NDArray

from dormouse_core import seeding
from dormouse_core.config.base import Record

Floats = NDArray[np.float64]
_TIE = 1e-6
PERMUTATIONS = 200
RESAMPLES = 200


class Dependence(Record):
    """The estimates of one batch of prompts."""

    prompts: int
    """N, after equal prompts were merged."""
    answers: int
    """Answers scored."""
    information: float
    """Nats an answer; at most ln(prompts). Slightly below 0 means none within noise."""
    ceiling: float
    """ln(prompts)."""
    gap: float
    """Nats a byte by which an answer fits its own prompt better than the mixture of the others."""
    gap_low: float
    gap_high: float
    """95 % bootstrap over prompts, their answers with them."""
    accuracy: float
    chance: float
    null_z: float


def _logsumexp(x_RN: Floats) -> Floats:
    top_R = x_RN.max(1)
    return np.asarray(top_R + np.log(np.exp(x_RN - top_R[:, None]).sum(1)))


def information_R(log_RN: Floats, own_R: NDArray[np.intp]) -> Floats:
    """Per answer: nats by which its own prompt beats the mixture of all N prompts (itself included)."""
    own = log_RN[np.arange(len(own_R)), own_R]
    return np.asarray(own - (_logsumexp(log_RN) - np.log(log_RN.shape[1])))


def gap_R(log_RN: Floats, own_R: NDArray[np.intp], length_R: NDArray[np.intp]) -> Floats:
    """Per answer: nats a byte by which its own prompt beats the mixture of the N - 1 others."""
    rows = np.arange(len(own_R))
    others_RN = log_RN.copy()
    others_RN[rows, own_R] = -np.inf
    return np.asarray((log_RN[rows, own_R] - (_logsumexp(others_RN) - np.log(log_RN.shape[1] - 1))) / length_R)


def dependence(log_RN: Floats, own_R: NDArray[np.intp], length_R: NDArray[np.intp], *names: str | int) -> Dependence:
    """All estimates of one batch.

    log_RN: log p(answer | prompt), [R, N], prompts distinct. own_R: the prompt each answer was written to. length_R: bytes of
    each answer, END included. names: the stream the permutations and resamples are drawn from.
    Raises ValueError with fewer than two prompts or on a prompt without answers.
    """
    n = log_RN.shape[1]
    if n < 2 or set(own_R.tolist()) != set(range(n)):
        raise ValueError(f"{n} prompts with answers to {len(set(own_R.tolist()))} of them: need two or more, each answered")
    best_RN = log_RN >= log_RN.max(1, keepdims=True) - _TIE
    hit_R = best_RN[np.arange(len(own_R)), own_R] / best_RN.sum(1)
    info_R, gaps_R = information_R(log_RN, own_R), gap_R(log_RN, own_R, length_R)
    rng = seeding.generator("dependence", *names)
    mixture_R = log_RN[np.arange(len(own_R)), own_R] - info_R
    shuffled = np.array([(log_RN[np.arange(len(own_R)), rng.permutation(own_R)] - mixture_R).mean() for _ in range(PERMUTATIONS)])
    per_prompt_N = np.array([gaps_R[own_R == j].mean() for j in range(n)])
    boot = per_prompt_N[rng.integers(0, n, (RESAMPLES, n))].mean(1)
    low, high = np.quantile(boot, [0.025, 0.975])
    return Dependence(prompts=n, answers=len(own_R), information=float(info_R.mean()), ceiling=float(np.log(n)),
                      gap=float(per_prompt_N.mean()), gap_low=float(low), gap_high=float(high), accuracy=float(hit_R.mean()),
                      chance=1.0 / n, null_z=float((info_R.mean() - shuffled.mean()) / (shuffled.std() + 1e-9)))
