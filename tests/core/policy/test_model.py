"""The policy's promises: causality, decode = forward, windows with context, rows that never touch each other, gradients."""

import pytest
import torch
from torch import Tensor

from dormouse_core.config.optimizer import OptimizerConfig
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, build_policy
from tests.core.policy.made import require_same_bits_in_any_batch, some_bytes

TINY = PolicyConfig(
    d_model=32, n_heads=2, head_dim=16, n_experts=4, rank=4, d_ffn=64, shared_rank=8, engram_rows=256, engram_dim=8, readout_rank=16
)
WIDE = TINY.model_copy(update={"n_experts": 24, "max_iter": 3})
NANO = PolicyConfig(readout_rank=48)


def lively(config: PolicyConfig, seed: int = 1) -> Policy:
    """A policy whose arms all speak up: weights that start at 0.02 are scaled to 0.3, so no arm hides behind rounding."""
    policy = build_policy(config, seed)
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if name.startswith(("block.kda.", "block.engram.rows")) and p.dim() == 2:
                p.mul_(15)
        policy.block.iter_embed.normal_(generator=torch.Generator().manual_seed(seed))
    return policy


def decode_all(policy: Policy, ids_BL: Tensor) -> tuple[Tensor, Tensor, object]:
    state = policy.initial_state(len(ids_BL))
    steps = [policy.decode(ids_BL[:, j], state) for j in range(ids_BL.shape[1])]
    return torch.stack([s[0] for s in steps], 1), torch.stack([s[1] for s in steps], 1), state


@pytest.mark.parametrize("config", [TINY, WIDE, NANO], ids=["tiny", "wide", "nano"])
def test_changing_byte_j_never_moves_a_logit_before_j(config: PolicyConfig) -> None:
    policy, ids_BL = lively(config), some_bytes(3, 45)
    with torch.no_grad():
        before = policy(ids_BL).logits_BLV
        for j in (0, 1, 15, 16, 31, 44):
            changed = ids_BL.clone()
            changed[:, j] ^= 0x55
            after = policy(changed).logits_BLV
            assert torch.equal(after[:, :j], before[:, :j]), j
            assert not torch.equal(after[:, j], before[:, j]), j


