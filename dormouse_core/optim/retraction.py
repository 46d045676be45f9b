"""Retraction of factors to orthonormal columns, batched by stack, and the monitor of how far they are from it.

W [m, r] <- W (15/8 - 5/4 A + 3/8 A A),  A = W^T W: the cubic-order polar iteration, which keeps the span of the columns. It
converges for singular values in (0, 1.527); W is first divided by sqrt(|A|_inf), a bound on the largest one that is tight where
the columns are nearly orthonormal, so no start can diverge. Muon's polynomial is another one: it does not end at exactly 1.
The monitor is |W^T W - I|_F / r of each entry; the undivided norm grows with the rank and says nothing across presets.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dormouse_core.optim.precision import CHUNK, Index, Slot, chunks

COEFFICIENTS = (15 / 8, -5 / 4, 3 / 8)


class Worst(NamedTuple):
    """The entry furthest from orthonormal columns: parameter, entry of its stack, |W^T W - I|_F / r."""

    name: str
    entry: int
    error: float


def polar(weight_SMR: Tensor, iterations: int) -> Tensor:
    """Nearest matrices with orthonormal columns (r <= m), by `iterations` of the polynomial."""
    w = weight_SMR
    a, b, c = COEFFICIENTS
    for at in range(iterations):
        gram = torch.bmm(w.mT, w)
        if at == 0:
            bound = gram.abs().sum(-1).amax(-1)[:, None, None].clamp_min(torch.finfo(w.dtype).tiny)
            w, gram = w / bound.sqrt(), gram / bound
        step = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        step.diagonal(dim1=-2, dim2=-1).add_(a)
        w = torch.bmm(w, step)
    return w


def retract(slot: Slot, live: Index, iterations: int, step: int) -> None:
    """Retract the live entries of a stack, as it is held (a master where there is one)."""
    for index in chunks(slot, live):
        weight = slot.read(index)
        weight.copy_(polar(weight, iterations))
        slot.write(index, weight, step)


def errors(weight_SMR: Tensor) -> Tensor:
    """[S]: |W^T W - I|_F / r of each entry, fp32, some entries at a time: a large stack has no room for a copy in fp32."""
    return torch.cat([_errors(part.float()) for part in weight_SMR.split(max(1, CHUNK // weight_SMR[0].numel()))])


def _errors(w: Tensor) -> Tensor:
    gram = torch.bmm(w.mT, w)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return torch.linalg.vector_norm(gram, dim=(-2, -1)) / w.shape[-1]


@torch.no_grad()
def worst(factors: Mapping[str, nn.Parameter]) -> Worst:
    """The worst entry over parameters [m, r] and stacks [E, m, r]. Raises ValueError without any."""
    found = []
    for name, p in factors.items():
        error_S = errors(p if p.dim() == 3 else p.unsqueeze(0))
        entry = int(error_S.argmax())
        found.append(Worst(name, entry, float(error_S[entry])))
    return max(found, key=lambda w: w.error)
