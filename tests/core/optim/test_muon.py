"""Muon+: Newton-Schulz against the SVD and torch's own, the step against float64, and experts without a byte."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import _muon as torch_muon

from dormouse_core.config.optimizer import MuonRow
from dormouse_core.optim.declared import Group
from dormouse_core.optim.groups import Optimizer, build_optimizer
from dormouse_core.optim.muon import COEFFICIENTS, direction, muon_step, newton_schulz, step_size
from dormouse_core.optim.precision import ALL, Slot
from dormouse_core.policy.init import orthonormal
from dormouse_core.policy.model import Policy, build_policy
from tests.core.optim.made import TINY, give_gradients, muon_config, train, values


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_svd(matrix_SMN: Tensor, steps: int) -> Tensor:
    """The polynomial on the singular values, in float64: what Newton-Schulz computes if no digit is lost."""
    u, s, vt = torch.linalg.svd(matrix_SMN, full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return (u * s.unsqueeze(-2)) @ vt


@given(entries=st.integers(1, 3), rows=st.integers(1, 40), columns=st.integers(1, 40), steps=st.integers(1, 8), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_newton_schulz_is_the_polynomial_on_the_singular_values(entries: int, rows: int, columns: int, steps: int, seed: int) -> None:
    matrix_SMN = draws(entries, rows, columns, seed=seed)
    torch.testing.assert_close(newton_schulz(matrix_SMN.float(), steps).double(), by_svd(matrix_SMN, steps), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("shape", [(48, 8), (8, 48), (16, 16)])
def test_newton_schulz_agrees_with_torch_as_far_as_its_bf16_goes(shape: tuple[int, int]) -> None:
    matrix_MN = draws(*shape).float()
    theirs = torch_muon._zeropower_via_newtonschulz(matrix_MN, COEFFICIENTS, 5, 1e-7).float()
    ours = newton_schulz(matrix_MN.unsqueeze(0), 5)[0]
    assert float((ours - theirs).norm() / theirs.norm()) < 0.02


@given(rows=st.integers(2, 30), columns=st.integers(2, 30), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_every_row_of_a_direction_has_unit_length(rows: int, columns: int, seed: int) -> None:
    out = direction(draws(2, rows, columns, seed=seed).float(), 5)
    torch.testing.assert_close(out.norm(dim=-1), torch.ones(2, rows))
    assert math.isclose(float(out[0].norm()), math.sqrt(rows), rel_tol=1e-4)


def test_a_momentum_of_zeros_gives_no_direction() -> None:
    assert not direction(torch.zeros(2, 5, 3), 5).any()


@pytest.mark.parametrize("orthonormal_", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(40, 6), (6, 40), (12, 12)])
def test_steps_follow_the_float64_reference(rows: int, columns: int, orthonormal_: bool) -> None:
    p = nn.Parameter(draws(2, rows, columns).float())
    slot, row = Slot("p", p, (2, rows, columns), "masters", 0), MuonRow(relative_step=0.02, momentum=0.9, weight_decay=0.1)
    want, m = p.detach().double(), torch.zeros(2, rows, columns, dtype=torch.float64)
    for t in range(3):
        p.grad = draws(2, rows, columns, seed=t + 1).float()
        muon_step(slot, ALL, row, 0.5, 1e-2, orthonormal_, t)
        m = 0.9 * m + 0.1 * p.grad.double()
        out = by_svd(m, 5)
        out = out / out.norm(dim=-2, keepdim=True)
        out = out / out.norm(dim=-1, keepdim=True)
        size = math.sqrt(columns) if orthonormal_ else want.norm(dim=(-2, -1), keepdim=True)
        want = want * (1 - 0.1 * 1e-2) - 0.01 * size / math.sqrt(rows) * out
    torch.testing.assert_close(p.detach().double(), want, atol=2e-5, rtol=2e-4)


@given(rows=st.integers(4, 60), rank=st.integers(1, 4), step=st.floats(1e-4, 0.1))
@settings(deadline=None, max_examples=30)
def test_the_relative_step_of_a_factor_is_the_configured_one_for_every_shape(rows: int, rank: int, step: float) -> None:
    weight = orthonormal((3, rows, rank), torch.Generator().manual_seed(0))
    moved = step_size(weight, step, True) * direction(draws(3, rows, rank).float(), 5)
    torch.testing.assert_close(moved.norm(dim=(-2, -1)) / weight.norm(dim=(-2, -1)), torch.full((3,), step), atol=0, rtol=1e-4)


def test_a_weight_of_zeros_can_leave_zero() -> None:
    p = nn.Parameter(torch.zeros(1, 4, 4))
    p.grad = draws(1, 4, 4).float()
    muon_step(Slot("p", p, (1, 4, 4), "masters", 0), ALL, MuonRow(), 1.0, 1e-3, False, 0)
    assert p.detach().any()


# --- in the optimizer


def muon(policy: Policy, **other: object) -> Optimizer:
    return build_optimizer(policy, muon_config(warmup=0, decay="constant", **other), 9)


def silence(policy: Policy, expert: int) -> None:
    """The gradients of a step in which no byte chose this expert."""
    experts = policy.block.experts
    for p in (experts.up_u, experts.up_s, experts.up_v, experts.down_u, experts.down_s, experts.down_v):
        assert p.grad is not None
        p.grad[expert] = 0


def test_an_expert_without_a_byte_neither_moves_nor_decays() -> None:
    policy = build_policy(TINY, 1)
    optimizer = muon(policy, expert_scales={"kind": "adamw", "weight_decay": 0.5})
    train(policy, optimizer, range(2))
    before, state = values(policy), {name: t.clone() for name, t in optimizer.state().items()}
    optimizer.zero_grad()
    give_gradients(policy, 2)
    silence(policy, 1)
    optimizer.step()
    after, later = values(policy), optimizer.state()
    for name in (n for n in before if ".experts." in n):
        assert torch.equal(before[name][1], after[name][1]), name
        assert all(not torch.equal(before[name][e], after[name][e]) for e in (0, 2, 3)), name
    for key in (k for k in state if ".experts." in k and not k.startswith("step/")):
        assert torch.equal(state[key][1], later[key][1]) and not torch.equal(state[key][0], later[key][0]), key
    assert (later["expert_updates"] - state["expert_updates"]).tolist() == [1, 0, 1, 1]


def test_an_expert_moves_by_the_same_bits_whichever_others_rest() -> None:
    def moved(*silent: int) -> list[Tensor]:
        policy = build_policy(TINY, 1)
        optimizer = muon(policy, grad_clip=1e9)
        give_gradients(policy, 0)
        for expert in silent:
            silence(policy, expert)
        optimizer.step()
        return [p.detach()[0].clone() for p in optimizer.groups[Group.EXPERTS].values()]

    assert all(torch.equal(a, b) for a, b in zip(moved(), moved(1, 3), strict=True))


def test_adamw_lets_an_idle_expert_run_on_unless_it_is_told_to_rest() -> None:
    def drift(**other: object) -> bool:
        policy = build_policy(TINY, 1)
        plain = {name: {"kind": "adamw"} for name in ("experts", "factors", "query_key", "memory_key")}
        optimizer = build_optimizer(policy, muon_config(**plain, **other), 9)
        train(policy, optimizer, range(2))
        before = policy.block.experts.up_u.detach().clone()
        optimizer.zero_grad()
        give_gradients(policy, 2)
        silence(policy, 1)
        optimizer.step()
        return not torch.equal(policy.block.experts.up_u[1], before[1])

    assert drift() and not drift(idle_experts="rest")


def test_queries_step_a_head_at_a_time() -> None:
    policy = build_policy(TINY, 1)
    optimizer = muon(policy)
    before = policy.block.kda.query.detach().clone()
    give_gradients(policy, 0)
    assert policy.block.kda.query.grad is not None
    policy.block.kda.query.grad[:16] *= 1e-3  # one head's gradient is small: its step is not
    optimizer.step()
    moved = (policy.block.kda.query.detach() - before).view(2, 16, 32)
    norms = before.view(2, 16, 32).norm(dim=(1, 2))
    torch.testing.assert_close(moved.norm(dim=(1, 2)) / norms, torch.full((2,), 1e-2), rtol=1e-2, atol=0)
