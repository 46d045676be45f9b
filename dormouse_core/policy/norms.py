"""Normalisations and activations whose result for a row does not depend on which rows stand around it.

Norms are weightless: the weights are folded into the projections that follow (policy/block.py). torch's own sigmoid and
SiLU compute the end of a tensor, where a vector register is not filled, by another formula; so they are used only where
rows fill registers, and a form that has one formula everywhere stands in elsewhere.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_REGISTERS = 32
"""Elements of the largest vector step (two 512-bit registers of fp32)."""


def rms_normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension, in the precision of x (fp32 here)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def l2_normalise(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension: the unit keys and queries of KDA."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def sigmoid_rows(x: Tensor) -> Tensor:
    """Sigmoid, the same bits for an element wherever it stands."""
    return torch.sigmoid(x) if x.shape[-1] % _REGISTERS == 0 else x.neg().exp().add(1.0).reciprocal()


def silu_rows(x: Tensor) -> Tensor:
    """SiLU, the same bits for an element wherever it stands."""
    return F.silu(x) if x.shape[-1] % _REGISTERS == 0 else x * x.neg().exp().add(1.0).reciprocal()
