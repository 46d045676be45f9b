"""Routed experts in Triton against every expert run on every row in float64, for any load of the experts."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dormouse_core.kernels.experts import TILE, mix_narrow, mix_wide, plan
from tests.core.kernels.conftest import Kernels
from tests.core.kernels.test_kda_kernels import FEW, FEWER

LOADS = ("even", "pile", "few")


def routed(n: int, n_experts: int, top_k: int, load: str, seed: int) -> Tensor:
    """[N, k] distinct experts a row: spread over all, all rows on the same k, or over the first k + 1 (the others empty)."""
    rng = torch.Generator().manual_seed(seed)
    score_NE = torch.rand(n, n_experts, generator=rng)
    if load == "pile":
        score_NE = score_NE[:1].expand(n, -1)
    if load == "few":
        score_NE = score_NE.masked_fill(torch.arange(n_experts) > top_k, -1.0)
    return score_NE.topk(top_k).indices


def case(n: int, e: int, d: int, f: int, r: int, seed: int, dtype: torch.dtype = torch.float32, top_k: int = 2) -> tuple[Tensor, ...]:
    """(x, gate, up_u, up_v, down_u, down_v); up_v is large enough that SiLU bends."""
    rng = torch.Generator().manual_seed(seed)
    shapes = ((n, d), (e, d, r), (e, f, r), (e, f, r), (e, d, r))
    x, up_u, up_v, down_u, down_v = (torch.randn(*s, generator=rng, dtype=dtype) for s in shapes)
    gate = torch.rand(n, top_k, generator=rng, dtype=dtype)
    return x, gate / gate.sum(1, keepdim=True), up_u / d**0.5, up_v, down_u / f**0.5, down_v


def gates(index: Tensor, gate: Tensor, n_experts: int) -> Tensor:
    return gate.new_zeros(len(index), n_experts).scatter(1, index, gate)


def every_expert(index: Tensor, x: Tensor, gate: Tensor, up_u: Tensor, up_v: Tensor, down_u: Tensor, down_v: Tensor) -> Tensor:
    inner = F.silu(torch.einsum("nd,edr,efr->nef", x, up_u, up_v))
    return torch.einsum("nef,efr,edr,ne->nd", inner, down_u, down_v, gates(index, gate, len(up_u)))


def every_code(index: Tensor, code: Tensor, gate: Tensor, up_v: Tensor, down_u: Tensor) -> Tensor:
    inner = F.silu(torch.einsum("ner,efr->nef", code, up_v))
    return torch.einsum("nef,efr,ne->ner", inner, down_u, gates(index, gate, len(up_v))).flatten(1)


def wide(x: Tensor, index: Tensor, *rest: Tensor) -> Tensor:
    return mix_wide(x, index, *rest)


SHAPES = {"n": st.integers(1, 20), "e": st.integers(2, 16), "d": st.sampled_from([4, 12, 70]), "f": st.sampled_from([3, 16, 66]),
          "r": st.sampled_from([1, 4, 17]), "load": st.sampled_from(LOADS), "seed": st.integers(0, 99)}


@FEW
@given(**SHAPES)
def test_wide_experts_are_the_float64_mixture_for_any_shape_and_load(
    kernels: Kernels, n: int, e: int, d: int, f: int, r: int, load: str, seed: int
) -> None:
    index, (x, *rest) = routed(n, e, 2, load, seed), case(n, e, d, f, r, seed)
    want = every_expert(index, *(t.double() for t in (x, *rest)))
    torch.testing.assert_close(kernels(wide, x, index, *rest), want.float(), atol=2e-5, rtol=2e-5)


@FEWER
@given(**SHAPES)
def test_wide_experts_gradients_are_the_mixtures_for_any_shape_and_load(
    kernels: Kernels, n: int, e: int, d: int, f: int, r: int, load: str, seed: int
) -> None:
    n, index = min(n, 8), routed(min(n, 8), e, 2, load, seed)
    leaves = [t.requires_grad_() for t in case(n, e, d, f, r, seed, torch.float64)]
    weight = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    got = torch.autograd.grad((kernels(wide, leaves[0], index, *leaves[1:]) * weight).sum(), leaves)
    want = torch.autograd.grad((every_expert(index, *leaves) * weight).sum(), leaves)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-9)
    idle = torch.bincount(index.flatten(), minlength=e) == 0
    assert all(g[idle].eq(0).all() for g in got[2:])


@FEWER
@given(n=st.integers(1, 9), e=st.integers(2, 16), f=st.sampled_from([3, 16, 66]), r=st.sampled_from([1, 4, 17]),
       load=st.sampled_from(LOADS), seed=st.integers(0, 99))
def test_narrow_experts_and_their_gradients_are_the_mixtures(
    kernels: Kernels, n: int, e: int, f: int, r: int, load: str, seed: int
) -> None:
    index, (_, gate, _, up_v, down_u, _) = routed(n, e, 2, load, seed), case(n, e, 4, f, r, seed, torch.float64)
    code = torch.randn(n, e, r, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    leaves = [t.requires_grad_() for t in (code, gate, up_v, down_u)]
    got, want = kernels(mix_narrow, leaves[0], index, *leaves[1:]), every_code(index, *leaves)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-10)
    weight = torch.linspace(-1, 1, got.numel(), dtype=torch.float64).view_as(got)
    for a, b in zip(torch.autograd.grad((got * weight).sum(), leaves), torch.autograd.grad((want * weight).sum(), leaves), strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-9)


def test_three_experts_a_row_add_up_in_order_of_expert_number(kernels: Kernels) -> None:
    index, (x, *rest) = routed(5, 6, 3, "even", 1), case(5, 6, 8, 8, 4, 1, top_k=3)
    flipped = kernels(wide, x, index.flip(1), rest[0].flip(1), *rest[1:])
    assert torch.equal(kernels(wide, x, index, *rest), flipped)
    torch.testing.assert_close(flipped, every_expert(index, *(t.double() for t in (x, *rest))).float(), atol=2e-5, rtol=2e-5)


def test_a_row_has_the_same_bits_whatever_rows_stand_beside_it(kernels: Kernels) -> None:
    index, (x, gate, *factors) = routed(19, 5, 2, "even", 2), case(19, 5, 20, 24, 4, 2)
    whole = kernels(wide, x, index, gate, *factors)
    for rows in (slice(3, 4), slice(0, 11)):
        assert torch.equal(kernels(wide, x[rows], index[rows], gate[rows], *factors), whole[rows])


def test_bf16_experts_round_inputs_and_results_only(kernels: Kernels) -> None:
    index, tensors = routed(6, 4, 2, "even", 3), case(6, 4, 16, 24, 4, 3)
    x, gate, *factors = tensors[0].bfloat16(), tensors[1], *(t.bfloat16() for t in tensors[2:])
    leaves = [t.requires_grad_() for t in (x, *factors)]
    got = kernels(wide, x, index, gate, *factors)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    want = every_expert(index, exact[0], gate.double(), *exact[1:])
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, atol=2e-2, rtol=8e-3)
    for a, b in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), exact), strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.double(), b, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("load", LOADS)
def test_the_plan_holds_every_assignment_once_and_counts_tiles_as_experts_need_them(load: str) -> None:
    index = routed(70, 9, 2, load, 4)
    p = plan(index, 9)
    assert torch.equal(index.flatten()[p.order_A], index.flatten().sort().values)
    assert torch.equal(p.row_A[p.at_Nk], torch.arange(70).unsqueeze(1).expand(-1, 2)) and (p.at_Nk.diff(dim=1) > 0).all()
    load_E = torch.bincount(index.flatten(), minlength=9)
    assert torch.equal(p.start_E.diff(), load_E) and torch.equal(p.tiles_E.diff(prepend=torch.zeros(1)), -(-load_E // TILE))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_experts_most_of_them_idle(kernels: Kernels) -> None:
    index, tensors = routed(24, 1024, 2, "even", 5), case(24, 1024, 6, 5, 2, 5, torch.float64)
    leaves = [t.requires_grad_() for t in tensors]
    got, want = kernels(wide, leaves[0], index, *leaves[1:]), every_expert(index, *leaves)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-10)
    for a, b in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves), strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-9)
