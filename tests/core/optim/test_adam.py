"""Adam's rule: the bits of torch.optim.AdamW without torch.optim, a float64 reference, and rows that rest."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dormouse_core.config.optimizer import OptimizerConfig
from dormouse_core.config.resolve import resolve
from dormouse_core.optim.adam import adam_step
from dormouse_core.optim.declared import CLIP_ORDER, DECAYED, Group, declared_groups
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.optim.precision import ALL, Slot
from dormouse_core.policy.model import Policy, build_policy
from tests.core.optim.made import TINY, give_gradients, train

BETAS = (0.9, 0.99)


def slot(p: nn.Parameter) -> Slot:
    return Slot("p", p, tuple(p.shape) or (1,), "masters", 0)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def torch_run(policy: Policy, config: OptimizerConfig, steps: int) -> None:
    """The same steps by torch.optim.AdamW itself, group by group, under the same schedule and clip."""
    groups, schedule = declared_groups(policy), build_optimizer(build_policy(policy.config, 1), config, steps)
    members = [(g, p) for family in CLIP_ORDER for name, p in policy.named_parameters() for g in family if name in groups[g]]
    scale = {Group.TABLES: config.table_lr_scale}
    adam = torch.optim.AdamW([{"params": [p], "weight_decay": config.weight_decay if g in DECAYED else 0.0} for g, p in members],
                             lr=1.0, betas=(config.beta1, config.beta2), eps=1e-8, fused=True)  # fmt: skip
    for step in range(steps):
        policy.zero_grad()
        give_gradients(policy, step)
        torch.nn.utils.clip_grad_norm_([p for _, p in members if p.grad is not None], config.grad_clip)
        schedule.done = step
        for options, (g, _) in zip(adam.param_groups, members, strict=True):
            options["lr"] = schedule.lr() * scale.get(g, 1.0)
        adam.step()
        policy.refresh()


@pytest.mark.parametrize("preset", ["tiny", "nano"])
def test_the_default_table_gives_the_bits_of_torch_adamw(preset: str) -> None:
    config = resolve(preset)
    ours, theirs = (build_policy(config.policy, 1) for _ in range(2))
    optimizer = config.sft.optimizer.model_copy(update={"warmup": 2})
    train(ours, build_optimizer(ours, optimizer, 6), range(6))
    torch_run(theirs, optimizer, 6)
    want, got = theirs.state_dict(), ours.state_dict()
    assert all(torch.equal(want[name], got[name]) for name in want)


def test_a_step_imports_no_compiler() -> None:
    code = ("import sys, torch; from dormouse_core.optim.groups import build_optimizer as b; from tests.core.optim.made import *;"
            "from dormouse_core.policy.model import build_policy; p = build_policy(TINY, 1); o = b(p, muon_config(), 3);"
            "train(p, o, range(1)); o.load(o.state()); sys.exit('torch._dynamo' in sys.modules)")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(shape=st.lists(st.integers(1, 9), min_size=0, max_size=3), seed=st.integers(0, 99), decay=st.sampled_from([0.0, 0.3]))
@settings(deadline=None, max_examples=40)
def test_steps_follow_the_float64_reference(shape: list[int], seed: int, decay: float) -> None:
    p = nn.Parameter(draws(*shape, seed=seed))
    held, want = slot(p), p.detach().double()
    m, v = torch.zeros_like(want), torch.zeros_like(want)
    for t in range(1, 4):
        p.grad = draws(*shape, seed=seed + t)
        adam_step([(held, ALL)], 1e-2, BETAS, decay, t)
        g = p.grad.double()
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
        want = want * (1 - 1e-2 * decay) - 1e-2 * (m / (1 - BETAS[0] ** t)) / ((v / (1 - BETAS[1] ** t)).sqrt() + 1e-8)
    torch.testing.assert_close(p.detach().double(), want, atol=2e-6, rtol=2e-6)


def test_touched_rows_move_as_in_torch_sparse_adam_and_the_others_keep_their_bits() -> None:
    ours, theirs = nn.Parameter(draws(12, 5)), nn.Parameter(draws(12, 5))
    held, sparse = slot(ours), torch.optim.SparseAdam([theirs], lr=1e-2, betas=BETAS, eps=1e-8)
    for step, rows in enumerate([[0, 3, 4], [3], [1, 11], [0, 1, 2, 3]]):
        index, value, before = torch.tensor(rows), draws(len(rows), 5, seed=step), ours.detach().clone()
        ours.grad = torch.zeros(12, 5).index_copy(0, index, value)
        theirs.grad = torch.sparse_coo_tensor(index.unsqueeze(0), value, (12, 5), check_invariants=True)
        adam_step([(held, index)], 1e-2, BETAS, 0.0, step)
        sparse.step()
        rest = [i for i in range(12) if i not in rows]
        assert torch.equal(ours[rest], before[rest])
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    assert not held.state["exp_avg"][5:11].any() and held.state["exp_avg"][3].all()


def test_tables_under_plain_adam_move_the_rows_a_step_has_read_and_no_others() -> None:
    policy = build_policy(TINY, 1)
    optimizer = build_optimizer(policy, OptimizerConfig.model_validate({"tables": {"kind": "adam"}, "warmup": 0}), 5)
    train(policy, optimizer, range(1))
    first, before = policy.block.engram.rows.grad, policy.block.engram.rows.detach().clone()
    assert first is not None
    optimizer.zero_grad()
    give_gradients(policy, 7)
    read = policy.block.engram.rows.grad
    assert read is not None
    touched, earlier = read.any(1), first.any(1)
    assert (earlier & ~touched).any()  # rows with momentum that this step does not read
    optimizer.step()
    moved = (policy.block.engram.rows != before).any(1)
    assert torch.equal(moved, touched)
