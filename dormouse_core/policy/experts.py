"""TSCT linears, the shared expert, and the E routed low-rank experts.

A TSCT linear is W = V diag(s) U^T: orthonormal-column factors U [in, r], V [out, r] and a free scale s [r]. An expert is
down(SiLU(up(x))), both TSCT. A byte uses the shared expert and its k best routed ones; gates are the selected sigmoid
scores, renormalised. The balancing bias enters the selection only (2408.15664).

Three ways to run the routed experts, equal up to rounding:
- `mix_sorted`  narrow: x U1 of all experts comes out of the block's one input product; assignments are sorted by expert
                and each segment meets its two inner factors; V2 of all experts rides in the block's one output product.
- `mix_dense`   narrow: every expert on every byte, as two batched products. Decode with few experts: fewer, larger calls.
- `mix_wide`    many or wide experts (E * r > 2 d): sorted segments, all four factors per segment.
Segments are padded to 16 rows, so that a byte's output has the same bits whatever else is in the batch. On a GPU the
first and the last are grouped products (kernels/experts.py).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.kernels import experts as grouped
from dormouse_core.kernels.dispatch import wanted
from dormouse_core.policy.norms import silu_rows
from dormouse_core.policy.products import SEGMENT_TILE, linear_rows
from dormouse_core.policy.state import MIN_ROWS


class Tsct(nn.Module):
    """One factored linear: parameters u [in, r], s [r], v [out, r]."""

    def __init__(self, n_in: int, n_out: int, rank: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.empty(n_in, rank))
        self.s = nn.Parameter(torch.empty(rank))
        self.v = nn.Parameter(torch.empty(n_out, rank))

    def scaled_v(self) -> Tensor:
        """[out, r] with the scale folded in: the second of the two products."""
        return self.v * self.s


class Experts(nn.Module):
    """Stacked factors of the routed experts: up is d -> f, down is f -> d."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        e, d, f, r = config.n_experts, config.d_model, config.d_ffn, config.rank
        self.top_k = config.moe_topk
        self.up_u = nn.Parameter(torch.empty(e, d, r))
        self.up_s = nn.Parameter(torch.empty(e, r))
        self.up_v = nn.Parameter(torch.empty(e, f, r))
        self.down_u = nn.Parameter(torch.empty(e, f, r))
        self.down_s = nn.Parameter(torch.empty(e, r))
        self.down_v = nn.Parameter(torch.empty(e, d, r))


class Factors(NamedTuple):
    """The experts' factors as a forward uses them, scales folded in. `outer` factors are None on the narrow path."""

    up_v_EFR: Tensor
    down_u_EFR: Tensor
    up_u_EDR: Tensor | None
    down_v_EDR: Tensor | None

    def per_expert(self) -> list[tuple[Tensor, ...]]:
        """Factors of each expert. One `unbind` each: indexing a parameter in a loop would cost a full zero gradient a use."""
        return list(zip(*(f.unbind(0) for f in self if f is not None), strict=True))

    def of(self, live: list[int]) -> list[tuple[Tensor, ...]]:
        """Factors of some experts, in this order. Without a gradient only they are touched: a decoded byte needs few of a thousand."""
        if torch.is_grad_enabled():
            every = self.per_expert()
            return [every[e] for e in live]
        return [tuple(f[e] for f in self if f is not None) for e in live]


class Route(NamedTuple):
    """index_Nk: chosen experts. gate_Nk: their mixing weights, sum 1."""

    index_Nk: Tensor
    gate_Nk: Tensor


def route(score_NE: Tensor, bias_E: Tensor, top_k: int) -> Route:
    """Top-k of score + bias; gates are the unbiased scores of the chosen, renormalised. score_NE: fp32 in (0, 1)."""
    index_Nk = (score_NE.detach() + bias_E).topk(top_k, dim=-1).indices
    chosen_Nk = score_NE.gather(1, index_Nk)
    return Route(index_Nk, chosen_Nk / chosen_Nk.sum(-1, keepdim=True))


class Segments(NamedTuple):
    """Assignments sorted by expert: row_A and gate_A in that order, counts of each expert."""

    row_A: Tensor
    expert_A: Tensor
    gate_A1: Tensor
    counts: list[int]


