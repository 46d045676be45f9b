"""One draw: the right distribution, from named keys alone."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.encoding import POLICY_MAY_WRITE
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.rollouts.deviation import NOTHING
from dormouse_core.rollouts.sampling import draw, log_probs


def _logits(rows: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.from_numpy(np.random.Generator(np.random.Philox(key=seed)).normal(size=(rows, 256)).astype(np.float32)) * scale


def _draw(log_prob_XV, temperature=1.0, avoid=NOTHING, seed=1, first=0):
    n = len(log_prob_XV)
    full = np.full
    return draw(log_prob_XV, full(n, temperature), full(n, seed, dtype=np.int64), np.zeros(n, dtype=np.int64), np.arange(first, first + n),
                full(n, avoid, dtype=np.int64))


def test_sampled_frequencies_are_the_distribution():
    n = 40_000
    log_prob_V = log_probs(action_log_probs, _logits(1), np.ones(1))[0]
    counts = np.bincount(_draw(np.repeat(log_prob_V[None], n, 0)).byte_X, minlength=256)
    p = np.exp(log_prob_V.astype(np.float64))
    assert counts[~POLICY_MAY_WRITE].sum() == 0
    keep = p * n > 5
    chi2 = ((counts[keep] - n * p[keep]) ** 2 / (n * p[keep])).sum()
    assert chi2 < keep.sum() + 5 * np.sqrt(2 * keep.sum())


def test_an_excluded_byte_is_never_drawn_and_the_others_keep_their_proportions():
    n = 40_000
    log_prob_V = log_probs(action_log_probs, _logits(1), np.ones(1))[0]
    top = int(log_prob_V.argmax())
    drawn = _draw(np.repeat(log_prob_V[None], n, 0), avoid=top)
    counts = np.bincount(drawn.byte_X, minlength=256)
    p = np.exp(log_prob_V.astype(np.float64))
    p[top] = 0
    p /= p.sum()
    assert counts[top] == 0
    keep = p * n > 5
    chi2 = ((counts[keep] - n * p[keep]) ** 2 / (n * p[keep])).sum()
    assert chi2 < keep.sum() + 5 * np.sqrt(2 * keep.sum())
    assert (drawn.log_prob_X == log_prob_V[drawn.byte_X]).all()  # the policy's, not the excluded distribution's


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(2, 20), seed=st.integers(0, 2**62), step=st.integers(0, 9), cut=st.integers(1, 19))
def test_a_row_is_drawn_the_same_in_any_batch(rows, seed, step, cut):
    log_prob_XV = log_probs(action_log_probs, _logits(rows, seed % 97), np.ones(rows))
    names = (np.arange(rows) + seed, np.full(rows, step), np.arange(rows) * 3, np.full(rows, NOTHING))
    whole = draw(log_prob_XV, np.ones(rows), *names)
    cut = min(cut, rows - 1)
    parts = [draw(log_prob_XV[s], np.ones(rows)[s], *[n[s] for n in names]) for s in (slice(0, cut), slice(cut, None))]
    for field in range(3):
        assert np.concatenate([parts[0][field], parts[1][field]]).tobytes() == whole[field].tobytes()


def test_entropy_is_that_of_the_distribution_sampled_from():
    logits = _logits(3, scale=1.0)
    for temperature in (0.5, 1.0, 2.0):
        log_prob_XV = log_probs(action_log_probs, logits, np.full(3, temperature))
        p = np.exp(log_prob_XV.astype(np.float64))
        expected = -(p * np.maximum(log_prob_XV, -1e9)).sum(1)
        assert np.allclose(_draw(log_prob_XV, temperature).entropy_X, expected, atol=1e-5)


def test_a_certain_distribution_draws_its_byte_whatever_the_uniform():
    logits = torch.full((500, 256), -1e4)
    logits[:, 65] = 1e4
    drawn = _draw(log_probs(action_log_probs, logits, np.ones(500)))
    assert (drawn.byte_X == 65).all() and (drawn.log_prob_X == 0).all() and (drawn.entropy_X == 0).all()


def test_each_row_has_its_own_temperature():
    logits, temperature_X = _logits(4), np.array([0.5, 1.0, 0.0, 0.5])
    mixed = log_probs(action_log_probs, logits, temperature_X)
    for i, t in enumerate((0.5, 1.0, 1.0, 0.5)):
        assert np.array_equal(mixed[i], action_log_probs(logits[i : i + 1], t).numpy()[0])
