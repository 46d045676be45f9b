"""Frozen groups, the frozen router and its version, and what the watch refuses."""

import pytest
import torch

from dormouse_core.config.optimizer import OptimizerConfig
from dormouse_core.ledger import DormouseError
from dormouse_core.optim.balance import balance
from dormouse_core.optim.freeze import RouterWatch, gate_rows, router_rows, router_version
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import build_policy
from tests.core.optim.made import TINY, give_gradients, muon_config, train, values


def table(**rows: object) -> OptimizerConfig:
    return OptimizerConfig.model_validate({"lr": 1e-2, "warmup": 0, "weight_decay": 0.5, **rows})


def test_a_frozen_group_moves_nothing_and_keeps_nothing() -> None:
    policy = build_policy(TINY, 1)
    frozen = {name: {"kind": "frozen"} for name in ("experts", "expert_scales", "tables")}
    optimizer = build_optimizer(policy, muon_config(**frozen), 5)
    before = values(policy)
    train(policy, optimizer, range(2))
    still = {name for name, p in policy.named_parameters() if torch.equal(p, before[name])}
    assert still >= {n for n in before if ".experts." in n or n == "block.engram.rows"}
    assert not still & {"embedding", "readout.u", "block.kda.query"}
    assert not [key for key in optimizer.state() if "experts." in key or "engram.rows" in key]
    assert not policy.block.experts.up_u.requires_grad and policy.embedding.requires_grad


def test_a_frozen_gradient_does_not_shrink_the_others_through_the_clip() -> None:
    def norm(**rows: object) -> float:
        policy = build_policy(TINY, 1)
        optimizer = build_optimizer(policy, table(**rows), 5)
        for p in policy.parameters():
            p.grad = torch.ones_like(p)
        return optimizer.step()

    count = sum(p.numel() for p in build_policy(TINY, 1).parameters())
    rows = build_policy(TINY, 1).block.engram.rows.numel()
    assert norm() == pytest.approx(count**0.5, rel=1e-5)
    assert norm(tables={"kind": "frozen"}) == pytest.approx((count - rows) ** 0.5, rel=1e-5)


def test_a_frozen_router_keeps_its_rows_to_the_bit_while_the_gates_learn() -> None:
    policy = build_policy(TINY, 1)
    optimizer = build_optimizer(policy, table(freeze_router=True), 5)
    before = policy.block.controller.detach().clone()
    watch = RouterWatch(policy, rows=True)
    train(policy, optimizer, range(3))
    controller = policy.block.controller.detach()
    assert torch.equal(controller[router_rows(policy)], before[router_rows(policy)])
    assert not (controller[:3] == before[:3]).any()
    assert watch.check("round 1") == watch.started


def test_gates_move_by_the_bits_they_would_without_the_freeze() -> None:
    def gates(freeze: bool) -> torch.Tensor:
        policy = build_policy(TINY, 1)
        optimizer = build_optimizer(policy, table(freeze_router=freeze, grad_clip=1e9), 5)
        train(policy, optimizer, range(1))
        return policy.block.controller.detach()[gate_rows(policy)]

    assert torch.equal(gates(True), gates(False))


def test_the_version_names_bias_and_rows_and_nothing_else() -> None:
    policy = build_policy(TINY, 1)
    start = router_version(policy)
    with torch.no_grad():
        policy.block.controller[0] += 1  # a gate
        policy.embedding += 1
    assert router_version(policy) == start and start.number == router_version(policy).number
    with torch.no_grad():
        policy.block.controller[3] += 1
    rows = router_version(policy)
    assert rows.rows != start.rows and rows.bias == start.bias and rows.number != start.number
    policy.load_E.copy_(torch.tensor([100, 20, 20, 20]))
    balance(policy, 1e-3)
    assert router_version(policy).balance == start.balance + 1 and router_version(policy).bias != start.bias


def test_the_watch_refuses_a_bias_that_moved_and_rows_that_changed() -> None:
    policy = build_policy(TINY, 1)
    free, frozen = RouterWatch(policy, rows=False), RouterWatch(policy, rows=True)
    give_gradients(policy, 0)
    build_optimizer(policy, table(), 5).step()
    assert free.check("round 2").rows != free.started.rows
    with pytest.raises(DormouseError, match=r"round 2: the router's rows changed"):
        frozen.check("round 2")
    policy.load_E.copy_(torch.tensor([100, 20, 20, 20]))
    balance(policy, 1e-3)
    with pytest.raises(DormouseError, match=r"selection bias moved \(balance version 0 -> 1\)"):
        free.check("round 3")
    RouterWatch(policy, rows=False, bias=False).check("round 3")
