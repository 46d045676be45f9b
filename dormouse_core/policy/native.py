"""Decoding in one native call: weights laid out for kernels/native/byte.cpp, its first step held to torch, a counted fallback.

For fixed depth, fp32, narrow experts, heads of 16, 32 or 64, on a CPU with a C++ compiler; anything else decodes in torch, counted
as `kernel.native_byte`. The sums run in another order than torch's, so the bits differ from torch's within rounding; a row's bits
are the same in every batch, also in a batch of one. What a policy was decoded by is therefore a setting of it (policy.compute).
"""

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dormouse_core.encoding import VOCABULARY
from dormouse_core.kernels.dispatch import close
from dormouse_core.kernels.native.build import Unavailable, library
from dormouse_core.kernels.native.held import Held
from dormouse_core.policy.layout import Shape, in_segments, out_segments, padded, panels, shape_of, unsupported
from dormouse_core.policy.readout import Readout
from dormouse_core.policy.state import State

if TYPE_CHECKING:
    from dormouse_core.policy.block import Fused
    from dormouse_core.policy.network import Policy

HELD = Held("kernel.native_byte", "decodes")
TorchStep = Callable[[Tensor, State], tuple[Tensor, Tensor]]

_WEIGHTS = ("embedding", "table", "steps", "w_memory", "w_start", "w_in", "w_decay", "b_decay", "w_out", "shared_v", "shared_u", "up_v",
            "down_u", "readout_u", "readout_v", "head", "bias")


def _compiled() -> tuple[Callable[..., int], Callable[..., int]]:
    """byte.cpp's `work_size` and `decode`. Raises Unavailable."""
    functions, at, n = library("byte"), ctypes.c_void_p, ctypes.c_int64
    work_size, decode = functions.work_size, functions.decode
    work_size.restype, work_size.argtypes = n, [at, n]
    decode.restype, decode.argtypes = n, [at, at, n, at, at, n, at, at, at, at]
    return work_size, decode


class _Weights(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in _WEIGHTS]


class NativeByte:
    """Weights as byte.cpp takes them. Made anew when weights change."""

    def __init__(self, policy: "Policy", fused: "Fused", readout: Readout, control: int, narrow: bool) -> None:
        self._key, self._width = repr(policy.config), policy.config.d_model
        self._rows = 0
        reason = unsupported(policy.config, narrow)
        if reason is None and not HELD.refused(self._key, count=False):
            try:
                self._work_size, self._decode = _compiled()
                self._shape, self._tensors = _laid_out(policy, fused, readout, control)
                self._weights = _Weights(*(t.data_ptr() for t in self._tensors))
                self._layout = ctypes.addressof(self._shape), ctypes.addressof(self._weights)
            except Unavailable as error:
                reason = str(error)
        if reason is not None:
            HELD.refuse(self._key, reason)

    def step(self, ids_B: Tensor, state: State, in_torch: TorchStep) -> tuple[Tensor, Tensor]:
        """One byte for each row: (logits_BV, hidden_BD), the state moved in place; in torch where native cannot run. The first call
        of a shape in a process is held to torch."""
        if HELD.proven(self._key):
            return self._step(ids_B, state)
        if HELD.refused(self._key):
            return in_torch(ids_B, state)
        before, rows = state.clone(), range(state.batch)
        got, want = self._step(ids_B, state), in_torch(ids_B, before)
        if HELD.holds(self._key, close((*got, *_moved(state)), (*want, *_moved(before)))):
            return got
        state.copy_(rows, before, rows)
        return want

    def _step(self, ids_B: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Raises IndexError, before anything moved, where an id is no byte."""
        rows, ids_B = state.batch, ids_B.long().contiguous()
        if rows > self._rows:
            self._rows, self._work = rows, torch.empty(self._work_size(self._layout[0], rows))
            self._work_at = self._work.data_ptr()
        hidden_BD, logits_BV = torch.empty(rows, self._width), torch.empty(rows, VOCABULARY)
        stream = state.kda_TBHKV_padded
        done = self._decode(*self._layout, rows, ids_B.data_ptr(), stream.data_ptr(), stream.stride(0), state.tail_B3_padded.data_ptr(),
                            self._work_at, hidden_BD.data_ptr(), logits_BV.data_ptr())
        if done != rows:
            raise IndexError(f"decode got {int(ids_B[done])} in row {done}, which is no byte")
        return logits_BV, hidden_BD


def _moved(state: State) -> tuple[Tensor, Tensor]:
    return state.kda_TBHKV_padded[:, : state.batch], state.tail_B3


def _laid_out(policy: "Policy", fused: "Fused", readout: Readout, control: int) -> tuple[Shape, list[Tensor]]:
    """(shape, tensors in the order of _WEIGHTS)."""
    c, block, rank = policy.config, policy.block, readout.u_DR.shape[1]
    shape = shape_of(c, control, rank)
    up_EFR, down_EFR = fused.factors.up_v_EFR, fused.factors.down_u_EFR
    tensors = [
        policy.embedding, block.engram.rows, block.iter_embed,
        panels(F.pad(fused.w_engram_XM, (0, shape.memory - fused.w_engram_XM.shape[1]))),
        panels(fused.w_start_PD), panels(fused.w_in_XD, in_segments(c, control)), panels(fused.w_decay_DK), fused.b_decay_D,
        panels(fused.w_out_DX, columns=out_segments(c)), panels(fused.shared_v_FR), panels(fused.shared_u_FR.t()), panels(up_EFR),
        panels(down_EFR.transpose(1, 2)), panels(readout.u_DR.t()), panels(F.pad(readout.v_DR, (0, padded(rank) - rank))),
        panels(readout.head_VD), policy.get_buffer("balance_bias_E"),
    ]  # fmt: skip
    return shape, [t.detach().contiguous() for t in tensors]
