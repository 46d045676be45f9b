"""Groups, schedule, clip, bit-exact resume, and the balance of experts."""

import pytest
import torch
from torch import Tensor, nn

from dormouse_core.config.optimizer import OptimizerConfig
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.ledger import DormouseError
from dormouse_core.optim.balance import balance, read_load
from dormouse_core.optim.groups import Group, Optimizer, build_optimizer, declared_groups
from dormouse_core.policy.model import Policy, build_policy

TINY = PolicyConfig(
    d_model=32, n_heads=2, head_dim=16, n_experts=4, rank=4, d_ffn=64, shared_rank=8, engram_rows=256, engram_dim=8, readout_rank=16
)
ADAM = OptimizerConfig(lr=1e-2, warmup=3)


def train(policy: Policy, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        rng = torch.Generator().manual_seed(step)
        ids_BL = torch.randint(0, 8, (4, 24), generator=rng)
        optimizer.zero_grad()
        logits_BLV = policy(ids_BL).logits_BLV
        nn.functional.cross_entropy(logits_BLV[:, :-1].flatten(0, 1), ids_BL[:, 1:].flatten()).backward()
        optimizer.step()


def test_every_parameter_is_in_exactly_one_group() -> None:
    policy = build_policy(TINY, 1)
    names = [name for members in declared_groups(policy).values() for name in members]
    assert sorted(names) == sorted(name for name, _ in policy.named_parameters())
    assert set(declared_groups(policy)[Group.TABLES]) == {"block.engram.rows"}
    assert all(p.dim() >= 2 for p in declared_groups(policy)[Group.FACTORS].values())


def test_a_parameter_nobody_declared_stops_the_start() -> None:
    policy = build_policy(TINY, 1)
    policy.block.stray = nn.Parameter(torch.zeros(3))
    with pytest.raises(DormouseError, match=r"block\.stray in no group"):
        build_optimizer(policy, ADAM, 10)


def test_resume_equals_never_having_stopped_bit_for_bit() -> None:
    straight = build_policy(TINY, 1)
    optimizer = build_optimizer(straight, ADAM, 8)
    train(straight, optimizer, range(8))
    first = build_policy(TINY, 1)
    before = build_optimizer(first, ADAM, 8)
    train(first, before, range(4))
    resumed = build_policy(TINY, 99)
    resumed.load_state_dict(first.state_dict())
    after = build_optimizer(resumed, ADAM, 8)
    after.load(before.state())
    train(resumed, after, range(4, 8))
    want, got = straight.state_dict(), resumed.state_dict()
    assert all(torch.equal(want[name], got[name]) for name in want)
    assert all(torch.equal(optimizer.state()[name], after.state()[name]) for name in optimizer.state())


def test_optimizer_state_of_another_policy_is_refused() -> None:
    policy = build_policy(TINY, 1)
    optimizer = build_optimizer(policy, ADAM, 8)
    train(policy, optimizer, range(1))
    other = build_optimizer(build_policy(TINY.model_copy(update={"d_ffn": 96}), 1), ADAM, 8)
    with pytest.raises(DormouseError, match="does not fit"):
        other.load(optimizer.state())


def test_warm_up_is_linear_and_the_cosine_ends_at_a_tenth() -> None:
    optimizer = build_optimizer(build_policy(TINY, 1), OptimizerConfig(lr=1.0, warmup=4), 24)
    rates = []
    for optimizer.done in (0, 1, 3, 4, 14, 24, 100):
        rates.append(optimizer.lr())
    assert rates == pytest.approx([0.25, 0.5, 1.0, 1.0, 0.55, 0.1, 0.1])


def test_a_step_reports_the_norm_before_the_clip_and_moves_by_the_clipped_gradient() -> None:
    def moved(scale: float) -> tuple[float, Tensor]:
        policy = build_policy(TINY, 1)
        optimizer = build_optimizer(policy, OptimizerConfig(lr=1e-3, warmup=0, grad_clip=1.0), 5)
        policy.final_norm.grad = torch.full_like(policy.final_norm, scale)
        norm = optimizer.step()
        return norm, optimizer.state()["exp_avg/final_norm"]

    (small, gentle), (large, clipped) = moved(0.01), moved(100.0)
    assert (small, large) == pytest.approx((0.01 * 32**0.5, 100 * 32**0.5))
    torch.testing.assert_close(gentle, torch.full_like(gentle, 0.001))
    torch.testing.assert_close(clipped, torch.full_like(clipped, 0.1 / 32**0.5))


def test_a_gradient_that_is_not_finite_is_refused_by_name_and_changes_nothing() -> None:
    policy = build_policy(TINY, 1)
    optimizer = build_optimizer(policy, ADAM, 5)
    before = policy.final_norm.detach().clone()
    policy.final_norm.grad = torch.full_like(policy.final_norm, float("nan"))
    with pytest.raises(DormouseError, match="final_norm"):
        optimizer.step()
    assert torch.equal(policy.final_norm, before) and optimizer.done == 0


def test_weight_decay_touches_matrices_only_and_tables_learn_faster() -> None:
    policy = build_policy(TINY, 1)
    optimizer = build_optimizer(policy, OptimizerConfig(lr=1e-2, warmup=0, weight_decay=0.5), 5)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    for p in policy.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    decayed = {g for g, members in optimizer.groups.items() for name, p in members.items() if not torch.equal(p, before[name])}
    assert decayed == {Group.MATRICES, Group.QUERY_KEY, Group.MEMORY_KEY}
    torch.testing.assert_close(policy.embedding.detach(), before["embedding"] * 0.995)
    policy = build_policy(TINY, 1)
    optimizer = build_optimizer(policy, OptimizerConfig(lr=1e-3, warmup=0, weight_decay=0.0), 5)
    rows, embedding = policy.block.engram.rows.detach().clone(), policy.embedding.detach().clone()
    policy.block.engram.rows.grad, policy.embedding.grad = torch.ones_like(rows) * 1e-3, torch.ones_like(embedding) * 1e-3
    optimizer.step()
    torch.testing.assert_close(rows - policy.block.engram.rows, torch.full_like(rows, 5e-3), atol=1e-5, rtol=0)
    torch.testing.assert_close(embedding - policy.embedding, torch.full_like(embedding, 1e-3), atol=1e-5, rtol=0)


def test_balance_lowers_the_bias_of_the_overloaded_and_bumps_the_version() -> None:
    policy = build_policy(TINY, 1)
    policy.load_E.copy_(torch.tensor([100, 20, 20, 20]))
    load = balance(policy, 1e-3)
    assert load is not None and load.dead == 0 and load.max_violation == pytest.approx(1.5)
    torch.testing.assert_close(policy.balance_bias_E, torch.tensor([-1.5e-3, 5e-4, 5e-4, 5e-4]))
    assert policy.lfb_version == 1 and int(policy.load_E.sum()) == 0


def test_counts_too_few_to_tell_are_kept_and_step_zero_moves_nothing() -> None:
    policy = build_policy(TINY, 1)
    policy.load_E.copy_(torch.tensor([10, 1, 0, 0]))
    assert balance(policy, 1e-3) is not None
    assert policy.lfb_version == 0 and int(policy.load_E.sum()) == 11
    policy.load_E.copy_(torch.tensor([100, 1, 0, 0]))
    balance(policy, 0.0)
    assert policy.lfb_version == 0 and not policy.balance_bias_E.any()
    assert read_load(torch.zeros(4, dtype=torch.int64)) is None


def test_balancing_evens_out_a_skewed_router() -> None:
    policy = build_policy(TINY, 1)
    with torch.no_grad():
        policy.block.controller[3].add_(0.3 * torch.randn(64, generator=torch.Generator().manual_seed(0)))
    policy.train()
    policy.count_load = True
    ids_BL = torch.randint(0, 256, (16, 64), generator=torch.Generator().manual_seed(0))
    seen = []
    for _ in range(60):
        with torch.no_grad():
            policy(ids_BL)
        seen.append(balance(policy, 1e-2))
    assert seen[0] is not None and seen[-1] is not None and seen[-1].cv < seen[0].cv / 2 and seen[-1].cv < 0.2


def test_loads_are_counted_in_train_mode_only_when_asked_and_over_all_iterations() -> None:
    policy, ids_BL = build_policy(TINY, 1), torch.zeros(4, 10, dtype=torch.int64)
    policy(ids_BL)
    policy.count_load = True
    policy.eval()(ids_BL)
    assert int(policy.load_E.sum()) == 0
    policy.train()(ids_BL)
    assert int(policy.load_E.sum()) == 4 * 10 * TINY.moe_topk * TINY.max_iter
