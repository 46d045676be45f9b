# mypy: disable-error-code="no-untyped-def"
"""Grouped low-rank products in Triton. Contract and names: kernels/experts.py.

Products over rows take a tile of 16 assignments of one expert a program. How many tiles there are is known on the device only,
so as many programs start as there could be and the last ones find no tile. Gradients of factors take a block of an expert's
factor a program, which walks the expert's assignments and writes zeros where it has none.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dormouse_core.kernels.experts import TILE
from dormouse_core.kernels.gpu.common import accumulator, dot, padded

MAX_RANK = 128
"""Widest rank whose rows are kept in registers."""
WIDE = 64
"""Columns of the model's or the expert's width a program takes at once."""
WIDE_FACTORS = 32
"""The same where a program holds two factors and both their gradients: at 64 the compiler spilled them (rank 64, sm_80)."""
WARPS = 8
"""With four, the compiler ran out of registers at rank 64."""


@triton.jit
def _tile(start_ptr, tiles_ptr, E: tl.constexpr, BE: tl.constexpr, BA: tl.constexpr):
    """(expert, assignments [BA], which of them are its own) of this program's tile; expert E when there is none."""
    tile, e = tl.program_id(0), tl.arange(0, BE)
    upto = tl.load(tiles_ptr + e, mask=e < E, other=0)
    expert = tl.sum(((upto <= tile) & (e < E)).to(tl.int64), 0)
    before = tl.max(tl.where(e < expert, upto, 0), 0)
    first = tl.load(start_ptr + tl.minimum(expert, E)) + (tile - before) * BA
    last = tl.load(start_ptr + tl.minimum(expert + 1, E))
    a = first + tl.arange(0, BA)
    return expert, a, a < last


@triton.jit
def _block(pointer, expert, column, inside, r, W: tl.constexpr, R: tl.constexpr, ACC: tl.constexpr):
    """Rows `column` of an expert's factor [W, R]."""
    at = pointer + expert * W * R + column[:, None] * R + r[None, :]
    return tl.load(at, mask=inside[:, None] & (r[None, :] < R), other=0.0).to(ACC)


@triton.jit
def _row(pointer, a, own, r, R: tl.constexpr, ACC: tl.constexpr):
    """Rows a of a tensor of width R; r need not be all of its columns."""
    return tl.load(pointer + a[:, None] * R + r[None, :], mask=own[:, None] & (r[None, :] < R), other=0.0).to(ACC)


@triton.jit
def _in(
    x_ptr, row_ptr, w_ptr, start_ptr, tiles_ptr, out_ptr, E: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    BE: tl.constexpr, BA: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, ACC: tl.constexpr,
):
    expert, a, own = _tile(start_ptr, tiles_ptr, E, BE, BA)
    if expert < E:
        r = tl.arange(0, BR)
        row = tl.load(row_ptr + a, mask=own, other=0)
        total = tl.zeros([BA, BR], ACC)
        for first in range(0, D, BD):
            d = first + tl.arange(0, BD)
            total += dot(_row(x_ptr, row, own, d, D, ACC), _block(w_ptr, expert, d, d < D, r, D, R, ACC), ACC)
        tl.store(out_ptr + a[:, None] * R + r[None, :], total, mask=own[:, None] & (r[None, :] < R))


@triton.jit
def _out(
    code_ptr, w_ptr, start_ptr, tiles_ptr, out_ptr, E: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    BE: tl.constexpr, BA: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, ACC: tl.constexpr,
):
    expert, a, own = _tile(start_ptr, tiles_ptr, E, BE, BA)
    if expert < E:
        r, d = tl.arange(0, BR), tl.program_id(1) * BD + tl.arange(0, BD)
        y = dot(_row(code_ptr, a, own, r, R, ACC), tl.trans(_block(w_ptr, expert, d, d < D, r, D, R, ACC)), ACC)
        tl.store(out_ptr + a[:, None] * D + d[None, :], y, mask=own[:, None] & (d[None, :] < D))


