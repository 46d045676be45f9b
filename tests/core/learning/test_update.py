"""Updates: refused when they are not finite, the same whoever computes them; interleaved batches by (seed, number) alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core.artifacts.checkpoint import weights_identity
from dormouse_core.artifacts.store import Store
from dormouse_core.config.optimizer import OptimizerConfig
from dormouse_core.config.stages import RewardConfig
from dormouse_core.learning.advantage import estimate
from dormouse_core.learning.batches import StepBatch, step_batches
from dormouse_core.learning.interleave import Interleave, carried, share_of, stored_rows
from dormouse_core.learning.loss import LossWeights
from dormouse_core.learning.monitor import log_prob_parity
from dormouse_core.learning.reward import is_fork, shape
from dormouse_core.learning.rows import heldout_side, rendered
from dormouse_core.learning.update import Fuse, Outcome, RlWork, TextWork, gradient, merged, update
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.optim.groups import Optimizer, build_optimizer
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts import stage, verify
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.store import tasks_from_table
from dormouse_core.tasks.task import Split
from tests.core.learning.made import coin_rows, config, judged_round, pretrained, step, task, trajectory, verdict

WEIGHTS = LossWeights(clip=0.2, kl=0.0, entropy=0.0, value=0.1)


def batch() -> StepBatch:
    ts = [trajectory(f"{i}", "g", [step(0, b"abc"), step(1, b"de")]) for i in range(4)]
    verdicts = [verdict(t, "pass" if i % 2 else "fail") for i, t in enumerate(ts)]
    return step_batches(ts, estimate(ts, shape(ts, verdicts, {"task": task()}, RewardConfig()), config().rl.advantage), "prompt_mean", 1)[0]


@pytest.fixture
def policy() -> Policy:
    return build_policy(config().policy, 2)


def ready(policy: Policy) -> tuple[Optimizer, WorkerPool]:
    pool = WorkerPool(1, 1)
    pool.set_weights(policy)
    return build_optimizer(policy, OptimizerConfig(lr=1e-2), 10), pool


def blown_up() -> StepBatch:
    """One byte whose log-ratio is about +160, 40 a byte over its step."""
    sampled_X = batch().sampled_X.copy()
    sampled_X[0] = -160.0
    return replace(batch(), sampled_X=sampled_X)


@pytest.mark.parametrize("poison", [blown_up(), replace(batch(), advantage_S=np.full_like(batch().advantage_S, np.nan)),
                                    replace(batch(), advantage_S=np.full_like(batch().advantage_S, np.inf))])
def test_an_update_that_is_not_finite_leaves_weights_and_moments_and_the_second_in_a_row_is_an_error(
        policy: Policy, poison: StepBatch) -> None:
    optimizer, pool = ready(policy)
    assert update(policy, optimizer, pool, [RlWork(batch(), WEIGHTS)]).applied
    weights, moments = weights_identity(policy.state_dict()), weights_identity(optimizer.state())
    fuse = Fuse("rl", ledger := Ledger())
    outcome = update(policy, optimizer, pool, [RlWork(batch(), WEIGHTS), RlWork(poison, WEIGHTS)])
    assert not outcome.finite and not outcome.applied
    fuse.check(outcome, "round 3")
    assert weights_identity(policy.state_dict()) == weights and weights_identity(optimizer.state()) == moments
    assert ledger.counts["updates_not_finite"] == 1 and "round 3" in ledger.lines[0]
    with pytest.raises(DormouseError, match="two updates in a row"):
        fuse.check(outcome, "round 4")


def test_one_bad_update_between_good_ones_is_only_counted() -> None:
    fuse = Fuse("rl", ledger := Ledger())
    for finite in (False, True, False):
        fuse.check(Outcome(applied=finite, finite=finite), "round")
    assert ledger.counts["updates_not_finite"] == 2


def test_without_micro_batches_nothing_moves_not_even_moments(policy: Policy) -> None:
    optimizer, pool = ready(policy)
    update(policy, optimizer, pool, [RlWork(batch(), WEIGHTS)])
    before = weights_identity(policy.state_dict()), weights_identity(optimizer.state())
    assert not update(policy, optimizer, pool, []).applied
    assert (weights_identity(policy.state_dict()), weights_identity(optimizer.state())) == before


def test_a_gradient_leaves_no_trace_in_the_policy(policy: Policy) -> None:
    before = weights_identity(policy.state_dict())
    part = gradient(policy, RlWork(batch(), WEIGHTS))
    assert weights_identity(policy.state_dict()) == before and all(p.grad is None for p in policy.parameters())
    assert np.isfinite(part.gradient_P).all() and "q_head.weight" not in part.touched


def test_reports_add_sums_and_keep_maxima() -> None:
    assert merged([{"a_sum": 1.0, "b_max": 3.0}, {"a_sum": 2.0, "b_max": 1.0, "c_sum": 5.0}]) == {"a_sum": 3.0, "b_max": 3.0, "c_sum": 5.0}


@given(st.floats(0, 1), st.integers(0, 50), st.integers(0, 200))
def test_interleaved_updates_are_an_even_share_with_a_phase_of_the_seed(share: float, seed: int, n: int) -> None:
    assert abs(carried(share, seed, n) - n * share) <= 1
    assert carried(share, seed, n) <= carried(share, seed, n + 1) <= carried(share, seed, n) + 1


def test_interleave_carries_each_row_once_before_any_twice_and_repeats_itself() -> None:
    of = config()
    rows = rendered([r.segments for r in coin_rows(64)])
    one, two = (Interleave(0.5, 7, rows, of) for _ in range(2))
    works = [one.works(u) for u in range(8)]
    assert [len(w) for w in works] == [len(two.works(u)) for u in range(8)] and sum(bool(w) for w in works) == 4
    seen = [bytes(row[row > 0]) for w in works for part in w for row in part.batch.ids_BL]
    assert sorted(seen) == sorted(s.tobytes() for s in rows.streams)
    assert all(isinstance(part, TextWork) and not part.count_load for w in works for part in w)


def test_the_share_is_what_sft_wrote_unless_rl_says_otherwise() -> None:
    assert share_of(config(), 0.25, Ledger()) == 0.25
    assert share_of(config(rl={"interleave_sft": 0.5}), 0.25, Ledger()) == 0.5
    for of, written in ((config(), None), (config(rl={"interleave_sft": 0.0}), 0.25)):
        assert share_of(of, written, ledger := Ledger()) == 0.0 and "interleave is off" in ledger.lines[0]


def test_rows_that_are_not_in_the_store_are_built_again_without_the_held_out_ones_and_it_is_said(store: Store) -> None:
    of = config(sft={"rows_per_pool": 40, "heldout_share": 0.2}, loop={"suite": "tiny"})
    rows = stored_rows(of, "0" * 64, store, ledger := Ledger())
    assert any("built again" in line for line in ledger.lines) and len(rows) > 0
    with pytest.raises(DormouseError, match="leave no held-out rows"):
        heldout_side(rows, 0.2)


def test_forks_of_real_multi_step_rollouts_keep_parity_and_only_measure(store: Store) -> None:
    of = config(roll={"fork_share": 1.0, "group_size": 4, "prompts": 4})
    base = pretrained(store, of)
    rollouts, verdicts, tasks = judged_round(store, of, base, [draw("register_machine", 1, Split.TRAIN, i, "t") for i in range(4)])
    rolled = stage.load(store, rollouts)
    forks = [t for t in rolled if is_fork(t)]
    assert forks and log_prob_parity(build_policy(of.policy, 1), rolled) < 1e-5
    judged = verify.load(store, verdicts)
    by_id = {t.id: t for t in tasks_from_table(store.read_table(tasks))}
    rewards = shape(rolled, [judged[t.id] for t in rolled], by_id, of.rl.reward)
    lucky = replace(rewards, total_N=np.array([float(is_fork(t)) for t in rolled]))
    credit = estimate(rolled, lucky, of.rl.advantage)
    parents = {(t.parent_id, t.fork_step) for t in forks}
    assert credit.counts["forked_steps"] == len(parents) and credit.counts["groups_live_by_forks_alone"] > 0
    for n, t in enumerate(rolled):
        moved = {k for k in range(len(t.steps)) if credit.advantage_NK[n, k] != 0}
        assert moved == (set() if is_fork(t) else {k for i, k in parents if i == t.id})
    (first, *_) = step_batches(rolled, credit, "prompt_mean", 1)
    assert torch.from_numpy(gradient(build_policy(of.policy, 1), RlWork(first, WEIGHTS)).gradient_P).abs().max() > 0