@pytest.mark.parametrize("config", [TINY, WIDE, NANO], ids=["tiny", "wide", "nano"])
def test_decoding_byte_by_byte_is_the_teacher_forced_forward(config: PolicyConfig) -> None:
    policy, ids_BL = lively(config), some_bytes(5, 37)
    with torch.no_grad():
        out = policy(ids_BL)
    logits_BLV, hidden_BLD, state = decode_all(policy, ids_BL)
    assert out.logits_BLV.abs().max() > 0.5
    torch.testing.assert_close(logits_BLV, out.logits_BLV, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(hidden_BLD, out.hidden_BLD, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(state.kda_BTHKV, out.state.kda_BTHKV, atol=2e-5, rtol=1e-5)
    assert torch.equal(state.tail_B3, out.state.tail_B3)


def test_a_window_cut_anywhere_equals_the_whole_window() -> None:
    policy, ids_BL = lively(TINY), some_bytes(3, 40)
    with torch.no_grad():
        whole = policy(ids_BL)
        for cut in (1, 2, 3, 17, 39):
            head = policy(ids_BL[:, :cut])
            rest = policy(ids_BL[:, cut:], head.state)
            joined = torch.cat((head.logits_BLV, rest.logits_BLV), 1)
            torch.testing.assert_close(joined, whole.logits_BLV, atol=2e-5, rtol=1e-5)
            torch.testing.assert_close(rest.state.kda_BTHKV, whole.state.kda_BTHKV, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("config", [TINY, WIDE, NANO], ids=["tiny", "wide", "nano"])
def test_a_rows_logits_have_the_same_bits_whatever_else_is_in_the_batch(config: PolicyConfig) -> None:
    policy, row_L = lively(config), some_bytes(29, seed=1)
    require_same_bits_in_any_batch(policy)
    with torch.no_grad():
        alone = policy(row_L[None]).logits_BLV[0]
        assert torch.equal(policy(row_L[None, :3]).logits_BLV[0], alone[:3])


@pytest.mark.parametrize("config", [TINY, WIDE, NANO], ids=["tiny", "wide", "nano"])
def test_a_decoded_row_has_the_same_bits_in_any_lane_of_any_batch(config: PolicyConfig) -> None:
    policy, row_L = lively(config), some_bytes(12, seed=2)
    alone = decode_all(policy, row_L[None])[0][0]
    for lanes, at in ((16, 0), (17, 16), (40, 39), (64, 5), (70, 69)):
        crowd = some_bytes(lanes, 12, seed=lanes)
        crowd[at] = row_L
        assert torch.equal(decode_all(policy, crowd)[0][at], alone), (lanes, at)


@pytest.mark.parametrize("config", [TINY, WIDE], ids=["narrow experts", "wide experts"])
def test_every_parameter_group_receives_a_finite_nonzero_gradient(config: PolicyConfig) -> None:
    policy, ids_BL = build_policy(config, 1), some_bytes(8, 48)
    out = policy(ids_BL, deep=True)
    deep = out.deep_TBLV
    assert deep is not None
    loss = -action_log_probs(out.logits_BLV)[..., 65].mean() - torch.log_softmax(deep, -1)[..., 66].mean()
    loss = loss + sum(head(out.hidden_BLD).sub(1).square().mean() for head in (policy.value_head, policy.q_head, policy.mor_router))
    loss.backward()
    for group, members in build_optimizer(policy, OptimizerConfig(), 10).groups.items():
        assert members, group
        for name, p in members.items():
            assert p.grad is not None and torch.isfinite(p.grad).all(), name
            assert p.grad.abs().max() > 0, name


def test_narrow_and_wide_experts_are_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, ids_BL = lively(TINY), some_bytes(4, 24)
    narrow = policy(ids_BL).logits_BLV
    monkeypatch.setattr("dormouse_core.policy.block.narrow", lambda config: False)
    torch.testing.assert_close(policy(ids_BL).logits_BLV, narrow, atol=2e-5, rtol=1e-5)


def test_reading_at_depth_changes_nothing_in_the_answer() -> None:
    policy, ids_BL = lively(TINY), some_bytes(2, 20)
    with torch.no_grad():
        plain, deep = policy(ids_BL), policy(ids_BL, deep=True)
    assert plain.deep_TBLV is None and deep.deep_TBLV is not None
    assert deep.deep_TBLV.shape == (2, 2, 20, 256)
    assert torch.equal(plain.logits_BLV, deep.logits_BLV)


def test_decoding_notices_changed_weights_without_being_told() -> None:
    policy, ids_B = lively(TINY), some_bytes(4)
    first = policy.decode(ids_B, policy.initial_state(4))[0]
    with torch.no_grad():
        policy.block.mem_dense.mul_(2.0)
    changed = policy.decode(ids_B, policy.initial_state(4))[0]
    assert not torch.equal(first, changed)
    policy.load_state_dict(lively(TINY).state_dict())
    assert torch.equal(policy.decode(ids_B, policy.initial_state(4))[0], first)


def test_the_seed_decides_every_weight_and_nothing_else_does() -> None:
    torch.manual_seed(123)
    first = build_policy(TINY, 7).state_dict()
    torch.manual_seed(456)
    again, other = build_policy(TINY, 7).state_dict(), build_policy(TINY, 8).state_dict()
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["block.kda.query"], other["block.kda.query"])
    deeper = build_policy(TINY.model_copy(update={"n_experts": 8}), 7).state_dict()
    assert torch.equal(first["embedding"], deeper["embedding"])


def test_decode_refuses_a_byte_count_that_is_not_the_states() -> None:
    policy = build_policy(TINY, 1)
    with pytest.raises(ValueError, match="3 rows"):
        policy.decode(some_bytes(2), policy.initial_state(3))
