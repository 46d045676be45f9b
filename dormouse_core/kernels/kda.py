"""KDA, the gated delta rule (Kimi Delta Attention, 2510.26692): one recurrence in two forms that agree.

Per head, with state S [K, V], decay a_t = exp(g_t) in (0, 1) per key channel and write strength b_t in (0, 1):

    S' = diag(a_t) S_{t-1};   S_t = S' + b_t k_t (v_t - S'^T k_t)^T;   o_t = S_t^T q_t

`kda_step` runs it one byte at a time and updates S in place (decode). `kda_chunked` runs C bytes at a time with dense
products and loops over chunks only (training); its backward is written out: forward and backward together
took about 20 ms where the taped form took 23 to 31 (32 x 100 bytes, 3 heads, a busy machine).
`forward`, `backward` and `kda_step` hand tensors on a GPU to the Triton kernels of gpu/kda.py (kernels/dispatch.py).
Queries arrive scaled; everything is fp32 or fp64.
Not here: projections, normalisation of q and k, the output gate (policy/kda.py).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse_core.kernels.dispatch import Op, run, wanted

MAX_CHUNK = 16
"""exp(-cumulative decay) reaches e^(5 * 16) inside a chunk; e^88 would leave fp32."""


def kda_step(qk_BH2K: Tensor, v_BHV: Tensor, alpha_BHK: Tensor, beta_BH1: Tensor, state_BHKV: Tensor) -> Tensor:
    """One byte for B rows of H heads. Updates the contiguous `state_BHKV` in place, returns o_BHV.

    One product reads S'^T q and S'^T k together; the query then sees the write it has not read yet as (q.k) b delta.
    """
    if wanted(state_BHKV):
        return run(STEP, qk_BH2K, v_BHV, alpha_BHK, beta_BH1, state_BHKV)[0]
    return _step(qk_BH2K, v_BHV, alpha_BHK, beta_BH1, state_BHKV)


def _step(qk_BH2K: Tensor, v_BHV: Tensor, alpha_BHK: Tensor, beta_BH1: Tensor, state_BHKV: Tensor) -> Tensor:
    batch, heads, _, width = qk_BH2K.shape
    state_NKV = state_BHKV.view(batch * heads, width, -1)
    state_BHKV.mul_(alpha_BHK.unsqueeze(-1))
    read_BH2V = torch.bmm(qk_BH2K.reshape(-1, 2, width), state_NKV).view(batch, heads, 2, -1)
    q_BHK, k_BHK = qk_BH2K.unbind(2)
    delta_BHV = (v_BHV - read_BH2V[:, :, 1]).mul_(beta_BH1)
    state_NKV.baddbmm_(k_BHK.reshape(-1, width, 1), delta_BHV.view(-1, 1, delta_BHV.shape[-1]))
    return torch.addcmul(read_BH2V[:, :, 0], (q_BHK * k_BHK).sum(-1, keepdim=True), delta_BHV)


def kda_recurrent(q_NLK: Tensor, k_NLK: Tensor, v_NLV: Tensor, g_NLK: Tensor, beta_NL: Tensor, state_NKV: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence over a whole window, byte by byte: (o_NLV, final state). The plain form the chunked one is held to."""
    state_NKV, out = state_NKV.clone(), []
    qk_NL2K, alpha_NLK = torch.stack((q_NLK, k_NLK), 2), g_NLK.exp()
    for t in range(q_NLK.shape[1]):
        qk, v, alpha, beta = (x[:, t].unsqueeze(1) for x in (qk_NL2K, v_NLV, alpha_NLK, beta_NL.unsqueeze(-1)))
        out.append(kda_step(qk, v, alpha, beta, state_NKV.unsqueeze(1))[:, 0])
    return torch.stack(out, 1), state_NKV


