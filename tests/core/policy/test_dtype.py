"""bf16 and recomputed iterations: what stays fp32, what stays the same bits, and how far apart the two types are."""

import pytest
import torch
from torch import Tensor

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.resolve import resolve
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.policy.products import linear_rows
from tests.core.policy.made import require_same_bits_in_any_batch, some_bytes

NARROW = resolve("tiny").policy
WIDE = NARROW.model_copy(update={"n_experts": 24, "max_iter": 3})
SIZES = pytest.mark.parametrize("config", [NARROW, WIDE], ids=["narrow", "wide"])


def half(config: PolicyConfig) -> PolicyConfig:
    return config.model_copy(update={"dtype": "bfloat16"})


def decoded(policy: Policy, ids_BL: Tensor) -> Tensor:
    state = policy.initial_state(len(ids_BL))
    return torch.stack([policy.decode(ids_BL[:, j], state)[0] for j in range(ids_BL.shape[1])], 1)


@SIZES
def test_bf16_keeps_state_logits_values_scores_and_bias_in_fp32(config: PolicyConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, seen = build_policy(half(config), 1), []
    from dormouse_core.policy import block

    plain = block.route
    monkeypatch.setattr(block, "route", lambda score, *rest: seen.append(score.dtype) or plain(score, *rest))
    out = policy(some_bytes(2, 20))
    assert {p.dtype for p in policy.parameters()} == {torch.bfloat16} and policy.balance_bias_E.dtype is torch.float32
    assert out.hidden_BLD.dtype is torch.bfloat16 and out.logits_BLV.dtype is torch.float32
    assert out.state.kda_TBHKV_padded.dtype is torch.float32 and policy.value(out.hidden_BLD).dtype is torch.float32
    assert seen and set(seen) == {torch.float32}


@SIZES
def test_bf16_answers_as_fp32_does_within_its_own_rounding(config: PolicyConfig) -> None:
    ids_BL = some_bytes(4, 40)
    with torch.no_grad():
        full, short = (action_log_probs(build_policy(c, 1)(ids_BL).logits_BLV)[..., 65] for c in (config, half(config)))
    assert 0 < (full - short).abs().max() < 0.2


@SIZES
def test_bf16_decoding_is_the_forward_within_the_limit_rl_checks(config: PolicyConfig) -> None:
    policy, ids_BL = build_policy(half(config), 1), some_bytes(4, 40)
    with torch.no_grad():
        window = action_log_probs(policy(ids_BL).logits_BLV)[..., 65]
    assert (window - action_log_probs(decoded(policy, ids_BL))[..., 65]).abs().max() < 0.1


def batch_does_not_matter(config: PolicyConfig) -> None:
    policy, row_L = build_policy(half(config), 1), some_bytes(29, seed=1)
    require_same_bits_in_any_batch(policy)
    alone = decoded(policy, row_L[None, :6])[0]
    for lanes, at in ((16, 0), (17, 16), (40, 39), (70, 69), (130, 128)):
        crowd = some_bytes(lanes, 6, seed=lanes)
        crowd[at] = row_L[:6]
        assert torch.equal(decoded(policy, crowd)[at], alone), (lanes, at)


@SIZES
def test_a_bf16_rows_logits_have_the_same_bits_whatever_else_is_in_the_batch(config: PolicyConfig) -> None:
    batch_does_not_matter(config)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wide_bf16_rows_logits_have_the_same_bits_whatever_else_is_in_the_batch() -> None:
    """At width 768 and 2,048, where plain bf16 products differ with the number of rows."""
    batch_does_not_matter(resolve("small").policy)
    batch_does_not_matter(resolve("b1", ["policy.n_experts=72", "policy.engram_rows=1024", "policy.max_iter=2"]).policy)


@pytest.mark.parametrize("rows", [1, 15, 16, 37, 64, 65, 200])
def test_tiled_products_are_the_product(rows: int) -> None:
    rng = torch.Generator().manual_seed(rows)
    x, w = torch.randn(rows, 96, generator=rng), torch.randn(40, 96, generator=rng)
    assert torch.equal(linear_rows(x, w, 16), torch.nn.functional.linear(x, w)), "fp32 is left alone"
    got = linear_rows(x.bfloat16(), w.bfloat16(), 64)
    torch.testing.assert_close(got.double(), x.bfloat16().double() @ w.bfloat16().double().t(), atol=0.1, rtol=0.02)
    assert got.shape == (rows, 40)


@SIZES
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recomputed_iterations_give_the_same_loss_and_gradients_bit_for_bit(config: PolicyConfig, dtype: str) -> None:
    ids_BL, found = some_bytes(4, 40), []
    for again in (False, True):
        policy = build_policy(config.model_copy(update={"recompute": again, "dtype": dtype}), 1)
        out = policy(ids_BL, deep=True)
        assert out.deep_TBLV is not None
        loss = -action_log_probs(out.logits_BLV)[..., 65].mean() - torch.log_softmax(out.deep_TBLV, -1)[..., 66].mean()
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in policy.parameters() if p.grad is not None)])
    assert len(found[0]) > 20 and all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_recomputed_iterations_keep_less_for_the_backward() -> None:
    """Bytes that autograd saves: what an iteration keeps beyond its input is gone."""
    kept = []
    for again in (False, True):
        policy, total = build_policy(WIDE.model_copy(update={"recompute": again}), 1), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, total=total: total.append(t.nbytes) or t, lambda t: t):
            policy(some_bytes(4, 64))
        kept.append(sum(total))
    assert kept[1] < kept[0] / 2
