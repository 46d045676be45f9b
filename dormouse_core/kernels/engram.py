"""Reading n-gram tables (Engram, 2601.07372), and the gradient of their rows. The kernels are in gpu/engram.py.

The gradient of a row is the sum over everything that read it, in the order of the window: rows are sorted and each run
is added up by one program, so two runs give the same bits. Atomic additions would not.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse_core.kernels.dispatch import Op, run, wanted


def _gather(rows_N3: Tensor, table_RM: Tensor) -> tuple[Tensor]:
    return (F.embedding(rows_N3, table_RM).flatten(1),)


def _scatter(rows_N3: Tensor, d_read_NX: Tensor, n_rows: int) -> tuple[Tensor]:
    d_read_AM = d_read_NX.reshape(rows_N3.numel(), -1)
    exact = torch.float32 if d_read_AM.dtype == torch.bfloat16 else d_read_AM.dtype
    total_RM = d_read_AM.new_zeros(n_rows, d_read_AM.shape[1], dtype=exact)
    return (total_RM.index_add_(0, rows_N3.flatten(), d_read_AM.to(exact)).to(d_read_AM.dtype),)


GATHER = Op("engram_gather", "engram.gather", _gather)
SCATTER = Op("engram_scatter", "engram.scatter", _scatter)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_N3: Tensor, table_RM: Tensor) -> Tensor:
        ctx.save_for_backward(rows_N3)
        ctx.n_rows = len(table_RM)
        return run(GATHER, rows_N3, table_RM)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_read_NX: Tensor) -> tuple[None, Tensor]:
        return None, run(SCATTER, *ctx.saved_tensors, d_read_NX, ctx.n_rows)[0]


def gather(rows_N3: Tensor, table_RM: Tensor) -> Tensor:
    """The rows [N, 3 * m] of a table [R, m] at rows_N3, int64, side by side. Differentiable in the table.

    A row outside the table raises on the CPU and reads NaN in the kernel, so a loss that used it is refused.
    """
    if not wanted(table_RM):
        return F.embedding(rows_N3, table_RM).flatten(1)
    out: Tensor = _Gather.apply(rows_N3, table_RM)
    return out
