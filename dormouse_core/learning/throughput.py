"""How fast this machine samples and trains under a number of workers and threads: the measurement behind `dormouse bench threads`.

Work is the product's own: decode steps of full lanes, and gradients of micro-batches through the worker pool. Wall time, the best
of some repeats, since a busy neighbour can only slow a repeat down. Not here: what to do about it.
"""

import time
from typing import NamedTuple

import numpy as np
import torch

from dormouse_core.config.run import RunConfig
from dormouse_core.learning.batches import text_batch
from dormouse_core.learning.update import TextWork, gradient
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.seeding import generator

WINDOW, ROWS, STEPS = 128, 16, 24
"""Bytes of a row, rows of a micro-batch, decode steps of an item."""


class Rate(NamedTuple):
    """Bytes a second of wall time."""

    workers: int
    threads: int
    sampled: float
    trained: float

    @property
    def joint(self) -> float:
        """Bytes a second of a loop that trains as many bytes as it samples."""
        return 1 / (1 / self.sampled + 1 / self.trained)


def decode_some(policy: Policy, lanes: int) -> int:
    """STEPS bytes of `lanes` lanes; how many that were. Runs in a worker."""
    policy.eval()
    state, ids_B = policy.initial_state(lanes), torch.full((lanes,), 65)
    for _ in range(STEPS):
        policy.decode(ids_B, state)
    return lanes * STEPS


def measure(policy: Policy, config: RunConfig, workers: int, threads: int, repeats: int) -> Rate:
    """The rates of a pool of this size. The pool is started and warm before the clock runs."""
    kept = torch.get_num_threads()
    draw = generator("bench-threads", config.runtime.seed)
    target_L = np.ones(WINDOW, dtype=bool)
    target_L[0] = False
    rows = [draw.integers(32, 127, WINDOW).astype(np.uint8) for _ in range(ROWS)]
    (batch,) = text_batch(rows, [target_L] * ROWS, [np.zeros_like(target_L)] * ROWS, 0.0)
    works = [TextWork(batch, config.policy.deep_loss)] * (2 * workers)
    lanes = [config.roll.lanes] * (2 * workers)
    try:
        with WorkerPool(workers, threads) as pool:
            pool.set_weights(policy)
            sampled, trained = 0.0, 0.0
            for _ in range(repeats + 1):  # the first warms up
                began = time.perf_counter()
                bytes_now = sum(pool.map(decode_some, lanes))
                middle = time.perf_counter()
                pool.map(gradient, works)
                ended = time.perf_counter()
                sampled, trained = (max(sampled, bytes_now / (middle - began)), max(trained, len(works) * ROWS * WINDOW / (ended - middle)))
    finally:
        torch.set_num_threads(kept)
    return Rate(workers, threads, sampled, trained)


def candidates(cores: int) -> list[tuple[int, int]]:
    """(workers, threads) whose product does not exceed the cores, and one worker more than that with one thread."""
    sizes = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128) if n <= cores]
    chosen = {(w, t) for w in sizes for t in sizes if w * t <= cores and (w == 1 or t == 1 or w * t == cores)}
    return sorted(chosen)
