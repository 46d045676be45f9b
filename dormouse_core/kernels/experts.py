"""Routed low-rank experts: assignments sorted by expert, grouped products for any number of tiny experts.

An expert is down(SiLU(up(x))) with up = U1 V1^T and down = U2 V2^T, all of rank r (scales are folded in by the caller). The
chain is cut where tensors are narrow, so that the wide inner activation never leaves a program:

    code = x U1   [A, r]      `grouped_in`, reads x at its row
    mid  = SiLU(code V1^T) U2 [A, r]      `inner`
    y    = mid V2^T [A, d]    `grouped_out`

A = N k assignments lie in order of expert, `Plan.start_E` says where each expert's begin; experts without assignments cost
nothing in a product and get a zero gradient. Nothing is added atomically and nothing waits for the device, so results are
the same bits in every run and a decode step can be captured as a CUDA graph. Kernels: gpu/experts.py.
Here `x_reference` functions are loops over experts in torch; the CPU's own path is in policy/experts.py.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse_core.kernels.dispatch import Op, run

TILE = 16
"""Assignments of one expert a program takes at once."""


class Plan(NamedTuple):
    """Assignments in order of expert: the row each reads, [A]; where each row's k stand in that order, ascending, [N, k];
    each expert's first assignment and their number, [E + 1]; how many tiles the experts up to each have, [E]."""

    row_A: Tensor
    at_Nk: Tensor
    start_E: Tensor
    tiles_E: Tensor
    order_A: Tensor


def plan(index_Nk: Tensor, n_experts: int) -> Plan:
    """Sort the assignments of index_Nk (int64, expert numbers) by expert, rows of an expert in their own order."""
    top_k = index_Nk.shape[1]
    expert_A, order_A = index_Nk.flatten().sort(stable=True)
    start_E = torch.searchsorted(expert_A, torch.arange(n_experts + 1, device=index_Nk.device))
    tiles_E = (start_E.diff() + (TILE - 1)).div(TILE, rounding_mode="floor").cumsum(0)
    at_A = torch.empty_like(order_A).scatter_(0, order_A, torch.arange(len(order_A), device=index_Nk.device))
    return Plan(order_A.div(top_k, rounding_mode="floor"), at_A.view(-1, top_k).sort(-1).values, start_E, tiles_E, order_A)


def _segments(start_E: Tensor) -> Iterator[tuple[int, slice]]:
    start = start_E.tolist()
    return ((e, slice(a, b)) for e, (a, b) in enumerate(pairwise(start)) if b > a)


def _exact(x: Tensor) -> Tensor:
    """fp32 of bf16; kernels compute in it too."""
    return x.float() if x.dtype == torch.bfloat16 else x


def _per_segment(n: int, width: int, like: Tensor, start_E: Tensor, of: Callable[[int, slice], Tensor]) -> Tensor:
    out = _exact(like).new_zeros(n, width)
    for e, segment in _segments(start_E):
        out[segment] = of(e, segment)
    return out


def _grouped_in(x_ND: Tensor, row_A: Tensor, w_EDR: Tensor, start_E: Tensor, tiles_E: Tensor) -> tuple[Tensor]:
    x, w = _exact(x_ND), _exact(w_EDR)
    return (_per_segment(len(row_A), w.shape[2], x, start_E, lambda e, s: x[row_A[s]] @ w[e]),)


def _grouped_out(code_AR: Tensor, w_EDR: Tensor, start_E: Tensor, tiles_E: Tensor) -> tuple[Tensor]:
    code, w = _exact(code_AR), _exact(w_EDR)
    return (_per_segment(len(code), w.shape[1], code, start_E, lambda e, s: code[s] @ w[e].t()),)


def _grouped_weight(x_ND: Tensor, row_A: Tensor, d_code_AR: Tensor, start_E: Tensor, dtype: torch.dtype) -> tuple[Tensor]:
    """Gradient [E, D, R] of the factor in code = x[row] W_e, summed in fp32 and rounded once to `dtype`."""
    x, d_code = _exact(x_ND), _exact(d_code_AR)
    d_w_EDR = x.new_zeros(len(start_E) - 1, x.shape[1], d_code.shape[1])
    for e, s in _segments(start_E):
        d_w_EDR[e] = x[row_A[s]].t() @ d_code[s]
    return (d_w_EDR.to(dtype),)


def _inner(code_AR: Tensor, v_EFR: Tensor, u_EFR: Tensor, start_E: Tensor, tiles_E: Tensor) -> tuple[Tensor]:
    code, v, u = _exact(code_AR), _exact(v_EFR), _exact(u_EFR)
    return (_per_segment(len(code), u.shape[2], code, start_E, lambda e, s: F.silu(code[s] @ v[e].t()) @ u[e]),)


