"""The loss: right gradient, the same gradient however the batch is cut, parts that can be switched off."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.stages import GroupAdvantage, RewardConfig, RlConfig
from dormouse_core.encoding import Role, Span
from dormouse_core.learning.advantage import Credit, estimate
from dormouse_core.learning.batches import Aggregation, StepBatch, step_batches, text_batch
from dormouse_core.learning.loss import LossWeights, announce, forward, rl_loss, text_loss, written
from dormouse_core.learning.reward import shape
from dormouse_core.learning.rows import rendered
from dormouse_core.learning.update import RlWork, base_log_probs, gradient
from dormouse_core.ledger import Ledger
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts.trajectory import Trajectory
from tests.core.learning.made import step, task, trajectory, verdict

TINY = PolicyConfig(d_model=16, n_heads=1, head_dim=16, max_iter=2, n_experts=4, rank=4, d_ffn=32, shared_rank=4, engram_rows=64,
                    engram_dim=4, max_seq_len=128)
PLAIN = LossWeights(clip=0.2, kl=0.0, entropy=0.0, value=0.0)


@pytest.fixture(scope="module")
def policy() -> Policy:
    policy = build_policy(TINY, 3)
    with torch.no_grad():
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return policy


def episodes(groups: int = 4, size: int = 4) -> tuple[list[Trajectory], Credit]:
    """Ragged multi-step rows, half of each group passing."""
    draw = np.random.default_rng(5)
    ts = []
    for g in range(groups):
        for i in range(size):
            steps = [step(k, draw.integers(97, 123, draw.integers(1, 9)).astype(np.uint8).tobytes()) for k in range(draw.integers(1, 4))]
            ts.append(trajectory(f"{g}{i}", str(g), steps, prompt=b"p" * int(draw.integers(1, 30))))
    verdicts = [verdict(t, "pass" if i % 2 else "fail") for i, t in enumerate(ts)]
    return ts, estimate(ts, shape(ts, verdicts, {"task": task()}, RewardConfig(solution=False, behaviour=False)), GroupAdvantage())


def on_policy(policy: Policy, batch: StepBatch) -> StepBatch:
    """The batch with the policy's own log-probs as the sampled ones."""
    with torch.no_grad():
        return replace(batch, sampled_X=written(forward(policy, batch)[0], batch).numpy())


def flat(policy: Policy, works: list[RlWork], base: Policy) -> torch.Tensor:
    return torch.from_numpy(np.sum([gradient(policy, w, base).gradient_P for w in works], axis=0))


@pytest.mark.parametrize("aggregation", ["prompt_mean", "trajectory_mean", "byte_mean"])
def test_gradients_are_equal_whatever_the_micro_batching(policy: Policy, aggregation: Aggregation) -> None:
    ts, credit = episodes()
    weights = LossWeights(clip=0.2, kl=0.1, entropy=0.02, value=0.1)
    base = build_policy(TINY, 4)
    cuts = []
    for parts in (1, 4, 16):
        batches = step_batches(ts, credit, aggregation, parts)
        assert len(batches) == parts or parts == 16
        cuts.append(flat(policy, [RlWork(b, weights) for b in batches], base))
    scale = cuts[0].abs().max()
    assert scale > 1e-3
    for other in cuts[1:]:
        assert (cuts[0] - other).abs().max() <= 1e-6 * max(1.0, float(scale))


def test_on_policy_gradient_is_advantage_times_the_mean_score_of_the_bytes(policy: Policy) -> None:
    ts, credit = episodes(groups=1, size=2)
    batch = on_policy(policy, step_batches(ts, credit, "prompt_mean", 1)[0])
    got = gradient(policy, RlWork(batch, PLAIN)).gradient_P
    log_probs_XU, _ = forward(policy, batch)
    advantage_X = torch.from_numpy(batch.advantage_S)[torch.from_numpy(batch.step_X)]
    score_X = written(log_probs_XU, batch) * advantage_X
    rows = torch.from_numpy(batch.row_X)
    by_hand = -torch.stack([score_X[rows == r].mean() for r in range(2)]).mean()
    named = [p for _, p in policy.named_parameters()]
    expected = torch.autograd.grad(by_hand, named, allow_unused=True)
    assert torch.from_numpy(got) == pytest.approx(torch.cat([g.reshape(-1) for g in expected if g is not None]), abs=1e-6)


