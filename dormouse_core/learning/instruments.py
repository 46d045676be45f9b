"""What a run of text steps says at log cadence: loss, gradient, rates, router, masked steps, throughput.

Router numbers are of a window of steps: with many experts a single step leaves some idle by chance. Throughput carries the step it
was read at, and is absent until the first log interval of the process is over: first steps are many times slower.
Nothing here enters a checkpoint. Not here: what is done about a masked step (pretrain.py).
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dormouse_core.optim.balance import Load, read_load

LOAD_WINDOW = 50
"""Steps whose expert counts are read together."""
_SHOWN_SHARES = 16


class StepLog:
    """Notes of the steps since the last line. `bytes_a_step`: bytes an update reads."""

    def __init__(self, bytes_a_step: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._bytes, self._now = bytes_a_step, now
        self._losses: list[float] = []
        self._masked = 0
        self._norm = math.nan
        self._load: deque[Tensor] = deque(maxlen=LOAD_WINDOW)
        self._since: tuple[float, int] | None = None

    def note(self, loss: float | None, norm: float, load_E: Tensor) -> None:
        """One step: its loss in nats a byte (None where it was masked), gradient norm, and the experts' counts in it."""
        if loss is None:
            self._masked += 1
            return
        self._losses.append(loss)
        self._norm = norm
        self._load.append(load_E.clone())

    def load(self) -> Load | None:
        """The router over the last LOAD_WINDOW steps that were applied; None when no expert was asked for."""
        return read_load(torch.stack(list(self._load)).sum(0)) if self._load else None

    def facts(self, step: int, rates: dict[str, float]) -> dict[str, Any]:
        """What the line after `step` steps says, and a new beginning for the next one. A step that was masked has no loss: the mean is
        over the others, and absent where there are none."""
        said: dict[str, Any] = {}
        if self._losses:
            said |= {"bpb": math.fsum(self._losses) / len(self._losses) / math.log(2), "grad": self._norm}
        if self._masked:
            said["masked"] = self._masked
        said["lr"] = " ".join(f"{group} {rate:.1e}" for group, rate in rates.items())
        load = self.load()
        if load is not None:
            said |= {"router": shares_text(load.shares), "router_entropy": load.entropy, "dead": load.dead}
        now = self._now()
        if self._since is not None and step > self._since[1]:
            rate = (step - self._since[1]) * self._bytes / max(now - self._since[0], 1e-9)
            said["speed"] = f"{rate:,.0f} bytes/s at step {step}"
        self._since, self._losses, self._masked = (now, step), [], 0
        return said


def shares_text(shares: tuple[float, ...]) -> str:
    """Every expert's share in percent where they are few; else the smallest, the middle and the largest of them."""
    percent = [100 * share for share in shares]
    if len(percent) <= _SHOWN_SHARES:
        return "/".join(f"{p:.0f}" for p in percent) + " %"
    ordered = sorted(percent)
    return f"{ordered[0]:.2g}..{ordered[len(ordered) // 2]:.2g}..{ordered[-1]:.2g} % of {len(ordered)}"
