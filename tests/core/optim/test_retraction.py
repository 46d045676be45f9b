"""Retraction restores orthonormal columns entry by entry, keeps the span, and the monitor names the worst entry."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dormouse_core.optim.groups import build_optimizer
from dormouse_core.optim.precision import CHUNK, Slot
from dormouse_core.optim.retraction import errors, polar, retract, worst
from dormouse_core.policy.init import orthonormal
from dormouse_core.policy.model import build_policy
from tests.core.optim.made import TINY, give_gradients, muon_config, train, values


def near(entries: int, rows: int, rank: int, off: float, seed: int = 0) -> Tensor:
    """Orthonormal columns plus a step of relative size `off`, float64."""
    rng = torch.Generator().manual_seed(seed)
    start = orthonormal((entries, rows, rank), rng).double()
    step = torch.randn(start.shape, generator=rng, dtype=torch.float64)
    return start + off * step * start.norm(dim=(-2, -1), keepdim=True) / step.norm(dim=(-2, -1), keepdim=True)


@given(entries=st.integers(1, 4), rows=st.integers(4, 80), rank=st.integers(1, 4), off=st.floats(0.0, 0.1), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_three_iterations_after_a_step_give_the_polar_factor(entries: int, rows: int, rank: int, off: float, seed: int) -> None:
    weight = near(entries, rows, rank, off, seed)
    u, _, vt = torch.linalg.svd(weight, full_matrices=False)
    got = polar(weight.float(), 3)
    assert float(errors(got).max()) < 1e-6
    torch.testing.assert_close(got.double(), u @ vt, atol=2e-6, rtol=0)


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_no_start_diverges_and_enough_iterations_arrive(scale: float, seed: int) -> None:
    weight = scale * torch.randn(2, 24, 6, generator=torch.Generator().manual_seed(seed))
    assert float(errors(polar(weight, 3)).max()) <= float(errors(weight / torch.linalg.matrix_norm(weight, 2)[:, None, None]).max()) + 1e-6
    assert float(errors(polar(weight, 12)).max()) < 1e-6


@pytest.mark.parametrize(("rows", "rank"), [(2048, 64), (192, 8)])
def test_one_step_at_ten_times_the_relative_step_is_taken_back(rows: int, rank: int) -> None:
    weight = near(2, rows, rank, 0.03).float()
    assert float(errors(weight).max()) > 1e-5
    assert float(errors(polar(weight, 3)).max()) < 2e-7


def test_only_the_entries_that_moved_are_retracted() -> None:
    p = nn.Parameter(near(4, 20, 3, 0.05).float())
    before = p.detach().clone()
    retract(Slot("p", p, (4, 20, 3), "masters", 0), torch.tensor([0, 2]), 3, 0)
    error_S = errors(p.detach())
    assert float(error_S[[0, 2]].max()) < 1e-6 < float(error_S[[1, 3]].min())
    assert torch.equal(p[[1, 3]], before[[1, 3]])


def test_the_monitor_names_the_worst_entry_of_a_stack_it_reads_in_parts() -> None:
    stack = orthonormal((40, 4096, 8), torch.Generator().manual_seed(1)).bfloat16()
    assert stack.numel() > CHUNK
    stack[37] *= 1.5
    found = worst({"stack": nn.Parameter(stack)})
    assert found.entry == 37 and found.error == pytest.approx(1.25 * 8**0.5 / 8, rel=1e-2)


def test_the_monitor_reports_the_worst_entry_by_name_and_per_rank() -> None:
    good, bad = nn.Parameter(near(3, 20, 4, 0.0).float()), nn.Parameter(near(5, 20, 4, 0.0).float())
    with torch.no_grad():
        bad[3, :, 1] *= 2
    found = worst({"good": good, "bad": bad, "plain": nn.Parameter(good.detach()[0])})
    assert (found.name, found.entry) == ("bad", 3) and found.error == pytest.approx(3 / 4, rel=1e-5)  # (4 - 1) / rank


def test_factors_stay_orthonormal_under_muon_and_drift_under_adamw() -> None:
    policy, drifting = build_policy(TINY, 1), build_policy(TINY, 1)
    optimizer = build_optimizer(policy, muon_config(), 6)
    train(policy, optimizer, range(6))
    plain = build_optimizer(drifting, muon_config(experts={"kind": "adamw"}, factors={"kind": "adamw"}), 6)
    train(drifting, plain, range(6))
    assert optimizer.orthonormality().error < 1e-6 < 1e-3 < plain.orthonormality().error
    assert plain.metrics()["orthonormality_worst"] == plain.orthonormality().error


def test_retraction_waits_for_its_step_and_takes_every_expert_that_moved_since() -> None:
    policy = build_policy(TINY, 1)
    optimizer = build_optimizer(policy, muon_config(warmup=0, retract_every=3), 6)
    experts = policy.block.experts
    drift = []
    for step in range(3):
        optimizer.zero_grad()
        give_gradients(policy, step)
        if step:
            for name in ("up_u", "up_s", "up_v", "down_u", "down_s", "down_v"):
                getattr(experts, name).grad[2] = 0  # expert 2 moves in the first step only
        optimizer.step()
        drift.append(float(errors(experts.up_u.detach())[2]))
    assert drift[0] == drift[1] > 1e-6 > drift[2]
    assert not any(torch.equal(values(policy)[n], values(build_policy(TINY, 1))[n]) for n in ("readout.u", "block.experts.up_u"))
