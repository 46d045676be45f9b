# mypy: disable-error-code="no-untyped-def"
"""KDA in Triton: a chunk-wise forward and backward, and one byte of the recurrence. Names and equations: kernels/kda.py.

One program a row (a head of a sequence) walks the row's chunks with the state in registers. The backward walks them from
the end and computes a chunk's inner tensors again from its inputs and the state it was entered with, so the forward keeps
nothing else. Blocks are padded: rows past the chunk have g = beta = k = 0 and leave every sum as it is.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dormouse_core.kernels.gpu.common import accumulator, dot, padded

MAX_WIDTH = 128
"""Widest head whose state is kept in registers."""
STEP_COLUMNS = 32
"""Value columns a program of the recurrent step owns: columns of the state are independent, and few lanes need many programs."""


@triton.jit
def _rows(pointer, chunk, C: tl.constexpr, W: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr, ACC: tl.constexpr):
    """Chunk number `chunk` of a [.., C, W] tensor as [BC, BW], zero-padded."""
    c, w = tl.arange(0, BC), tl.arange(0, BW)
    inside = (c[:, None] < C) & (w[None, :] < W)
    return tl.load(pointer + chunk * C * W + c[:, None] * W + w[None, :], mask=inside, other=0.0).to(ACC)


@triton.jit
def _store_rows(pointer, chunk, x, C: tl.constexpr, W: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr):
    c, w = tl.arange(0, BC), tl.arange(0, BW)
    tl.store(pointer + chunk * C * W + c[:, None] * W + w[None, :], x, mask=(c[:, None] < C) & (w[None, :] < W))


@triton.jit
def _matrix(pointer, n, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ACC: tl.constexpr):
    """Matrix number n of a [.., K, V] tensor."""
    return _rows(pointer, n, K, V, BK, BV, ACC)


@triton.jit
def _inverse(system, C: tl.constexpr, BC: tl.constexpr, ACC: tl.constexpr):
    """(I + system)^-1 of a strictly lower triangle, row by row: no powers, whose binomials would cancel when keys repeat."""
    c = tl.arange(0, BC)
    inverse = tl.where(c[:, None] == c[None, :], 1.0, 0.0).to(ACC)
    for i in range(1, C):
        here = c[:, None] == i
        row = tl.sum(tl.where(here, system, 0.0), 0)
        inverse = tl.where(here, inverse - tl.sum(row[:, None] * inverse, 0)[None, :], inverse)
    return inverse


@triton.jit
def _chunk(q, k, g, beta, rate, C: tl.constexpr, BC: tl.constexpr, ACC: tl.constexpr):
    """What does not depend on the state: (grow, query, key, k_in, inner, attend, inverse, carry)."""
    c = tl.arange(0, BC)
    lower, strict = c[:, None] >= c[None, :], c[:, None] > c[None, :]
    grow = tl.exp(dot(tl.where(lower, rate, 0.0).to(ACC), g, ACC))
    query, key, k_in = q * grow, k * grow, k / grow
    k_in_t = tl.trans(k_in)
    attend = tl.where(lower, dot(query, k_in_t, ACC), 0.0)
    inner = tl.where(strict, dot(key, k_in_t, ACC), 0.0)
    inverse = _inverse(inner * beta[:, None], C, BC, ACC)
    carry = tl.sum(tl.where(c[:, None] == C - 1, grow, 0.0), 0)
    return grow, query, key, k_in, inner, attend, inverse, carry


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, out_ptr, entry_ptr, rate, n_chunks, n_rows,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ACC: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BC)
    state = _matrix(state_ptr, row, K, V, BK, BV, ACC)
    _store_rows(entry_ptr, row, state, K, V, BK, BV)
    for i in range(0, n_chunks):
        at = i * n_rows + row
        q, k = _rows(q_ptr, at, C, K, BC, BK, ACC), _rows(k_ptr, at, C, K, BC, BK, ACC)
        v, g = _rows(v_ptr, at, C, V, BC, BV, ACC), _rows(g_ptr, at, C, K, BC, BK, ACC)
        beta = tl.load(beta_ptr + at * C + c, mask=c < C, other=0.0).to(ACC)
        _, query, key, k_in, _, attend, inverse, carry = _chunk(q, k, g, beta, rate, C, BC, ACC)
        write = inverse * beta[None, :]
        residue = dot(write, v - dot(key, state, ACC), ACC)
        _store_rows(out_ptr, at, dot(query, state, ACC) + dot(attend, residue, ACC), C, V, BC, BV)
        state = (state + dot(tl.trans(k_in), residue, ACC)) * carry[:, None]
        _store_rows(entry_ptr, at + n_rows, state, K, V, BK, BV)


@triton.jit
def _backward(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, entry_ptr, d_out_ptr, d_final_ptr, dq_ptr, dk_ptr, dv_ptr, dg_ptr, dbeta_ptr, d_state_ptr,
    rate, n_chunks, n_rows,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ACC: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BC)
    lower, strict = c[:, None] >= c[None, :], c[:, None] > c[None, :]
    d_next = _matrix(d_final_ptr, row, K, V, BK, BV, ACC)
    following = _matrix(entry_ptr, n_chunks * n_rows + row, K, V, BK, BV, ACC)
    for back in range(0, n_chunks):
        at = (n_chunks - 1 - back) * n_rows + row
        q, k = _rows(q_ptr, at, C, K, BC, BK, ACC), _rows(k_ptr, at, C, K, BC, BK, ACC)
        v, g = _rows(v_ptr, at, C, V, BC, BV, ACC), _rows(g_ptr, at, C, K, BC, BK, ACC)
        beta = tl.load(beta_ptr + at * C + c, mask=c < C, other=0.0).to(ACC)
        d_out = _rows(d_out_ptr, at, C, V, BC, BV, ACC)
        entry = _matrix(entry_ptr, at, K, V, BK, BV, ACC)
        grow, query, key, k_in, inner, attend, inverse, carry = _chunk(q, k, g, beta, rate, C, BC, ACC)
        write_t, read = tl.trans(inverse * beta[None, :]), v - dot(key, entry, ACC)
        residue = dot(tl.trans(write_t), read, ACC)
        # through the output and the state's update
        d_sum = d_next * carry[:, None]
        d_residue = dot(tl.trans(attend), d_out, ACC) + dot(k_in, d_sum, ACC)
        d_read = dot(write_t, d_residue, ACC)
        d_entry = dot(tl.trans(query), d_out, ACC) + d_sum - dot(tl.trans(key), d_read, ACC)
        # through (I + diag(beta) inner)^-1 diag(beta)
        d_write = dot(d_residue, tl.trans(read), ACC)
        inverse_t = tl.trans(inverse)
        d_system = dot(dot(inverse_t, d_write * beta[None, :], ACC), inverse_t, ACC)
        d_system = tl.where(strict, -d_system, 0.0)
        d_beta = tl.sum(d_write * inverse, 0) + tl.sum(d_system * inner, 1)
        d_inner = d_system * beta[:, None]
        d_attend = tl.where(lower, dot(d_out, tl.trans(residue), ACC), 0.0)
        # to what was loaded
        d_query = (dot(d_out, tl.trans(entry), ACC) + dot(d_attend, k_in, ACC)) * grow
        d_key = (dot(d_inner, k_in, ACC) - dot(d_read, tl.trans(entry), ACC)) * grow
        d_k_in = dot(residue, tl.trans(d_sum), ACC) + dot(tl.trans(d_inner), key, ACC) + dot(tl.trans(d_attend), query, ACC)
        d_k_in = d_k_in / grow
        d_cum = d_query * q + d_key * k - d_k_in * k
        d_cum += tl.where(c[:, None] == C - 1, tl.sum(following * d_next, 1)[None, :], 0.0)
        d_g = dot(tl.where(c[:, None] <= c[None, :], rate, 0.0).to(ACC), d_cum, ACC)
        _store_rows(dq_ptr, at, d_query, C, K, BC, BK)
        _store_rows(dk_ptr, at, d_key + d_k_in, C, K, BC, BK)
        _store_rows(dv_ptr, at, d_read, C, V, BC, BV)
        _store_rows(dg_ptr, at, d_g, C, K, BC, BK)
        tl.store(dbeta_ptr + at * C + c, d_beta, mask=c < C)
        d_next, following = d_entry, entry
    _store_rows(d_state_ptr, row, d_next, K, V, BK, BV)


@triton.jit
def _step(
    qk_ptr, v_ptr, alpha_ptr, beta_ptr, state_ptr, out_ptr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ACC: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BK), tl.program_id(1) * BV + tl.arange(0, BV)
    in_k, in_v = i < K, j < V
    q = tl.load(qk_ptr + row * 2 * K + i, mask=in_k, other=0.0).to(ACC)
    k = tl.load(qk_ptr + row * 2 * K + K + i, mask=in_k, other=0.0).to(ACC)
    alpha = tl.load(alpha_ptr + row * K + i, mask=in_k, other=0.0).to(ACC)
    v = tl.load(v_ptr + row * V + j, mask=in_v, other=0.0).to(ACC)
    beta = tl.load(beta_ptr + row).to(ACC)
    at, inside = state_ptr + row * K * V + i[:, None] * V + j[None, :], in_k[:, None] & in_v[None, :]
    state = tl.load(at, mask=inside, other=0.0).to(ACC) * alpha[:, None]
    delta = beta * (v - tl.sum(state * k[:, None], 0))
    state += k[:, None] * delta[None, :]
    tl.store(at, state, mask=inside)
    tl.store(out_ptr + row * V + j, tl.sum(state * q[:, None], 0), mask=in_v)


def _sizes(k: Tensor, v: Tensor, dtype_of: Tensor) -> dict[str, object]:
    chunk, width, values = k.shape[2], k.shape[3], v.shape[3]
    if max(width, values) > MAX_WIDTH:
        raise NotImplementedError(f"heads of width {max(width, values)}: the kernel keeps at most {MAX_WIDTH} x {MAX_WIDTH} in registers")
    blocks = {"BC": padded(chunk), "BK": padded(width), "BV": padded(values)}
    warps = 8 if max(width, values) > 32 else 4  # with four, the compiler ran out of registers at width 64
    return {"C": chunk, "K": width, "V": values, **blocks, "ACC": accumulator(dtype_of), "num_warps": warps}


def forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """(o [G, N, C, V], the states chunks were entered with and the final one [G + 1, N, K, V])."""
    n_chunks, n_rows = k.shape[:2]
    out, entry = torch.empty_like(v), state.new_empty(n_chunks + 1, *state.shape)
    args = [x.contiguous() for x in (q, k, v, g, beta, state)]
    _forward[(n_rows,)](*args, out, entry, rate, n_chunks, n_rows, **_sizes(k, v, state))
    return out, entry


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, entry: Tensor, d_out: Tensor, d_state: Tensor, rate: float
) -> tuple[Tensor, ...]:
    """Gradients of (q, k, v, g, beta, state)."""
    n_chunks, n_rows = k.shape[:2]
    args = [x.contiguous() for x in (q, k, v, g, beta, entry, d_out, d_state)]
    grads = [torch.empty_like(x) for x in (*args[:5], args[7])]
    _backward[(n_rows,)](*args, *grads, rate, n_chunks, n_rows, **_sizes(k, v, entry))
    return tuple(grads)


def step(qk_BH2K: Tensor, v_BHV: Tensor, alpha_BHK: Tensor, beta_BH1: Tensor, state_BHKV: Tensor) -> tuple[Tensor]:
    """One byte; the state moves in place."""
    batch, heads, width, values = state_BHKV.shape
    if not state_BHKV.is_contiguous():
        raise NotImplementedError("a state that is not contiguous")
    block = min(STEP_COLUMNS, padded(values))
    out = torch.empty_like(v_BHV, memory_format=torch.contiguous_format)
    args = [x.contiguous() for x in (qk_BH2K, v_BHV, alpha_BHK, beta_BH1)]
    _step[(batch * heads, triton.cdiv(values, block))](
        *args, state_BHKV, out, K=width, V=values, BK=padded(width), BV=block, ACC=accumulator(state_BHKV))
    return (out,)
