"""Initial values. Every tensor draws from a generator of its own, named by (seed, tensor name): adding or removing a
parameter changes no other one, and the values do not depend on the order of construction.
"""

import math

import torch
from torch import Tensor

from dormouse_core.seeding import key

_QR_AT_ONCE = 32


def generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(key("policy-init", seed, name))


def normal(shape: tuple[int, ...], std: float, rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng) * std


def fan_in_uniform(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Uniform in +-1/sqrt(fan_in); the last dimension is the fan-in."""
    return (torch.rand(shape, generator=rng) * 2 - 1) / math.sqrt(shape[-1])


def orthonormal(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """[..., m, r] with orthonormal columns (r <= m), by QR in fp64 with the sign of R's diagonal taken out. A few matrices at a
    time: all experts of a large policy at once would take four copies in fp64."""
    drawn = torch.randn(shape, generator=rng, dtype=torch.float64).view(-1, *shape[-2:])
    out = torch.empty(drawn.shape)
    for i in range(0, len(drawn), _QR_AT_ONCE):
        q, r = torch.linalg.qr(drawn[i : i + _QR_AT_ONCE])
        out[i : i + _QR_AT_ONCE] = q * torch.sign(torch.diagonal(r, dim1=-2, dim2=-1)).unsqueeze(-2)
    return out.view(shape)


def fan_in_scale(n_out: int, rank: int) -> float:
    """Scale of a factored linear that gives unit-variance input an output variance of 1/3, as a fan-in uniform would."""
    return math.sqrt(n_out / (3 * rank))


def head_ramp(ends: tuple[float, float], heads: int, width: int) -> Tensor:
    """[width]: one value a head, evenly from the first end to the second, repeated over the head's channels."""
    return torch.linspace(ends[0], ends[1], heads).repeat_interleave(width // heads)