def test_at_no_change_of_weights_every_step_ratio_is_one_and_nothing_is_clipped(policy: Policy) -> None:
    ts, credit = episodes()
    batch = on_policy(policy, step_batches(ts, credit, "prompt_mean", 1)[0])
    _, report = rl_loss(policy, batch, PLAIN, None)
    assert report["log_ratio_max"] < 1e-6 and report["clipped_sum"] == 0


def test_the_clip_stops_a_step_that_has_moved_far_enough_the_right_way(policy: Policy) -> None:
    ts, credit = episodes()
    batch = on_policy(policy, step_batches(ts, credit, "prompt_mean", 1)[0])
    sign_X = np.sign(batch.advantage_S)[batch.step_X]
    moved = replace(batch, sampled_X=(batch.sampled_X - 0.5 * sign_X).astype(np.float32))
    _, report = rl_loss(policy, moved, PLAIN, None)
    assert report["clipped_sum"] == report["steps_sum"]
    assert np.abs(gradient(policy, RlWork(moved, PLAIN)).gradient_P).max() == 0
    wrong_way = replace(batch, sampled_X=(batch.sampled_X + 0.5 * sign_X).astype(np.float32))
    assert np.abs(gradient(policy, RlWork(wrong_way, PLAIN)).gradient_P).max() > 0
    free = gradient(policy, RlWork(moved, replace(PLAIN, clip=0.0))).gradient_P
    assert np.abs(free).max() > 0


def test_ratio_is_the_exponential_of_the_mean_over_the_steps_bytes(policy: Policy) -> None:
    ts, credit = episodes()
    batch = on_policy(policy, step_batches(ts, credit, "prompt_mean", 1)[0])
    shift_X = np.where(np.arange(len(batch.step_X)) % 2 == 0, 0.3, -0.1).astype(np.float32)
    means = np.bincount(batch.step_X, weights=shift_X) / batch.bytes_S
    _, report = rl_loss(policy, replace(batch, sampled_X=batch.sampled_X - shift_X), PLAIN, None)
    assert report["log_ratio_max"] == pytest.approx(np.abs(means).max(), abs=1e-5)
    assert report["byte_gap_max"] == pytest.approx(0.3, abs=1e-5)


def test_kl_is_exact_over_the_bytes_and_zero_with_zero_gradient_at_the_base(policy: Policy) -> None:
    ts, credit = episodes()
    batch = step_batches(ts, credit, "prompt_mean", 1)[0]
    weights = LossWeights(clip=0.2, kl=1.0, entropy=0.0, value=0.0)
    _, at_base = rl_loss(policy, batch, weights, base_log_probs(policy, batch))
    assert abs(at_base["kl_sum"]) < 1e-4
    own = gradient(policy, RlWork(batch, weights), policy).gradient_P
    assert own == pytest.approx(gradient(policy, RlWork(batch, PLAIN)).gradient_P, abs=1e-6)
    base = build_policy(TINY, 9)
    _, apart = rl_loss(policy, batch, weights, base_log_probs(base, batch))
    p = base_log_probs(policy, batch).double()
    q = base_log_probs(base, batch).double()
    assert apart["kl_sum"] == pytest.approx(float((p.exp() * (p - q)).sum()), rel=1e-4)


def test_value_regression_moves_the_value_head_alone(policy: Policy) -> None:
    ts, credit = episodes()
    batch = step_batches(ts, credit, "prompt_mean", 1)[0]
    batch = replace(batch, advantage_S=np.zeros_like(batch.advantage_S))
    part = gradient(policy, RlWork(batch, replace(PLAIN, value=1.0)))
    sizes, offset, moved = {n: p.numel() for n, p in policy.named_parameters()}, 0, []
    for name in part.touched:
        if np.any(part.gradient_P[offset : offset + sizes[name]]):
            moved.append(name)
        offset += sizes[name]
    assert moved == ["value_head.weight", "value_head.bias"]


