# mypy: disable-error-code="no-untyped-def"
"""The n-gram tables in Triton: gather, and the sum of what flows back to each row. Contract: kernels/engram.py."""

import triton
import triton.language as tl
from torch import Tensor

from dormouse_core.kernels.gpu.common import accumulator, padded

BLOCK = 16
"""Rows a gathering program reads."""


@triton.jit
def _gather(rows_ptr, table_ptr, out_ptr, n, n_rows, M: tl.constexpr, BA: tl.constexpr, BM: tl.constexpr):
    a, m = tl.program_id(0).to(tl.int64) * BA + tl.arange(0, BA), tl.arange(0, BM)
    row = tl.load(rows_ptr + a, mask=a < n, other=0)
    known = (row >= 0) & (row < n_rows)
    cell = tl.load(table_ptr + row[:, None] * M + m[None, :], mask=known[:, None] & (m[None, :] < M), other=float("nan"))
    tl.store(out_ptr + a[:, None] * M + m[None, :], cell, mask=(a[:, None] < n) & (m[None, :] < M))


@triton.jit
def _scatter(sorted_ptr, order_ptr, d_ptr, out_ptr, n, M: tl.constexpr, BM: tl.constexpr, ACC: tl.constexpr):
    """The program at the head of a run of equal rows adds the run up; the others have nothing to do."""
    at, m = tl.program_id(0).to(tl.int64), tl.arange(0, BM)
    row = tl.load(sorted_ptr + at)
    before = tl.load(sorted_ptr + at - 1, mask=at > 0, other=-1)
    if row != before:
        total = tl.zeros([BM], ACC)
        while tl.load(sorted_ptr + at, mask=at < n, other=-1) == row:
            source = tl.load(order_ptr + at)
            total += tl.load(d_ptr + source * M + m, mask=m < M, other=0.0).to(ACC)
            at += 1
        tl.store(out_ptr + row * M + m, total, mask=m < M)


def gather(rows_N3: Tensor, table_RM: Tensor) -> tuple[Tensor]:
    n_rows, width = table_RM.shape
    out_NX = table_RM.new_empty(len(rows_N3), rows_N3.shape[1] * width)
    n = rows_N3.numel()
    if n:
        _gather[(triton.cdiv(n, BLOCK),)](
            rows_N3.contiguous(), table_RM.contiguous(), out_NX, n, n_rows, M=width, BA=BLOCK, BM=padded(width, 1))
    return (out_NX,)


def scatter(rows_N3: Tensor, d_read_NX: Tensor, n_rows: int) -> tuple[Tensor]:
    n = rows_N3.numel()
    width = d_read_NX.shape[1] // rows_N3.shape[1]
    sorted_A, order_A = rows_N3.flatten().sort(stable=True)
    out_RM = d_read_NX.new_zeros(n_rows, width)
    if n:
        _scatter[(n,)](
            sorted_A, order_A, d_read_NX.contiguous(), out_RM, n, M=width, BM=padded(width, 1), ACC=accumulator(d_read_NX), num_warps=1)
    return (out_RM,)