@cache
def _constants(chunk: int, rate: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[C, C]: rate times the lower triangle of ones, the triangle itself, the same without diagonal, identity."""
    ones = torch.ones(chunk, chunk, dtype=dtype, device=device)
    return ones.tril() * rate, ones.tril(), ones.tril(-1), torch.eye(chunk, dtype=dtype, device=device)


class Saved(NamedTuple):
    """What the chunked forward leaves for its backward; names as in `chunk_forward`, upper case for the 16 x 16 ones."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    grow: Tensor
    query: Tensor
    key: Tensor
    k_in: Tensor
    inner: Tensor
    inverse: Tensor
    attend: Tensor
    read: Tensor
    carry: Tensor
    residue: Tensor
    entry: Tensor


def chunk_forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rate: float = 1.0
) -> tuple[Tensor, Tensor, Saved]:
    """q, k, g [G, N, C, K], v [G, N, C, V], beta [G, N, C], all contiguous; state [N, K, V]; log decay is rate * g.

    Per chunk, with c_i the cumulative decay from the chunk's start and c_C its last row:

        Q = q e^c,  Kg = k e^c,  Kin = k e^-c,  N = strictly-lower(Kg Kin^T),  A = lower(Q Kin^T)
        T = (I + diag(beta) N)^-1 diag(beta),   Y = T Kg,   R = T v - Y S
        O = Q S + A R,   S_next = diag(e^(c_C)) (S + Kin^T R)

    Row i reads rows up to i only, rounding included: no reference point inside the chunk, such as its middle, enters c.
    Only R and S_next depend on the chunk before: the loop holds two products. Returns (o, final state, saved).
    """
    n_chunks, rows, chunk, width = q.shape
    summed, lower, strict, eye = _constants(chunk, rate, q.dtype, q.device)
    flat = (n_chunks * rows, chunk, -1)
    cum = torch.matmul(summed, g)
    grow = cum.exp()
    query, key, k_in = q * grow, k * grow, k / grow
    k_in_t = k_in.view(flat).transpose(1, 2)
    attend = torch.bmm(query.view(flat), k_in_t).mul_(lower)
    inner = torch.bmm(key.view(flat), k_in_t).mul_(strict)
    beta_F = beta.view(-1, chunk)
    system = inner * beta_F.unsqueeze(2)
    inverse = torch.linalg.solve_triangular(system, eye.expand_as(system), upper=False, unitriangular=True)
    write = inverse * beta_F.unsqueeze(1)
    read = torch.bmm(write, key.view(flat)).view_as(k)
    residue = torch.bmm(write, v.view(flat)).view_as(v)
    carry = grow[:, :, -1].unsqueeze(-1)
    entry = state.new_empty(n_chunks + 1, *state.shape)
    entry[0] = state
    for i in range(n_chunks):
        residue[i].baddbmm_(read[i], entry[i], alpha=-1)
        torch.baddbmm(entry[i], k_in[i].transpose(1, 2), residue[i], out=entry[i + 1]).mul_(carry[i])
    out = torch.bmm(query.view(flat), entry[:-1].view(n_chunks * rows, width, -1)).baddbmm_(attend, residue.view(flat)).view_as(v)
    return out, entry[-1].clone(), Saved(q, k, v, beta, grow, query, key, k_in, inner, inverse, attend, read, carry, residue, entry)


def chunk_backward(saved: Saved, d_out: Tensor, d_state: Tensor, rate: float = 1.0) -> tuple[Tensor, ...]:
    """Gradients of (q, k, v, g, beta, state) from those of (o, final state). `d_out` is contiguous."""
    q, k, v, beta, grow, query, key, k_in, inner, inverse, attend, read, carry, residue, entry = saved
    n_chunks, rows, chunk, width = k.shape
    summed, lower, strict, _ = _constants(chunk, rate, q.dtype, q.device)
    flat, square = (n_chunks * rows, chunk, -1), (n_chunks * rows, width, -1)
    out_F, query_F, key_F, k_in_F, residue_F = (x.view(flat) for x in (d_out, query, key, k_in, residue))
    d_residue = torch.bmm(attend.transpose(1, 2), out_F).view_as(v)
    d_entry = torch.empty_like(entry)
    torch.bmm(query_F.transpose(1, 2), out_F, out=d_entry[:-1].view(square))
    d_entry[-1] = d_state
    for i in range(n_chunks - 1, -1, -1):
        d_sum = d_entry[i + 1] * carry[i]
        d_residue[i].baddbmm_(k_in[i], d_sum)
        d_entry[i].add_(d_sum).baddbmm_(read[i].transpose(1, 2), d_residue[i], alpha=-1)
    d_residue_F, beta_F = d_residue.view(flat), beta.view(-1, chunk)
    entry_t = entry[:-1].view(square).transpose(1, 2)
    d_read = torch.bmm(d_residue_F, entry_t)
    write_t = (inverse * beta_F.unsqueeze(1)).transpose(1, 2)
    d_write = torch.bmm(d_residue_F, v.view(flat).transpose(1, 2)).baddbmm_(d_read, key_F.transpose(1, 2), alpha=-1)
    d_beta = torch.linalg.vecdot(d_write, inverse, dim=1)
    inverse_t = inverse.transpose(1, 2)
    d_system = torch.bmm(torch.bmm(inverse_t, d_write.mul_(beta_F.unsqueeze(1))), inverse_t).mul_(strict).neg_()
    d_beta += torch.linalg.vecdot(d_system, inner)
    d_inner = d_system.mul_(beta_F.unsqueeze(2))
    d_attend = torch.bmm(out_F, residue_F.transpose(1, 2)).mul_(lower)
    d_query = torch.bmm(out_F, entry_t).baddbmm_(d_attend, k_in_F).view_as(k)
    d_key = torch.bmm(d_inner, k_in_F).baddbmm_(write_t, d_read, alpha=-1).view_as(k)
    d_k_in = torch.bmm(residue_F, d_entry[1:].view(square).transpose(1, 2)).view_as(k).mul_(carry.transpose(2, 3))
    d_k_in.view(flat).baddbmm_(d_inner.transpose(1, 2), key_F).baddbmm_(d_attend.transpose(1, 2), query_F)
    d_v = torch.bmm(write_t, d_residue_F).view_as(v)
    d_query.mul_(grow)
    d_key.mul_(grow)
    d_k_in.div_(grow)
    d_cum = (d_query * q).addcmul_(d_key, k).addcmul_(d_k_in, k, value=-1)
    d_cum[:, :, -1] += torch.linalg.vecdot(entry[1:], d_entry[1:])
    return d_query, d_key.add_(d_k_in), d_v, torch.matmul(summed.t(), d_cum), d_beta.view_as(beta), d_entry[0]


