"""Weights and rows as the native code takes them: sixteen outputs side by side, every part padded to a multiple of sixteen."""

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.policy.engram import ORDERS

WIDTH = 16
"""Floats of a vector; every width is padded to a multiple."""
BLOCK = 256
"""Rows taken through a compiled call's parts together (kernels/native)."""
_FIELDS = ("d", "heads", "width", "iterations", "experts", "top_k", "rank", "ffn", "shared", "readout", "dim", "rows", "control",
           "at_decay", "at_gate", "at_beta", "at_control", "at_shared", "at_code", "x_in", "at_dense", "at_shared_out", "at_mixed", "x_out",
           "code", "rank_pad", "memory")
MOST_EXPERTS = 1024


class Shape(ctypes.Structure):
    """`Shape` of kernels/native/shape.h."""

    _fields_ = [*((name, ctypes.c_int64) for name in _FIELDS), ("norm_eps", ctypes.c_float), ("lam_max", ctypes.c_float)]


def padded(n: int) -> int:
    """The next multiple of WIDTH."""
    return -(-n // WIDTH) * WIDTH


def pad_rows(weight_OI: Tensor, segments: tuple[int, ...]) -> Tensor:
    """[out, in] with zero rows after each segment, up to a multiple of WIDTH."""
    if all(rows % WIDTH == 0 for rows in segments):
        return weight_OI
    return torch.cat([F.pad(w, (0, 0, 0, padded(len(w)) - len(w))) for w in weight_OI.split(segments)])


def panels(weight_OI: Tensor, segments: tuple[int, ...] = (), columns: tuple[int, ...] = ()) -> Tensor:
    """[..., out, in] -> [..., out / 16, in, 16], contiguous. segments and columns cut rows and columns, each padded by itself."""
    if segments:
        weight_OI = pad_rows(weight_OI, segments)
    if columns:
        weight_OI = pad_rows(weight_OI.t(), columns).t()
    weight_OI = F.pad(weight_OI, (0, 0, 0, -weight_OI.shape[-2] % WIDTH))
    return weight_OI.unflatten(-2, (-1, WIDTH)).transpose(-1, -2).contiguous()


def in_segments(config: PolicyConfig, control: int) -> tuple[int, ...]:
    """Rows of the block's input product, as `block.fuse` orders them: q k v, decay, gate, beta and controller, shared, codes."""
    d = config.d_model
    return (3 * d, config.head_dim, d, config.n_heads + control, config.shared_rank, config.n_experts * config.rank)


def out_segments(config: PolicyConfig) -> tuple[int, ...]:
    """Columns of the block's output product: attention, dense memory, shared expert, routed experts."""
    return config.d_model, config.d_model, config.shared_rank, config.n_experts * config.rank


def shape_of(config: PolicyConfig, control: int, readout: int) -> Shape:
    """The widths of a policy. control: the controller's rows; readout: rank of the readout."""
    ins, outs = in_segments(config, control), out_segments(config)
    at = [sum(map(padded, ins[:i])) for i in range(len(ins) + 1)]
    at.insert(4, at[3] + config.n_heads)  # the controller's columns follow beta's without a gap
    to = [sum(map(padded, outs[:i])) for i in range(len(outs) + 1)]
    c, memory = config, padded(len(ORDERS) * config.engram_dim)
    return Shape(c.d_model, c.n_heads, c.head_dim, c.max_iter, c.n_experts, c.moe_topk, c.rank, c.d_ffn, c.shared_rank, readout,
                 c.engram_dim, c.engram_rows, padded(control), *at[1:], *to[1:], padded(ins[-1]), padded(c.rank), memory,
                 c.norm_eps, c.lam_max)


def unsupported(config: PolicyConfig, narrow: bool) -> str | None:
    """Why this policy is computed by torch on a CPU, or None."""
    if config.dtype != "float32":
        return f"its weights are {config.dtype}, not float32 as of `dormouse export --dtype fp32`"
    if config.depth.kind != "fixed":
        return f"depth {config.depth.kind} is not fixed"
    if not narrow or config.n_experts > MOST_EXPERTS:
        return "its experts are many or wide"
    if config.head_dim not in (16, 32, 64) or config.d_ffn % WIDTH:
        return f"head_dim {config.head_dim} is not 16, 32 or 64, or d_ffn {config.d_ffn} no multiple of {WIDTH}"
    return None


def unsupported_window(config: PolicyConfig, narrow: bool) -> str | None:
    """Why windows of this policy are, or None."""
    return unsupported(config, narrow) or ("policy.recompute is set" if config.recompute else None)
