"""Muon+ (2602.21545) over stacks of matrices: momentum, Newton-Schulz (Muon), columns then rows to unit length, a relative step.

    M <- mu M + (1 - mu) G
    X_0 = M / |M|_F,   X <- a X + (b A + c A A) X  with  A = X X^T  (the shorter side first)
    O = rows_to_1(columns_to_1(X));   W <- (1 - wd lr) W - eta O,   eta = rho N / sqrt(m)

W [m, n] has m rows, so |O|_F = sqrt(m) and the step is rho times N. N is sqrt(n) for a factor, whose n columns are orthonormal,
and the entry's own Frobenius norm elsewhere. One learning rate for all would move a [2048, 64] factor 29 times and a
[5632, 64] factor 80 times as far, in proportion, as a head's block of the queries. An entry that is left out rests.
Newton-Schulz leaves singular values near 1, not at it: it is no retraction (optim/retraction.py).
"""

import math

import torch
from torch import Tensor

from dormouse_core.config.optimizer import MuonRow
from dormouse_core.optim.precision import Index, Slot, chunks, put, take

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NORM_EPS, UNIT_EPS = 1e-7, 1e-12
SMALLEST_RMS = 1e-3
"""A weight that is no factor steps as if its entries were at least this large, so that one of zeros can leave zero."""


def newton_schulz(matrix_SMN: Tensor, steps: int) -> Tensor:
    """Approximate polar factor of each matrix of a stack, fp32: its singular vectors, with singular values pushed towards 1."""
    tall = matrix_SMN.shape[-2] > matrix_SMN.shape[-1]
    x = matrix_SMN.mT if tall else matrix_SMN
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_min(NORM_EPS)
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def direction(momentum_SMN: Tensor, steps: int) -> Tensor:
    """O of each matrix: the polar factor, its columns and then its rows at unit length. Rows of zeros stay zero."""
    out = newton_schulz(momentum_SMN, steps)
    out = out / torch.linalg.vector_norm(out, dim=-2, keepdim=True).clamp_min(UNIT_EPS)
    return out / torch.linalg.vector_norm(out, dim=-1, keepdim=True).clamp_min(UNIT_EPS)


def step_size(weight_SMN: Tensor, relative_step: float, orthonormal: bool) -> Tensor:
    """eta of each entry, [S, 1, 1]. orthonormal: by shape alone."""
    entries, rows, columns = weight_SMN.shape
    if orthonormal:
        return weight_SMN.new_full((entries, 1, 1), relative_step * math.sqrt(columns / rows))
    norm = torch.linalg.vector_norm(weight_SMN, dim=(-2, -1), keepdim=True).clamp_min(SMALLEST_RMS * math.sqrt(rows * columns))
    return norm * (relative_step / math.sqrt(rows))


def muon_step(slot: Slot, live: Index, row: MuonRow, schedule: float, lr: float, orthonormal: bool, step: int) -> None:
    """One step of the live entries of a stack. schedule: where the learning rate stands between 0 and its peak 1."""
    if "momentum" not in slot.state:
        dtype = torch.float32 if row.momentum_dtype == "float32" else torch.bfloat16
        slot.state["momentum"] = torch.zeros_like(slot.parameter, dtype=dtype)
    stack, grad = slot.state["momentum"].view(slot.shape), slot.grad
    for index in chunks(slot, live):
        momentum = take(stack, index)
        momentum.lerp_(take(grad, index), 1 - row.momentum)
        put(stack, index, momentum, slot.stream("momentum", step))
        out = direction(momentum, row.ns_steps)
        weight = slot.read(index)
        eta = step_size(weight, row.relative_step * schedule, orthonormal)
        if row.weight_decay:
            weight.mul_(1 - row.weight_decay * lr)
        weight.sub_(out.mul_(eta))
        slot.write(index, weight, step)