def _forward_results(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rate: float
) -> tuple[Tensor, Tensor]:
    q_, k_, v_, g_, beta_ = (x.to(state.dtype) for x in (q, k, v, g, beta))
    out, _, saved = chunk_forward(q_, k_, v_, g_, beta_, state, rate)
    return out.to(v.dtype), saved.entry


def _backward_results(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, entry: Tensor, d_out: Tensor, d_state: Tensor, rate: float
) -> tuple[Tensor, ...]:
    q_, k_, v_, g_, beta_ = (x.to(entry.dtype).contiguous() for x in (q, k, v, g, beta))
    saved = chunk_forward(q_, k_, v_, g_, beta_, entry[0], rate)[2]
    grads = chunk_backward(saved, d_out.to(entry.dtype).contiguous(), d_state, rate)
    return tuple(grad.to(x.dtype) for grad, x in zip(grads, (q, k, v, g, beta, entry), strict=True))


STEP = Op("kda_step", "kda.step", lambda *args: (_step(*(x.contiguous() for x in args)),), mutates=(4,))
FORWARD = Op("kda_chunked", "kda.forward", _forward_results)
BACKWARD = Op("kda_chunked_backward", "kda.backward", _backward_results)


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rate: float = 1.0
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """`chunk_forward` or its kernel: (o, final state, what `backward` needs)."""
    if not wanted(state):
        return chunk_forward(q, k, v, g, beta, state, rate)
    out, entry = run(FORWARD, q, k, v, g, beta, state, rate)
    return out, entry[-1].clone(), (q, k, v, g, beta, entry)


def backward(kept: Sequence[Tensor], d_out: Tensor, d_state: Tensor, rate: float = 1.0) -> tuple[Tensor, ...]:
    """Gradients of (q, k, v, g, beta, state), by the form that made `kept`."""
    if len(kept) == len(Saved._fields):
        return chunk_backward(Saved(*kept), d_out.contiguous(), d_state, rate)
    return run(BACKWARD, *kept, d_out, d_state, rate)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        out, state, kept = forward(q, k, v, g, beta, state)
        ctx.save_for_backward(*kept)
        return out, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_state: Tensor) -> tuple[Tensor, ...]:
        return backward(ctx.saved_tensors, d_out, d_state)


def kda_chunked(
    q_GNCK: Tensor, k_GNCK: Tensor, v_GNCV: Tensor, g_GNCK: Tensor, beta_GNC: Tensor, state_NKV: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence over G chunks of C bytes for N = batch * heads rows: (o_GNCV, final state [N, K, V]).

    Arguments are contiguous. A window that is no multiple of C is padded by the caller with g = 0 and beta = 0, which
    leaves the state as it is. Raises ValueError for chunks whose decay could leave fp32.
    """
    chunk = q_GNCK.shape[2]
    if chunk > MAX_CHUNK:
        raise ValueError(f"chunk {chunk} exceeds {MAX_CHUNK}: exp of the cumulative decay would leave fp32")
    out: tuple[Tensor, Tensor] = _Chunked.apply(q_GNCK, k_GNCK, v_GNCV, g_GNCK, beta_GNC, state_NKV)
    return out