@triton.jit
def _inner(
    code_ptr, v_ptr, u_ptr, start_ptr, tiles_ptr, out_ptr, E: tl.constexpr, F: tl.constexpr, R: tl.constexpr,
    BE: tl.constexpr, BA: tl.constexpr, BF: tl.constexpr, BR: tl.constexpr, ACC: tl.constexpr,
):
    expert, a, own = _tile(start_ptr, tiles_ptr, E, BE, BA)
    if expert < E:
        r = tl.arange(0, BR)
        code, total = _row(code_ptr, a, own, r, R, ACC), tl.zeros([BA, BR], ACC)
        for first in range(0, F, BF):
            f = first + tl.arange(0, BF)
            z = dot(code, tl.trans(_block(v_ptr, expert, f, f < F, r, F, R, ACC)), ACC)
            total += dot(z / (1.0 + tl.exp(-z)), _block(u_ptr, expert, f, f < F, r, F, R, ACC), ACC)
        tl.store(out_ptr + a[:, None] * R + r[None, :], total, mask=own[:, None] & (r[None, :] < R))


@triton.jit
def _silu_backward(d_h, z):
    open_ = 1.0 / (1.0 + tl.exp(-z))
    return d_h * open_ * (1.0 + z * (1.0 - open_))


@triton.jit
def _inner_rows(
    code_ptr, v_ptr, u_ptr, d_mid_ptr, start_ptr, tiles_ptr, out_ptr, E: tl.constexpr, F: tl.constexpr, R: tl.constexpr,
    BE: tl.constexpr, BA: tl.constexpr, BF: tl.constexpr, BR: tl.constexpr, ACC: tl.constexpr,
):
    """What flows back to code."""
    expert, a, own = _tile(start_ptr, tiles_ptr, E, BE, BA)
    if expert < E:
        r = tl.arange(0, BR)
        code, d_mid = _row(code_ptr, a, own, r, R, ACC), _row(d_mid_ptr, a, own, r, R, ACC)
        total = tl.zeros([BA, BR], ACC)
        for first in range(0, F, BF):
            f = first + tl.arange(0, BF)
            v, u = _block(v_ptr, expert, f, f < F, r, F, R, ACC), _block(u_ptr, expert, f, f < F, r, F, R, ACC)
            d_z = _silu_backward(dot(d_mid, tl.trans(u), ACC), dot(code, tl.trans(v), ACC))
            total += dot(d_z, v, ACC)
        tl.store(out_ptr + a[:, None] * R + r[None, :], total, mask=own[:, None] & (r[None, :] < R))


@triton.jit
def _inner_factors(
    code_ptr, v_ptr, u_ptr, d_mid_ptr, start_ptr, d_v_ptr, d_u_ptr, F: tl.constexpr, R: tl.constexpr,
    BA: tl.constexpr, BF: tl.constexpr, BR: tl.constexpr, ACC: tl.constexpr,
):
    """What flows back to a block of an expert's two inner factors."""
    expert, r = tl.program_id(0).to(tl.int64), tl.arange(0, BR)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    d_v, d_u = tl.zeros([BF, BR], ACC), tl.zeros([BF, BR], ACC)
    start, last = tl.load(start_ptr + expert), tl.load(start_ptr + expert + 1)
    if start < last:
        v, u = _block(v_ptr, expert, f, f < F, r, F, R, ACC), _block(u_ptr, expert, f, f < F, r, F, R, ACC)
        for first in range(start, last, BA):
            a = first + tl.arange(0, BA)
            code, d_mid = _row(code_ptr, a, a < last, r, R, ACC), _row(d_mid_ptr, a, a < last, r, R, ACC)
            z = dot(code, tl.trans(v), ACC)
            d_u += dot(tl.trans(z / (1.0 + tl.exp(-z))), d_mid, ACC)
            d_v += dot(tl.trans(_silu_backward(dot(d_mid, tl.trans(u), ACC), z)), code, ACC)
    at, inside = expert * F * R + f[:, None] * R + r[None, :], (f[:, None] < F) & (r[None, :] < R)
    tl.store(d_v_ptr + at, d_v, mask=inside)
    tl.store(d_u_ptr + at, d_u, mask=inside)


@triton.jit
def _weight(
    x_ptr, row_ptr, d_code_ptr, start_ptr, out_ptr, D: tl.constexpr, R: tl.constexpr,
    BA: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, ACC: tl.constexpr,
):
    """What flows back to a block of an expert's outer factor."""
    expert, r = tl.program_id(0).to(tl.int64), tl.arange(0, BR)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    total, last = tl.zeros([BD, BR], ACC), tl.load(start_ptr + expert + 1)
    for first in range(tl.load(start_ptr + expert), last, BA):
        a = first + tl.arange(0, BA)
        x = _row(x_ptr, tl.load(row_ptr + a, mask=a < last, other=0), a < last, d, D, ACC)
        total += dot(tl.trans(x), _row(d_code_ptr, a, a < last, r, R, ACC), ACC)
    tl.store(out_ptr + expert * D * R + d[:, None] * R + r[None, :], total, mask=(d[:, None] < D) & (r[None, :] < R))


