"""What a depth arm did with the bytes that were sampled: whole counts of single bytes, so lanes and workers change none of them."""

import numpy as np
import torch

from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import Policy


def count(policy: Policy, rows_X: np.ndarray, ledger: Ledger) -> None:
    """Count the last decoded bytes of these rows: iterations that ran (`ran/asked`, and `_run_n` by iteration; one that ran by a
    share ran), and the iteration each byte was mostly read out from (`_read_n`). Nothing without an arm."""
    trace = policy.trace
    if trace is None:
        return
    at = torch.from_numpy(rows_X).to(trace.run.device)
    run_T = (trace.run[:, at] > 0).sum(1).tolist()
    read_T = torch.bincount(trace.read[:, at].argmax(0), minlength=len(run_T)).tolist()
    ledger.count("rollouts.depth_bytes", len(rows_X))
    for n, (run, read) in enumerate(zip(run_T, read_T, strict=True), 1):
        ledger.ask(f"depth {policy.config.depth.kind} iterations", ran=True, n=run)
        ledger.ask(f"depth {policy.config.depth.kind} iterations", ran=False, n=len(rows_X) - run)
        ledger.count(f"rollouts.depth_run_{n}", run)
        ledger.count(f"rollouts.depth_read_{n}", read)