def test_entropy_bonus_raises_entropy(policy: Policy) -> None:
    ts, credit = episodes()
    batch = step_batches(ts, credit, "prompt_mean", 1)[0]
    batch = replace(batch, advantage_S=np.zeros_like(batch.advantage_S))

    def mean_entropy() -> float:
        return rl_loss(policy, batch, PLAIN, None)[1]["entropy_sum"]

    before = mean_entropy()
    part = gradient(policy, RlWork(batch, replace(PLAIN, entropy=1.0)))
    offset, parameters = 0, dict(policy.named_parameters())
    kept = {n: parameters[n].detach().clone() for n in part.touched}
    with torch.no_grad():
        for name in part.touched:
            p = parameters[name]
            p -= 0.01 * torch.from_numpy(part.gradient_P[offset : offset + p.numel()]).view_as(p)
            offset += p.numel()
    after = mean_entropy()
    with torch.no_grad():
        for name, value in kept.items():
            parameters[name].copy_(value)
    assert after > before


def test_a_role_tag_among_the_written_bytes_is_refused(policy: Policy) -> None:
    ts = [trajectory("a", "a", [step(0, b"x\x03y")]), trajectory("b", "a", [step(0, b"xy")])]
    verdicts = [verdict(ts[0], "pass"), verdict(ts[1], "fail")]
    credit = estimate(ts, shape(ts, verdicts, {"task": task()}, RewardConfig()), GroupAdvantage())
    with pytest.raises(ValueError, match="role tag"):
        rl_loss(policy, step_batches(ts, credit, "prompt_mean", 1)[0], PLAIN, None)


def test_what_is_switched_off_says_so() -> None:
    ledger = Ledger()
    announce(RlConfig(kl=0.0, clip=0.0, aggregation="byte_mean"), ledger)
    assert len(ledger.lines) == 3
    announce(RlConfig(), quiet := Ledger())
    assert quiet.lines == []


CHAT = [[Span(Role.PROMPT, b"2+2?"), Span(Role.ASSISTANT, b"4")], [Span(Role.PROMPT, b"hi"), Span(Role.ASSISTANT, b"look"),
         Span(Role.OBSERVATION, b"dark"), Span(Role.ASSISTANT, b"go")]]


def test_text_loss_is_the_mean_over_assistant_bytes_of_the_action_distribution(policy: Policy) -> None:
    rows = rendered(CHAT)
    total = sum(text_loss(policy, b, 0.0)[0].item() for b in text_batch(rows.streams, rows.masks, rows.observed, 0.0, 2))
    nll, n = 0.0, 0
    for stream, mask in zip(rows.streams, rows.masks, strict=True):
        log_probs = action_log_probs(policy(torch.from_numpy(stream.astype(np.int64))[None]).logits_BLV[0]).detach()
        for t in np.flatnonzero(mask):
            nll -= float(log_probs[t - 1, stream[t]])
            n += 1
    assert n == 2 + 5 + 3 and total == pytest.approx(nll / n, rel=1e-5)


def test_changing_a_user_byte_after_the_last_answer_changes_no_loss_and_no_user_byte_is_a_target(policy: Policy) -> None:
    rows = rendered([[Span(Role.PROMPT, b"a"), Span(Role.ASSISTANT, b"b"), Span(Role.PROMPT, last)] for last in (b"xx", b"yz")])
    losses = [text_loss(policy, text_batch([s], [m], [o], 0.0)[0], 0.25)[0].item()
              for s, m, o in zip(rows.streams, rows.masks, rows.observed, strict=True)]
    assert losses[0] == losses[1]


def test_observation_loss_adds_the_mean_over_observation_bytes(policy: Policy) -> None:
    rows = rendered(CHAT)
    off = text_loss(policy, text_batch(rows.streams, rows.masks, rows.observed, 0.0)[0], 0.0)[0].item()
    on = text_loss(policy, text_batch(rows.streams, rows.masks, rows.observed, 1.0)[0], 0.0)[0].item()
    only = text_loss(policy, text_batch(rows.streams, rows.observed, rows.masks, 0.0)[0], 0.0)[0].item()
    assert on == pytest.approx(off + only, rel=1e-5)