def _tiles(n: int, n_experts: int) -> int:
    """As many tiles as n assignments can need."""
    return min(n, n_experts) + n // TILE


def _sizes(rank: int, like: Tensor) -> dict[str, object]:
    if rank > MAX_RANK:
        raise NotImplementedError(f"experts of rank {rank}: the kernel keeps at most {MAX_RANK} in registers")
    return {"R": rank, "BR": padded(rank), "BA": TILE, "ACC": accumulator(like), "num_warps": WARPS}


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _block_of(width: int, most: int = WIDE) -> int:
    return min(most, padded(width))


def grouped_in(x_ND: Tensor, row_A: Tensor, w_EDR: Tensor, start_E: Tensor, tiles_E: Tensor) -> tuple[Tensor]:
    (n_experts, d, rank), n = w_EDR.shape, len(row_A)
    out = x_ND.new_empty(n, rank, dtype=_wide(x_ND))
    if n:
        _in[(_tiles(n, n_experts),)](
            x_ND.contiguous(), row_A, w_EDR.contiguous(), start_E, tiles_E, out, E=n_experts, D=d, BE=padded(n_experts, 1),
            BD=_block_of(d), **_sizes(rank, x_ND))
    return (out,)


def grouped_out(code_AR: Tensor, w_EDR: Tensor, start_E: Tensor, tiles_E: Tensor) -> tuple[Tensor]:
    (n_experts, d, rank), n = w_EDR.shape, len(code_AR)
    out = code_AR.new_empty(n, d, dtype=_wide(code_AR))
    if n:
        _out[(_tiles(n, n_experts), triton.cdiv(d, _block_of(d)))](
            code_AR.contiguous(), w_EDR.contiguous(), start_E, tiles_E, out, E=n_experts, D=d, BE=padded(n_experts, 1),
            BD=_block_of(d), **_sizes(rank, code_AR))
    return (out,)


def grouped_weight(x_ND: Tensor, row_A: Tensor, d_code_AR: Tensor, start_E: Tensor, dtype: torch.dtype) -> tuple[Tensor]:
    (d, rank), n_experts = (x_ND.shape[1], d_code_AR.shape[1]), len(start_E) - 1
    out = x_ND.new_empty(n_experts, d, rank, dtype=dtype)
    _weight[(n_experts, triton.cdiv(d, _block_of(d)))](
        x_ND.contiguous(), row_A, d_code_AR.contiguous(), start_E, out, D=d, BD=_block_of(d), **_sizes(rank, x_ND))
    return (out,)


def inner(code_AR: Tensor, v_EFR: Tensor, u_EFR: Tensor, start_E: Tensor, tiles_E: Tensor) -> tuple[Tensor]:
    (n_experts, f, rank), n = v_EFR.shape, len(code_AR)
    out = code_AR.new_empty(n, rank, dtype=_wide(code_AR))
    if n:
        _inner[(_tiles(n, n_experts),)](
            code_AR.contiguous(), v_EFR.contiguous(), u_EFR.contiguous(), start_E, tiles_E, out, E=n_experts, F=f,
            BE=padded(n_experts, 1), BF=_block_of(f), **_sizes(rank, code_AR))
    return (out,)


def inner_backward(
    code_AR: Tensor, v_EFR: Tensor, u_EFR: Tensor, d_mid_AR: Tensor, start_E: Tensor, tiles_E: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    (n_experts, f, rank), n = v_EFR.shape, len(code_AR)
    d_code = code_AR.new_empty(n, rank, dtype=_wide(code_AR))
    d_v, d_u = (x.new_empty(x.shape) for x in (v_EFR, u_EFR))
    args, sizes = [x.contiguous() for x in (code_AR, v_EFR, u_EFR, d_mid_AR)], _sizes(rank, code_AR)
    if n:
        _inner_rows[(_tiles(n, n_experts),)](
            *args, start_E, tiles_E, d_code, E=n_experts, F=f, BE=padded(n_experts, 1), BF=_block_of(f), **sizes)
    block = _block_of(f, WIDE_FACTORS)
    _inner_factors[(n_experts, triton.cdiv(f, block))](*args, start_E, d_v, d_u, F=f, BF=block, **sizes)
    return d_code, d_v, d_u
