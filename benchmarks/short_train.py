"""A short pre-training for benchmarks that compare shapes of the policy: the stage's own update, no files, one process."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from dormouse_core.config.run import RunConfig
from dormouse_core.learning import corpus, depth
from dormouse_core.learning.batches import TextBatch, text_batch
from dormouse_core.learning.corpus import Corpus
from dormouse_core.learning.update import TextWork, merged, update
from dormouse_core.optim.balance import balance
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts.workers import WorkerPool

HELD_OUT_ROWS = 64


class Scored(NamedTuple):
    """Held-out bits per byte, and the depth arm's sums over the same bytes (empty under fixed depth)."""

    bits: float
    report: dict[str, float]


def batches(window_WL: np.ndarray, parts: int) -> list[TextBatch]:
    """Windows as micro-batches; the first byte of a row is context only."""
    target_L = np.arange(window_WL.shape[1]) > 0
    rows = list(window_WL.astype(np.uint8))
    return text_batch(rows, [target_L] * len(rows), [np.zeros_like(target_L)] * len(rows), 0.0, parts)


def train(config: RunConfig, text: Corpus, tell: Callable[[int], None] = lambda step: None) -> tuple[Policy, float]:
    """(the policy after train.steps steps of the configuration's seed, CPU-seconds of the training)."""
    settings, policy = config.train, build_policy(config.policy, config.runtime.seed)
    optimizer, pool = build_optimizer(policy, settings.optimizer, settings.steps), WorkerPool(1, 1)
    pool.set_weights(policy)
    began = time.process_time()
    for step in range(settings.steps):
        offset_B = corpus.batch_offsets(len(text.train_N), settings.seq_len + 1, settings.batch, config.runtime.seed, step)
        parts = batches(corpus.windows(text.train_N, offset_B, settings.seq_len + 1), settings.micro_batches)
        outcome = update(policy, optimizer, pool, [TextWork(b, config.policy.deep_loss, count_load=True) for b in parts])
        if not outcome.finite:
            raise SystemExit(f"step {step} is not finite: nothing to compare")
        balance(policy, config.policy.lfb_step)
        tell(step)
    return policy, time.process_time() - began


def score(policy: Policy, config: RunConfig, text: Corpus) -> Scored:
    """Bits per byte on a fixed held-out window of HELD_OUT_ROWS rows."""
    window_WL = corpus.fixed_windows(text.heldout_M, HELD_OUT_ROWS, config.train.seq_len + 1, "held-out")
    policy.eval()
    with torch.no_grad():
        found = [depth.text_loss(policy, b, 0.0, train=False) for b in batches(window_WL, 8)]
    return Scored(sum(float(loss) for loss, _ in found) / math.log(2), merged([report for _, report in found]))
