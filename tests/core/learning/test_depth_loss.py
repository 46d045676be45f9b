"""Losses of the depth arms: each trains what it names, adds up over micro-batches, and says that it ran."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.provenance import Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.depth import Depth, MorDepth, PonderDepth, QStopDepth, RandomDepth, SkipDepth
from dormouse_core.config.optimizer import OptimizerConfig
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.learning import depth
from dormouse_core.learning import loss as plain
from dormouse_core.learning.batches import TextBatch, text_batch
from dormouse_core.learning.monitor import log_prob_parity
from dormouse_core.learning.reward import is_fork
from dormouse_core.learning.update import Fuse, Outcome, TextWork, gradient, score_text, update
from dormouse_core.ledger import Ledger
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts import stage
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.store import KEYS, tasks_to_table
from dormouse_core.tasks.task import Split
from tests.core.learning.made import TINY, config

ARMS: list[Depth] = [RandomDepth(), MorDepth(slots=2), SkipDepth(), QStopDepth(), PonderDepth()]
each_arm = pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.kind)
OWN_HEAD = {"mor": "mor_router", "skip": "mor_router", "q_stop": "q_head", "ponder": "mor_router"}


def fresh(arm: Depth | None = None, **changes: object) -> Policy:
    kind = {} if arm is None else {"depth": arm.model_dump()}
    return build_policy(PolicyConfig.model_validate(TINY["policy"] | {"max_iter": 3} | kind | changes), 1)


def batches(parts: int = 1, seed: int = 0) -> list[TextBatch]:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(97, 110, n).astype(np.uint8) for n in (20, 20, 31, 12)]
    masks = [np.arange(len(r)) >= 4 for r in rows]
    return text_batch(rows, masks, [np.zeros(len(r), bool) for r in rows], 0.0, parts)


def of(part: object, name: str, policy: Policy) -> np.ndarray:
    """The named parameter's stretch of a part's gradient."""
    at, sizes = 0, {n: p.numel() for n, p in policy.named_parameters()}
    for touched in part.touched:  # type: ignore[attr-defined]
        if touched == name:
            return part.gradient_P[at : at + sizes[touched]]  # type: ignore[attr-defined, no-any-return]
        at += sizes[touched]
    return np.zeros(0)


@each_arm
def test_a_new_policys_arm_receives_a_finite_nonzero_gradient_beside_all_other_weights(arm: Depth) -> None:
    policy = fresh(arm)
    part = gradient(policy, TextWork(batches()[0], 0.25))
    assert np.isfinite(part.gradient_P).all()
    if arm.kind in OWN_HEAD:
        for leaf in ("weight", "bias"):
            assert np.abs(of(part, f"{OWN_HEAD[arm.kind]}.{leaf}", policy)).max() > 0, leaf
    unused = {"value_head", "q_head", "mor_router"} - {OWN_HEAD.get(arm.kind)}
    assert {n.split(".")[0] for n in part.touched} == {n.split(".")[0] for n, _ in policy.named_parameters()} - unused


@each_arm
def test_an_arm_trains_in_bf16_and_recomputed_iterations_keep_its_bits(arm: Depth) -> None:
    kept, recomputed, half = (gradient(fresh(arm, **changes), TextWork(batches()[0], 0.25)) for changes in (
        {}, {"recompute": True}, {"dtype": "bfloat16"}))
    assert np.array_equal(kept.gradient_P, recomputed.gradient_P)
    assert kept.touched == half.touched and np.isfinite(half.gradient_P).all()


@pytest.mark.parametrize("arm", [MorDepth(slots=2), QStopDepth()], ids=lambda arm: arm.kind)
def test_the_router_and_the_q_head_are_taught_without_bending_what_they_read(arm: Depth) -> None:
    quiet, taught = (gradient(fresh(arm.model_copy(update={"weight": w})), TextWork(batches()[0], 0.25)) for w in (0.0, 5.0))
    policy, own = fresh(arm), OWN_HEAD[arm.kind]
    for name in taught.touched:
        same = np.array_equal(of(quiet, name, policy), of(taught, name, policy))
        assert same != name.startswith(own), name


@pytest.mark.parametrize("arm", ARMS[1:], ids=lambda arm: arm.kind)  # parts of a batch under random depth each draw their own
def test_a_batch_in_parts_adds_up_to_the_gradient_of_the_whole(arm: Depth) -> None:
    policy = fresh(arm)
    (whole,) = [gradient(policy, TextWork(b, 0.25)) for b in batches()]
    parts = [gradient(policy, TextWork(b, 0.25)) for b in batches(2)]
    np.testing.assert_allclose(sum(p.gradient_P for p in parts), whole.gradient_P, atol=2e-5)


@each_arm
def test_text_sum_is_the_loss_of_the_distribution_that_samples_whatever_the_arm_adds(arm: Depth) -> None:
    policy, batch = fresh(arm), batches()[0]
    with torch.no_grad():
        policy.mor_router.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
        log_probs_BLV = action_log_probs(policy(torch.from_numpy(batch.ids_BL).long()).logits_BLV)
    want = 0.0
    for b, t in zip(*np.nonzero(batch.weight_BL), strict=True):
        want -= float(batch.weight_BL[b, t]) * float(log_probs_BLV[b, t - 1, batch.ids_BL[b, t]])
    assert score_text(policy, batch) == pytest.approx(want, rel=1e-5)
    if arm.kind != "random":
        assert depth.text_loss(policy, batch, 0.25)[1]["text_sum"] == pytest.approx(want, rel=1e-5)


def test_fixed_depth_is_the_plain_loss_to_the_bit() -> None:
    policy, batch = fresh(), batches()[0]
    for weight in (0.0, 0.25):
        ours, report = depth.text_loss(policy, batch, weight)
        want, want_report = plain.text_loss(policy, batch, weight)
        assert ours.item() == want.item() and report == want_report


def test_ponder_is_the_expected_loss_plus_beta_times_the_kl_by_brute_force() -> None:
    arm, batch = PonderDepth(prior=0.3, beta=0.7), batches()[0]
    policy = fresh(arm)
    with torch.no_grad():
        policy.mor_router.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(0))
        out = policy(torch.from_numpy(batch.ids_BL).long(), deep=True)
    prior = [0.3, 0.21, 0.49]
    want = 0.0
    for b, t in zip(*np.nonzero(batch.weight_BL), strict=True):
        halt = [1 / (1 + np.exp(-float(s))) for s in out.depth.score[:2, b, t - 1]]
        p = [halt[0], (1 - halt[0]) * halt[1], (1 - halt[0]) * (1 - halt[1])]
        nats = [-float(action_log_probs(out.deep_TBLV[n, b, t - 1])[batch.ids_BL[b, t]]) for n in range(3)]
        kl = sum(q * np.log(q / r) for q, r in zip(p, prior, strict=True))
        want += float(batch.weight_BL[b, t]) * (sum(q * x for q, x in zip(p, nats, strict=True)) + 0.7 * kl)
    assert depth.text_loss(policy, batch, 0.0)[0].item() == pytest.approx(want, rel=1e-4)


def test_the_q_head_is_pulled_toward_how_likely_the_byte_read_out_is_right() -> None:
    policy, batch = fresh(QStopDepth(weight=3.0)), batches()[0]
    with torch.no_grad():
        policy.q_head.bias.fill_(-1.5)
        out = policy(torch.from_numpy(batch.ids_BL).long(), deep=True)
    found = of(gradient(policy, TextWork(batch, 0.0)), "q_head.bias", policy)
    want = 0.0
    for b, t in zip(*np.nonzero(batch.weight_BL), strict=True):
        for n in range(3):
            right = float(action_log_probs(out.deep_TBLV[n, b, t - 1])[batch.ids_BL[b, t]].exp())
            want += 3.0 * float(batch.weight_BL[b, t]) * (1 / (1 + np.exp(1.5)) - right) / 3
    assert found.item() == pytest.approx(want, rel=1e-4)


def test_the_price_pulls_every_later_gate_shut_by_the_slope_of_its_ramp() -> None:
    policies = [fresh(SkipDepth(price=price)) for price in (2.0, 0.0)]
    dear, free = (of(gradient(policy, TextWork(batches()[0], 0.0)), "mor_router.bias", policy) for policy in policies)
    half = 1 / (1 + np.exp(-4 * 0.5))  # a new gate stands at x = (0 + 0.5) / 1
    assert (dear - free).item() == pytest.approx(2.0 * 2 * 4 * half * (1 - half), rel=1e-4)


def test_a_drawn_depth_is_a_function_of_the_micro_batchs_bytes_and_covers_all_depths() -> None:
    def drawn(least: int) -> list[int]:
        config, batch = fresh(RandomDepth(least=least)).config, batches()[0]
        return [depth.drawn_depth(config, replace(batch, ids_BL=batch.ids_BL + np.uint8(i))) for i in range(60)]

    assert set(drawn(1)) == {1, 2, 3} and drawn(1) == drawn(1) and set(drawn(2)) == {2, 3}


@each_arm
def test_an_update_counts_iterations_asked_and_run_and_says_once_which_arm_is_on(arm: Depth) -> None:
    policy = fresh(arm)
    fuse, pool = Fuse("sft", ledger := Ledger()), WorkerPool(1)
    optimizer = build_optimizer(policy, OptimizerConfig(lr=1e-3), 10)
    pool.set_weights(policy)
    for seed in (0, 1):
        fuse.check(update(policy, optimizer, pool, [TextWork(b, 0.25) for b in batches(2, seed)]), "step")
    targets = 2 * sum(n - 4 for n in (20, 20, 31, 12))
    assert ledger.counts["sft.depth_bytes"] == targets and ledger.asked[f"depth {arm.kind} iterations"] == 3 * targets
    ran = sum(ledger.counts[f"sft.depth_run_{n}"] for n in (1, 2, 3))
    assert ledger.ran[f"depth {arm.kind} iterations"] == ran and ledger.counts["sft.depth_run_1"] == targets
    assert abs(sum(ledger.counts[f"sft.depth_read_{n}"] for n in (1, 2, 3)) - targets) <= 6
    assert [line for line in ledger.lines if f"sft: depth arm {arm.kind} is on" in line] == ledger.lines
    Fuse("rl", said := Ledger()).check(Outcome(policy=policy.config), "round 0")
    assert said.lines[0].startswith(f"rl: depth arm {arm.kind} is on") and not said.counts


def test_parts_of_an_arm_that_are_off_are_named_and_fixed_depth_says_nothing() -> None:
    ledger = Ledger()
    depth.announce(fresh().config, "train", ledger)
    assert not ledger.lines
    for arm, meaning in ((MorDepth(weight=0), "router is not trained"), (SkipDepth(price=0), "nothing rewards"),
                         (QStopDepth(weight=0), "Q head is not trained"), (PonderDepth(beta=0), "no prior")):
        depth.announce(fresh(arm).config, "train", ledger)
        assert meaning in ledger.lines[-1]


@each_arm
def test_rollouts_count_the_arm_and_the_trainer_recomputes_the_log_probs_it_sampled(arm: Depth, tmp_path: Path) -> None:
    of = config(policy={"max_iter": 3, "depth": arm.model_dump()}, roll={"fork_share": 1.0, "group_size": 4, "prompts": 2})
    store, policy, rng = Store(tmp_path), build_policy(of.policy, 1), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for head in (policy.mor_router, policy.q_head):
            head.weight.normal_(0, 0.5, generator=rng)
    provenance = Provenance(kind=Kind.CHECKPOINT, stage="pretrained_checkpoint", config_sha256=of.sha256(), code_version="0", seed=1)
    base = store.put_checkpoint(Checkpoint(of, dict(policy.state_dict())), provenance)
    drawn = [draw("register_machine", 1, Split.TRAIN, i, "t") for i in range(2)]
    tasks = store.put_table(tasks_to_table(drawn), KEYS, provenance.model_copy(update={"kind": Kind.TASKS}))
    rollouts = stage.run(of, tasks, base, cycle="main.c0000", store=store, ledger=(ledger := Ledger()))
    rolled = stage.load(store, rollouts)
    assert any(is_fork(t) for t in rolled) and log_prob_parity(policy, rolled) < 1e-4
    n_bytes = ledger.counts["rollouts.depth_bytes"]
    assert n_bytes > 0 and sum(ledger.counts[f"rollouts.depth_read_{n}"] for n in (1, 2, 3)) == n_bytes
    assert ledger.counts["rollouts.depth_run_1"] == n_bytes and ledger.asked[f"depth {arm.kind} iterations"] == 3 * n_bytes
