"""One sampled byte a row in one native call (kernels/native/draw.cpp), where policy.compute = native; sampling.py defines it.

The same keys give the same uniforms, bit for bit; log-probs and entropies are torch's within rounding, so a byte differs only where
a uniform meets a border of the CDF within that. The first call of a process is held to the definition; where they disagree, where there
is no compiler, or for arguments that the definition refuses, the definition runs. Counted as `kernel.native_draw`.
"""

import ctypes
from collections.abc import Callable

import numpy as np
import torch

from dormouse_core.encoding import POLICY_MAY_WRITE, VOCABULARY
from dormouse_core.kernels.dispatch import wanted
from dormouse_core.kernels.native.build import Unavailable, library
from dormouse_core.kernels.native.held import Held
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.sampling import Draw, Sampler, agree, sample

HELD = Held("kernel.native_draw", "draws")
_KEY = "draw"
_SUPPORT_V = np.where(POLICY_MAY_WRITE, 0.0, -np.inf).astype(np.float32)


def sampler(policy: Policy) -> Sampler:
    """What draws this policy's bytes: the native form where its configuration asks for native calls."""
    return NativeDraw() if policy.computes_natively else sample


def _compiled() -> Callable[..., int]:
    """draw.cpp's `draw`. Raises Unavailable."""
    compiled = library("draw").draw
    compiled.restype, compiled.argtypes = ctypes.c_int64, [ctypes.c_int64, *[ctypes.c_void_p] * 10]
    return compiled


class NativeDraw:
    """A sampler with room of its own for arguments and results, whose addresses are looked up once. For one thread."""

    def __init__(self) -> None:
        self._rows = 0
        if not HELD.refused(_KEY, count=False):
            try:
                self._draw = _compiled()
            except Unavailable as error:
                HELD.refuse(_KEY, str(error))

    def __call__(self, logits_XV: torch.Tensor, temperature_X: np.ndarray, seed_X: np.ndarray, step_X: np.ndarray, byte_X: np.ndarray,
                 avoid_X: np.ndarray) -> Draw:
        """As `sampling.sample`."""
        names = (temperature_X, seed_X, step_X, byte_X, avoid_X)
        if wanted(logits_XV):
            return sample(logits_XV, *names)
        if HELD.proven(_KEY):
            drawn = self._native(logits_XV, names)
            return sample(logits_XV, *names) if drawn is None else drawn
        want = sample(logits_XV, *names)
        if HELD.refused(_KEY):
            return want
        got = self._native(logits_XV, names)
        assert got is not None, "the definition took arguments that native does not"
        return got if HELD.holds(_KEY, agree(_tensors(got), _tensors(want))) else want

    def _native(self, logits_XV: torch.Tensor, names: tuple[np.ndarray, ...]) -> Draw | None:
        """None where an argument is out of its range."""
        n = len(logits_XV)
        if n > self._rows:
            self._make_room(n)
        for room, given in zip(self._names, names, strict=True):
            room[:n] = given
        logits_XV = logits_XV.float().contiguous()
        if logits_XV.shape != (n, VOCABULARY) or self._draw(n, logits_XV.data_ptr(), *self._addresses) != n:
            return None
        byte_X, log_prob_X, entropy_X = self._results
        return Draw(byte_X[:n].copy(), log_prob_X[:n].copy(), entropy_X[:n].copy())

    def _make_room(self, rows: int) -> None:
        self._rows = rows
        self._names: tuple[np.ndarray, ...] = (np.empty(rows), *(np.empty(rows, dtype=np.int64) for _ in range(4)))
        self._results = np.empty(rows, dtype=np.uint8), np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.float32)
        self._addresses = [x.ctypes.data for x in (_SUPPORT_V, *self._names, *self._results)]


def _tensors(drawn: Draw) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(x) for x in drawn)
