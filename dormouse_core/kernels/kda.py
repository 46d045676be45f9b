"""KDA, the gated delta rule (Kimi Delta Attention, 2510.26692): one recurrence in two forms that agree.

Per head, with state S [K, V], decay a_t = exp(g_t) in (0, 1) per key channel and write strength b_t in (0, 1):

    S' = diag(a_t) S_{t-1};   S_t = S' + b_t k_t (v_t - S'^T k_t)^T;   o_t = S_t^T q_t

`kda_step` runs it one byte at a time and updates S in place (decode). `kda_chunked` runs C bytes at a time with dense
products, loops over chunks only, and is differentiable (training). Queries arrive scaled; everything is fp32 or fp64.
Not here: projections, normalisation of q and k, the output gate (policy/kda.py).
"""

import torch
from torch import Tensor

MAX_CHUNK = 16
"""exp(-cumulative decay) reaches e^(5 * 16) inside a chunk; e^88 would leave fp32."""


def kda_step(q_NK: Tensor, k_NK: Tensor, v_NV: Tensor, alpha_NK: Tensor, beta_N1: Tensor, state_NKV: Tensor) -> Tensor:
    """One byte for N = batch * heads rows. Updates `state_NKV` in place, returns o_NV.

    One product reads S'^T k and S'^T q together; the query then sees the write it has not read yet as (k.q) b delta.
    """
    state_NKV.mul_(alpha_NK.unsqueeze(-1))
    read_N2V = torch.bmm(torch.stack((k_NK, q_NK), 1), state_NKV)
    delta_NV = (v_NV - read_N2V[:, 0]).mul_(beta_N1)
    state_NKV.baddbmm_(k_NK.unsqueeze(2), delta_NV.unsqueeze(1))
    return torch.addcmul(read_N2V[:, 1], (k_NK * q_NK).sum(-1, keepdim=True), delta_NV)


def kda_recurrent(q_NLK: Tensor, k_NLK: Tensor, v_NLV: Tensor, g_NLK: Tensor, beta_NL: Tensor, state_NKV: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence over a whole window, byte by byte: (o_NLV, final state). The plain form the chunked one is held to."""
    state_NKV, out = state_NKV.clone(), []
    for t in range(q_NLK.shape[1]):
        out.append(kda_step(q_NLK[:, t], k_NLK[:, t], v_NLV[:, t], g_NLK[:, t].exp(), beta_NL[:, t, None], state_NKV))
    return torch.stack(out, 1), state_NKV


def kda_chunked(
    q_GNCK: Tensor, k_GNCK: Tensor, v_GNCV: Tensor, g_GNCK: Tensor, beta_GNC: Tensor, state_NKV: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence over G chunks of C bytes for N = batch * heads rows: (o_GNCV, final state [N, K, V]).

    A window that is no multiple of C is padded by the caller with k = 0, g = 0, beta = 0, which leaves the state as it is.
    Inside a chunk, with c_i the cumulative decay and everything relative to the chunk's start: the writes solve a unit
    lower triangular system, (I + M) R = beta v - (beta k e^c) S_in, M_ij = beta_i <k_i e^(c_i), k_j e^(-c_j)> for j < i;
    outputs read R through the same causal products.
    """
    chunk = q_GNCK.shape[2]
    if chunk > MAX_CHUNK:
        raise ValueError(f"chunk {chunk} exceeds {MAX_CHUNK}: exp of the cumulative decay would leave fp32")
    cum_GNCK = g_GNCK.cumsum(2)
    last_GN1K = cum_GNCK[:, :, -1:]
    beta_GNC1 = beta_GNC.unsqueeze(-1)
    grow_GNCK = cum_GNCK.exp()
    k_in_GNCK = k_GNCK * (-cum_GNCK).exp()
    k_out_GNKC = (k_GNCK * (last_GN1K - cum_GNCK).exp()).transpose(2, 3)
    q_GNCK = q_GNCK * grow_GNCK
    k_beta_GNCK = k_GNCK * grow_GNCK * beta_GNC1
    k_in_GNKC = k_in_GNCK.transpose(2, 3)
    system_GNCC = (k_beta_GNCK @ k_in_GNKC).tril(-1)
    attend_GNCC = (q_GNCK @ k_in_GNKC).tril()
    right = torch.cat((k_beta_GNCK, v_GNCV * beta_GNC1), -1)
    solved = torch.linalg.solve_triangular(system_GNCC, right, upper=False, unitriangular=True)
    read_GNCK, write_GNCV = solved.split((q_GNCK.shape[-1], v_GNCV.shape[-1]), -1)
    carry_GNK1 = last_GN1K.exp().transpose(2, 3)
    out = []
    chunks = (read_GNCK, write_GNCV, q_GNCK, attend_GNCC, k_out_GNKC, carry_GNK1)
    for read, write, query, attend, k_out, carry in zip(*(x.unbind(0) for x in chunks), strict=True):
        rest_NCV = torch.baddbmm(write, read, state_NKV, alpha=-1)
        out.append(torch.baddbmm(query @ state_NKV, attend, rest_NCV))
        state_NKV = torch.baddbmm(state_NKV * carry, k_out, rest_NCV)
    return torch.stack(out), state_NKV
