"""Normalisations and activations whose result for a row does not depend on which rows stand around it.

Norms are weightless: the weights are folded into the projections that follow (policy/block.py). torch's own sigmoid and
SiLU compute the end of a tensor, where a vector register is not filled, by another formula; so they are used only where
rows fill registers, and a form that has one formula everywhere stands in elsewhere.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_REGISTERS = 32
"""Elements of the largest vector step (two 512-bit registers of fp32)."""


class _Rms(torch.autograd.Function):
    """RMS normalisation with its backward written out, for fewer passes over the tensor than the taped one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        scale = _inverse_rms(x, eps)
        out = (x * scale).to(x.dtype)
        ctx.save_for_backward(out, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        dtype = d_out.dtype
        out, scale = ctx.saved_tensors
        out, d_out = out.float(), d_out.float()
        along = (out * d_out).sum(-1, keepdim=True)
        return torch.addcmul(d_out, out, along, value=-1 / out.shape[-1]).mul_(scale).to(dtype), None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """fp32, whatever x is."""
    width, x = x.shape[-1], x.float()
    return (x * x).sum(-1, keepdim=True).add_(width * eps).rsqrt_().mul_(width**0.5)


def rms_normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension."""
    if torch.is_grad_enabled() and x.requires_grad:
        out: Tensor = _Rms.apply(x, eps)
        return out
    return (x * _inverse_rms(x, eps)).to(x.dtype)


def summed(x_TXD: Tensor) -> Tensor:
    """The sum over the leading dimension in its order, fp32: torch's own adds the columns that fill no register in another from five terms
    on."""
    first, *others = x_TXD.unbind(0)
    total = first.float()
    for x in others:
        total = total + x.float()
    return total


def sigmoid_rows(x: Tensor) -> Tensor:
    """Sigmoid, the same bits for an element wherever it stands."""
    if x.dtype is torch.bfloat16:
        return sigmoid_rows(x.float()).to(x.dtype)
    return torch.sigmoid(x) if x.shape[-1] % _REGISTERS == 0 else x.neg().exp().add(1.0).reciprocal()


def silu_rows(x: Tensor) -> Tensor:
    """SiLU, the same bits for an element wherever it stands."""
    if x.dtype is torch.bfloat16:
        return silu_rows(x.float()).to(x.dtype)
    return F.silu(x) if x.shape[-1] % _REGISTERS == 0 else x * x.neg().exp().add(1.0).reciprocal()