def _inner_backward(
    code_AR: Tensor, v_EFR: Tensor, u_EFR: Tensor, d_mid_AR: Tensor, start_E: Tensor, tiles_E: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of (code, v, u), those of the factors in their dtype."""
    code, v, u, d_mid = (_exact(x) for x in (code_AR, v_EFR, u_EFR, d_mid_AR))
    d_code, d_v, d_u = torch.zeros_like(code), torch.zeros_like(v), torch.zeros_like(u)
    for e, s in _segments(start_E):
        z = code[s] @ v[e].t()
        d_z = torch.ops.aten.silu_backward(d_mid[s] @ u[e].t(), z)
        d_u[e], d_v[e], d_code[s] = F.silu(z).t() @ d_mid[s], d_z.t() @ code[s], d_z @ v[e]
    return d_code, d_v.to(v_EFR.dtype), d_u.to(u_EFR.dtype)


GROUPED_IN = Op("experts_in", "experts.grouped_in", _grouped_in, whole=(2,))
GROUPED_OUT = Op("experts_out", "experts.grouped_out", _grouped_out, whole=(1,))
GROUPED_WEIGHT = Op("experts_weight", "experts.grouped_weight", _grouped_weight, whole=(3,))
INNER = Op("experts_inner", "experts.inner", _inner, whole=(1,))
INNER_BACKWARD = Op("experts_inner_backward", "experts.inner_backward", _inner_backward, whole=(1,))


class _In(torch.autograd.Function):
    """code[a] = x[row a] W_e(a)."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, w_EDR: Tensor, p: Plan) -> Tensor:
        ctx.save_for_backward(x_ND, w_EDR)
        ctx.plan = p
        return run(GROUPED_IN, x_ND, p.row_A, w_EDR, p.start_E, p.tiles_E)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_code_AR: Tensor) -> tuple[Tensor, Tensor, None]:
        (x_ND, w_EDR), p = ctx.saved_tensors, ctx.plan
        d_x_AD = run(GROUPED_OUT, d_code_AR, w_EDR, p.start_E, p.tiles_E)[0]
        d_w_EDR = run(GROUPED_WEIGHT, x_ND, p.row_A, d_code_AR, p.start_E, w_EDR.dtype)[0]
        return d_x_AD[p.at_Nk].sum(1).to(x_ND.dtype), d_w_EDR, None


class _Out(torch.autograd.Function):
    """y[n] = sum over the row's assignments of mid[a] W_e(a)^T, in order of expert number. fp32 or fp64."""

    @staticmethod
    def forward(ctx: Any, mid_AR: Tensor, w_EDR: Tensor, p: Plan) -> Tensor:
        ctx.save_for_backward(mid_AR, w_EDR)
        ctx.plan = p
        return run(GROUPED_OUT, mid_AR, w_EDR, p.start_E, p.tiles_E)[0][p.at_Nk].sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y_ND: Tensor) -> tuple[Tensor, Tensor, None]:
        (mid_AR, w_EDR), p = ctx.saved_tensors, ctx.plan
        d_mid_AR = run(GROUPED_IN, d_y_ND, p.row_A, w_EDR, p.start_E, p.tiles_E)[0]
        d_w_EDR = run(GROUPED_WEIGHT, d_y_ND, p.row_A, mid_AR, p.start_E, w_EDR.dtype)[0]
        return d_mid_AR.to(mid_AR.dtype), d_w_EDR, None


class _Inner(torch.autograd.Function):
    """mid = SiLU(code V_e^T) U_e."""

    @staticmethod
    def forward(ctx: Any, code_AR: Tensor, v_EFR: Tensor, u_EFR: Tensor, p: Plan) -> Tensor:
        ctx.save_for_backward(code_AR, v_EFR, u_EFR)
        ctx.plan = p
        return run(INNER, code_AR, v_EFR, u_EFR, p.start_E, p.tiles_E)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mid_AR: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        code_AR, v_EFR, u_EFR = ctx.saved_tensors
        d_code, d_v, d_u = run(INNER_BACKWARD, code_AR, v_EFR, u_EFR, d_mid_AR, ctx.plan.start_E, ctx.plan.tiles_E)
        return d_code.to(code_AR.dtype), d_v, d_u, None


def mix_wide(
    x_ND: Tensor, index_Nk: Tensor, gate_Nk: Tensor, up_u_EDR: Tensor, up_v_EFR: Tensor, down_u_EFR: Tensor, down_v_EDR: Tensor
) -> Tensor:
    """sum_i gate_i expert_i(x), [N, d] in x's dtype. Differentiable in everything but the index."""
    p = plan(index_Nk, len(up_u_EDR))
    code_AR: Tensor = _In.apply(x_ND, up_u_EDR, p)
    mid_AR: Tensor = _Inner.apply(code_AR, up_v_EFR, down_u_EFR, p)
    out_ND: Tensor = _Out.apply(mid_AR * gate_Nk.flatten()[p.order_A].unsqueeze(1), down_v_EDR, p)
    return out_ND.to(x_ND.dtype)


def mix_narrow(code_NER: Tensor, index_Nk: Tensor, gate_Nk: Tensor, up_v_EFR: Tensor, down_u_EFR: Tensor) -> Tensor:
    """gate * SiLU(code V1^T) U2 of the chosen experts, scattered to [N, E * r] (0 elsewhere). code_NER: x U1 of all experts."""
    n, e, r = code_NER.shape
    p = plan(index_Nk, e)
    slot_A = p.row_A * e + index_Nk.flatten()[p.order_A]
    mid_AR: Tensor = _Inner.apply(code_NER.reshape(n * e, r)[slot_A], up_v_EFR, down_u_EFR, p)
    mixed_AR = (mid_AR * gate_Nk.flatten()[p.order_A].unsqueeze(1)).to(code_NER.dtype)
    return code_NER.new_zeros(n * e, r).index_copy(0, slot_A, mixed_AR).view(n, e * r)
