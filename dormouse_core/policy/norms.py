"""Normalisations, weightless: the weights are folded into the projections that follow (policy/fuse.py)."""

import torch
from torch import Tensor


def rms_normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension, in the precision of x (fp32 here)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def l2_normalise(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension: the unit keys and queries of KDA."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)