def sort_by_expert(choice: Route, n_experts: int) -> Segments:
    flat_A = choice.index_Nk.reshape(-1)
    expert_A, order_A = flat_A.sort(stable=True)
    row_A = order_A.div(choice.index_Nk.shape[1], rounding_mode="floor")
    gate_A1 = choice.gate_Nk.reshape(-1)[order_A].unsqueeze(1)
    return Segments(row_A, expert_A, gate_A1, torch.bincount(flat_A, minlength=n_experts).tolist())


def _padded(x_MR: Tensor) -> Tensor:
    return x_MR if len(x_MR) >= MIN_ROWS else F.pad(x_MR, (0, 0, 0, MIN_ROWS - len(x_MR)))


def mix_sorted(code_NER: Tensor, choice: Route, factors: Factors) -> Tensor:
    """code_NER: x U1 s of all experts. Returns gate * SiLU(code V1^T) U2 s, scattered to [N, E * r] (0 where not chosen)."""
    if wanted(code_NER):
        return grouped.mix_narrow(code_NER, *choice, factors.up_v_EFR, factors.down_u_EFR)
    n, e, r = code_NER.shape
    segments = sort_by_expert(choice, e)
    slot_A = segments.row_A * e + segments.expert_A
    code_AR = code_NER.reshape(n * e, r).index_select(0, slot_A)
    out = []
    for code_MR, (up_v, down_u) in zip(code_AR.split(segments.counts), factors.per_expert(), strict=True):
        if len(code_MR):
            inner_MF = silu_rows(linear_rows(_padded(code_MR), up_v, SEGMENT_TILE))
            out.append(linear_rows(inner_MF, down_u.t(), SEGMENT_TILE)[: len(code_MR)])
    mixed_AR = (torch.cat(out) * segments.gate_A1).to(code_NER.dtype)
    return code_NER.new_zeros(n * e, r).index_copy(0, slot_A, mixed_AR).view(n, e * r)


def mix_dense(code_NER: Tensor, choice: Route, factors: Factors) -> Tensor:
    """The same as `mix_sorted`, by running every expert on every byte."""
    n, e, r = code_NER.shape
    inner_ENF = silu_rows(torch.bmm(code_NER.transpose(0, 1), factors.up_v_EFR.transpose(1, 2)))
    down_ENR = torch.bmm(inner_ENF, factors.down_u_EFR)
    gate_NE = torch.zeros(n, e, device=code_NER.device).scatter_(1, choice.index_Nk, choice.gate_Nk)
    return (down_ENR.transpose(0, 1) * gate_NE.unsqueeze(-1)).reshape(n, e * r).to(code_NER.dtype)


def mix_wide(x_ND: Tensor, choice: Route, factors: Factors) -> Tensor:
    """sum_i gate_i expert_i(x), [N, d]. Additions to a row run in order of expert number, whatever else is in the batch."""
    if wanted(x_ND):
        assert factors.up_u_EDR is not None and factors.down_v_EDR is not None
        return grouped.mix_wide(x_ND, *choice, factors.up_u_EDR, factors.up_v_EFR, factors.down_u_EFR, factors.down_v_EDR)
    segments = sort_by_expert(choice, len(factors.up_v_EFR))
    x_AD = x_ND.index_select(0, segments.row_A)
    out = []
    live = [e for e, count in enumerate(segments.counts) if count]
    for x_MD, (up_v, down_u, up_u, down_v) in zip(x_AD.split([segments.counts[e] for e in live]), factors.of(live), strict=True):
        code_MR = linear_rows(_padded(x_MD), up_u.t(), SEGMENT_TILE)
        inner_MF = silu_rows(linear_rows(code_MR, up_v, SEGMENT_TILE))
        code_MR = linear_rows(inner_MF, down_u.t(), SEGMENT_TILE)
        out.append(linear_rows(code_MR, down_v, SEGMENT_TILE)[: len(x_MD)])
    sum_ND = torch.zeros_like(x_ND, dtype=torch.float32)
    return sum_ND.index_add(0, segments.row_A, torch.cat(out) * segments.gate_A1).to(x_ND.dtype)
