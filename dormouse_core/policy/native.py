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

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.kernels.dispatch import close
from dormouse_core.kernels.native.build import Unavailable, library
from dormouse_core.kernels.native.held import Held
from dormouse_core.policy.engram import ORDERS
from dormouse_core.policy.state import State

if TYPE_CHECKING:
    from dormouse_core.policy.block import Fused
    from dormouse_core.policy.network import Policy

WIDTH = 16
"""Floats of a vector; every width is padded to a multiple."""
HELD = Held("kernel.native_byte", "decodes")
TorchStep = Callable[[Tensor, State], tuple[Tensor, Tensor]]

_SHAPE = ("d", "heads", "width", "iterations", "experts", "top_k", "rank", "ffn", "shared", "readout", "dim", "rows", "control",
          "at_decay", "at_gate", "at_beta", "at_control", "at_shared", "at_code", "x_in", "at_dense", "at_shared_out", "at_mixed", "x_out",
          "code", "rank_pad", "memory")
_WEIGHTS = ("embedding", "table", "steps", "w_memory", "w_start", "w_in", "w_decay", "b_decay", "w_out", "shared_v", "shared_u", "up_v",
            "down_u", "readout_u", "readout_v", "head", "bias")


class _Shape(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_int64) for name in _SHAPE), ("norm_eps", ctypes.c_float), ("lam_max", ctypes.c_float)]


class _Weights(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in _WEIGHTS]


def padded(n: int) -> int:
    """The next multiple of WIDTH."""
    return -(-n // WIDTH) * WIDTH


def panels(weight_OI: Tensor, segments: tuple[int, ...] = (), columns: tuple[int, ...] = ()) -> Tensor:
    """[..., out, in] -> [..., out / 16, in, 16], contiguous. segments and columns cut rows and columns, each padded by itself."""
    if segments:
        weight_OI = torch.cat([F.pad(w, (0, 0, 0, padded(len(w)) - len(w))) for w in weight_OI.split(segments)])
    if columns:
        weight_OI = torch.cat([F.pad(w, (0, padded(w.shape[1]) - w.shape[1])) for w in weight_OI.split(columns, 1)], 1)
    weight_OI = F.pad(weight_OI, (0, 0, 0, -weight_OI.shape[-2] % WIDTH))
    return weight_OI.unflatten(-2, (-1, WIDTH)).transpose(-1, -2).contiguous()


def unsupported(config: PolicyConfig, device: torch.device, narrow: bool) -> str | None:
    """Why this policy decodes in torch, or None."""
    if device.type != "cpu":
        return f"its weights are on {device.type}"
    if config.dtype != "float32":
        return f"its weights are {config.dtype}"
    if config.depth.kind != "fixed":
        return f"depth {config.depth.kind} is not fixed"
    if not narrow:
        return "its experts are many or wide"
    if config.head_dim not in (16, 32, 64) or config.d_ffn % WIDTH:
        return f"head_dim {config.head_dim} is not 16, 32 or 64, or d_ffn {config.d_ffn} no multiple of {WIDTH}"
    return None


class NativeByte:
    """Weights as byte.cpp takes them. Made anew when weights change."""

    def __init__(self, policy: "Policy", fused: "Fused", w_head_VD: Tensor, out_v_DR: Tensor, control: int, narrow: bool) -> None:
        self._key, self._width = f"{policy.config!r} on {policy.embedding.device.type}", policy.config.d_model
        self._work: dict[int, Tensor] = {}
        reason = unsupported(policy.config, policy.embedding.device, narrow)
        if reason is None and not HELD.refused(self._key, count=False):
            try:
                self._library = library("byte")
                self._shape, self._tensors = _laid_out(policy, fused, w_head_VD, out_v_DR, control)
                self._weights = _Weights(*(t.data_ptr() for t in self._tensors))
                self._library.work_size.restype = ctypes.c_int64
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
        rows, ids_B = state.batch, ids_B.contiguous()
        if rows not in self._work:
            self._work[rows] = torch.empty(self._library.work_size(ctypes.byref(self._shape), ctypes.c_int64(rows)))
        hidden_BD, logits_BV = torch.empty(rows, self._width), torch.empty(rows, 256)
        stream = state.kda_TBHKV_padded
        self._library.decode(
            ctypes.byref(self._shape), ctypes.byref(self._weights), ctypes.c_int64(rows), ctypes.c_void_p(ids_B.data_ptr()),
            ctypes.c_void_p(stream.data_ptr()), ctypes.c_int64(stream.stride(0)), ctypes.c_void_p(state.tail_B3_padded.data_ptr()),
            ctypes.c_void_p(self._work[rows].data_ptr()), ctypes.c_void_p(hidden_BD.data_ptr()), ctypes.c_void_p(logits_BV.data_ptr()),
        )  # fmt: skip
        return logits_BV, hidden_BD


def _moved(state: State) -> tuple[Tensor, Tensor]:
    return state.kda_TBHKV_padded[:, : state.batch], state.tail_B3


def _laid_out(policy: "Policy", fused: "Fused", w_head_VD: Tensor, out_v_DR: Tensor, control: int) -> tuple[_Shape, list[Tensor]]:
    """(shape, tensors in the order of _WEIGHTS)."""
    c, block = policy.config, policy.block
    d, code, shared, readout = c.d_model, c.n_experts * c.rank, c.shared_rank, policy.readout.u.shape[1]
    memory, rank_pad = padded(len(ORDERS) * c.engram_dim), padded(c.rank)
    ins = (3 * d, c.head_dim, d, c.n_heads, control, shared, code)
    outs = (d, d, shared, code)
    at = [sum(map(padded, ins[:i])) for i in range(len(ins) + 1)]
    to = [sum(map(padded, outs[:i])) for i in range(len(outs) + 1)]
    shape = _Shape(d, c.n_heads, c.head_dim, c.max_iter, c.n_experts, c.moe_topk, c.rank, c.d_ffn, shared, readout, c.engram_dim,
                   c.engram_rows, padded(control), *at[1:], *to[1:], padded(code), rank_pad, memory, c.norm_eps, c.lam_max)
    up_EFR, down_EFR = fused.factors.up_v_EFR, fused.factors.down_u_EFR
    tensors = [
        policy.embedding, block.engram.rows, block.iter_embed, panels(F.pad(fused.w_engram_XM, (0, memory - fused.w_engram_XM.shape[1]))),
        panels(fused.w_start_PD), panels(fused.w_in_XD, ins), panels(fused.w_decay_DK), fused.b_decay_D,
        panels(fused.w_out_DX, columns=outs), panels(fused.shared_v_FR), panels(fused.shared_u_FR.t()), panels(up_EFR),
        panels(down_EFR.transpose(1, 2)), panels(policy.readout.u.t()), panels(F.pad(out_v_DR, (0, padded(readout) - readout))),
        panels(w_head_VD), policy.get_buffer("balance_bias_E"),
    ]  # fmt: skip
    return shape, [t.detach().contiguous() for t in tensors]
