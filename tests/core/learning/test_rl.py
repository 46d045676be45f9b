"""RL in rounds, on real rollouts of a policy that guesses a coin: what is learnt, what is refused, and what leaves no trace."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dormouse_core.artifacts.checkpoint import weights_identity
from dormouse_core.artifacts.provenance import Artifact, Kind
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.learning import rl, sft
from dormouse_core.learning.monitor import log_prob_parity
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy.model import Policy, load_policy
from dormouse_core.rollouts import stage
from dormouse_core.tasks.task import Split, Use
from dormouse_core.verifiers import report
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.core.learning.made import Coins, coin_rows, coin_task, config, judged_round, pretrained

PLAIN = config()


@dataclass
class World:
    """A store with a base that answers a or b, and its judged round 0."""

    root: Path
    base: Artifact
    rollouts: Artifact
    verdicts: Artifact
    tasks: Artifact

    def copy(self, to: Path) -> "World":
        shutil.copytree(self.root, to, dirs_exist_ok=True)
        return replace(self, root=to)

    def store(self) -> Store:
        return Store(self.root)

    def learn(self, of: RunConfig = PLAIN, source: Coins | None = None, ledger: Ledger | None = None) -> Artifact:
        return rl.run(of, self.base, self.rollouts, self.verdicts, self.tasks, source=source or Coins(), store=self.store(),
                      ledger=ledger or Ledger())

    def rejudge(self, change: Callable[[Verdict], Verdict]) -> "World":
        """The same round under other verdicts."""
        store = self.store()
        changed = [change(v) for v in report.verdicts_from_table(store.read_table(self.verdicts))]
        table = report.verdicts_to_table(changed)
        return replace(self, verdicts=store.put_table(table, report.KEYS, self.verdicts.provenance, report.VOLATILE))

    def policy(self, of: Artifact | None = None) -> Policy:
        return load_policy(self.store().read_checkpoint(of or self.base), PLAIN.policy, "base")


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("rl")
    store = Store(root)
    base = sft.run(PLAIN, pretrained(store, PLAIN), store=store, ledger=Ledger(), rows=coin_rows())
    return World(root, base, *judged_round(store, PLAIN, base, Coins().draw(0, PLAIN.roll.prompts)))


@pytest.fixture(scope="module")
def finished(origin: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Artifact]:
    world = origin.copy(tmp_path_factory.mktemp("finished"))
    return world, world.learn()


@pytest.fixture
def world(origin: World, tmp_path: Path) -> World:
    return origin.copy(tmp_path)


def rows_of(world: World, artifact: Artifact) -> list[dict[str, float]]:
    table: list[dict[str, float]] = world.store().read_checkpoint(artifact).state["metrics"]
    return table


# --- learning


def test_a_coin_guesser_learns_the_side_that_passes(world: World) -> None:
    rows = rows_of(world, world.learn(config(rl={"rounds": 25, "interleave_sft": 0.0, "kl": 0.0})))
    assert 0.2 < rows[0]["pass_rate"] < 0.8 and np.mean([r["pass_rate"] for r in rows[-5:]]) > 0.85


def test_every_round_is_a_row_and_before_an_update_trainer_and_sampler_agree(finished: tuple[World, Artifact]) -> None:
    rows = rows_of(*finished)
    assert [r["round"] for r in rows] == list(range(6))
    assert max(r.get("byte_gap_max", 0.0) for r in rows) < 1e-5 and any("kl" in r for r in rows)
    assert all(r.get("groups_live", 0.0) + r.get("groups_dead", 0.0) == r["groups"] == 4 for r in rows)


def test_every_round_says_how_evenly_its_experts_were_chosen_and_updated(finished: tuple[World, Artifact]) -> None:
    live = [r for r in rows_of(*finished) if r["groups_live"]]
    assert live and all(r["load_cv"] >= 0 and 0 <= r["load_cold_share"] <= 1 and 0 < r["load_entropy"] <= 1 for r in live)
    assert any(r["load_cv"] > 0 for r in live) and all(r["load_dead"] in range(PLAIN.policy.n_experts) for r in live)
    done = [r["expert_updates_mean"] for r in live]
    assert done == sorted(done) and 0 < done[0] < done[-1] <= PLAIN.rl.rounds * PLAIN.rl.epochs


def test_frozen_experts_have_a_load_and_no_updates(world: World) -> None:
    frozen = config(rl={"rounds": 2, "optimizer": {"experts": {"kind": "frozen"}, "expert_scales": {"kind": "frozen"}}})
    rows = rows_of(world, world.learn(frozen))
    assert any("load_cv" in r for r in rows) and not any("expert_updates_mean" in r for r in rows)


def test_balancing_is_frozen_in_rl(finished: tuple[World, Artifact]) -> None:
    world, artifact = finished
    before, after = (world.store().read_checkpoint(a).model for a in (world.base, artifact))
    assert all(torch.equal(before[name], after[name]) for name in ("balance_bias_E", "balance_version", "load_E"))
    assert not torch.equal(before["embedding"], after["embedding"])


def test_the_checkpoint_names_everything_it_learnt_from(finished: tuple[World, Artifact]) -> None:
    world, artifact = finished
    roles = {p.role: p for p in artifact.provenance.parents}
    assert {"base", "rollouts", "verdicts", "tasks"} <= roles.keys()
    for number in range(1, 6):
        shards = world.store().find(Kind.ROLLOUTS, roles[f"rollouts of round {number}"].identity)
        assert shards is not None and world.store().read_record(shards, stage.RolloutSet).round == number
        assert f"verdicts of round {number}" in roles and f"tasks of round {number}" in roles


# --- parity


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_at_learning_rate_zero_trainer_log_probs_equal_the_samplers(world: World, temperature: float) -> None:
    of = config(roll={"temperature": temperature, "group_size": 8})
    rollouts, _, _ = judged_round(world.store(), of, world.base, [coin_task(k) for k in range(5)])
    rolled = stage.load(world.store(), rollouts)
    policy = world.policy()
    gaps = [log_prob_parity(policy, rolled, batch) for batch in (1, 7, 64)]
    assert len(rolled) >= 40 and max(gaps) < 1e-5
    wrong = [replace(t, temperature=temperature * 1.1) for t in rolled]
    assert log_prob_parity(policy, wrong) > 1e-3


def test_rollouts_at_another_temperature_than_they_say_stop_the_stage(world: World) -> None:
    shifted = config(rl={"interleave_sft": 0.0})
    policy = world.policy()
    assert log_prob_parity(policy, stage.load(world.store(), world.rollouts)) < 1e-5
    session = rl._Session(shifted, {"base": world.base, "rollouts": world.rollouts, "verdicts": world.verdicts, "tasks": world.tasks}, None,
                          world.store(), Ledger(), "", rl.WorkerPool(1, 1))
    round = session._round(0)
    warmer = replace(round, trajectories=[replace(t, temperature=2.0) for t in round.trajectories])
    with pytest.raises(DormouseError, match="differs from the sampler's"):
        session._learn(warmer)


# --- dead groups


def all_fail(v: Verdict) -> Verdict:
    return v.model_copy(update={"verdict": VerdictClass.FAIL, "score": 0.0})


def test_dead_groups_move_no_weight_whatever_kl_says(world: World) -> None:
    dead = world.rejudge(all_fail)
    of = config(rl={"rounds": 1, "kl": 5.0, "interleave_sft": 0.0, "entropy": 0.1})
    artifact = dead.learn(of)
    before, after = (world.store().read_checkpoint(a).model for a in (world.base, artifact))
    assert weights_identity(before) == weights_identity(after)
    (row,) = rows_of(dead, artifact)
    assert row["groups_dead"] == 4 and row["applied"] == 0


def test_an_interleaved_batch_is_all_that_moves_a_dead_round(world: World) -> None:
    dead = world.rejudge(all_fail)
    of = config(rl={"rounds": 1, "interleave_sft": 1.0})
    (row,) = rows_of(dead, artifact := dead.learn(of))
    assert row["sft_bytes"] > 0 and "policy_loss" not in row
    before, after = (world.store().read_checkpoint(a).model for a in (world.base, artifact))
    assert weights_identity(before) != weights_identity(after)


def test_a_pool_nobody_can_solve_ends_with_no_signal_and_loses_nothing(world: World) -> None:
    dead, ledger = world.rejudge(all_fail), Ledger()
    artifact = dead.learn(config(rl={"rounds": 50, "interleave_sft": 0.0}), Coins("never"), ledger)
    state = world.store().read_checkpoint(artifact).state
    assert state["ended"] == "no_signal" and state["rounds"] == 3 and len(state["metrics"]) == 3
    assert any("no_signal" in line for line in ledger.lines)


# --- what is refused


def test_trajectories_of_another_policy_are_refused(world: World) -> None:
    other = sft.run(config(sft={"max_epochs": 1}), pretrained(world.store(), PLAIN), store=world.store(), ledger=Ledger(), rows=coin_rows())
    with pytest.raises(DormouseError, match="of another policy"):
        replace(world, base=other).learn()


def test_too_many_rows_without_a_verdict_fail_the_stage_and_a_few_are_counted(world: World) -> None:
    def lost(n: int) -> World:
        seen = iter(range(100))
        return world.rejudge(lambda v: v.model_copy(update={"verdict": VerdictClass.VERIFIER_ERROR}) if next(seen) < n else v)
    with pytest.raises(DormouseError, match="have no verdict"):
        lost(3).learn(config(rl={"rounds": 1}))
    lost(3).learn(config(rl={"rounds": 1, "no_verdict_limit": 0.5}), ledger=(ledger := Ledger()))
    assert ledger.counts["no_verdict"] == 3


def test_a_first_round_cut_off_by_its_byte_budget_is_an_error_that_names_it(world: World) -> None:
    short = [coin_task(k, "aaaa", byte_budget=1) for k in range(4)]
    rollouts, verdicts, tasks = judged_round(world.store(), PLAIN, world.base, short)
    cut = replace(world, rollouts=rollouts, verdicts=verdicts, tasks=tasks)
    with pytest.raises(DormouseError, match=r"byte_budget = 1 bytes, their reference solutions need 5"):
        cut.learn()
    cut.learn(config(rl={"truncation_limit": 1.0, "rounds": 1}))


def test_a_table_that_does_not_judge_these_rollouts_is_refused(world: World) -> None:
    _, other, _ = judged_round(world.store(), config(runtime={"seed": 9}), world.base, [coin_task(k) for k in range(4)])
    with pytest.raises(DormouseError, match="have no row in the verdict table"):
        replace(world, verdicts=other).learn()


def test_evaluation_tasks_are_never_trained_on(world: World) -> None:
    fresh = [coin_task(k, split=Split.FRESH, use=Use.EVALUATION) for k in range(4)]
    rollouts, verdicts, tasks = judged_round(world.store(), PLAIN, world.base, fresh)
    with pytest.raises(DormouseError, match="evaluation only"):
        replace(world, rollouts=rollouts, verdicts=verdicts, tasks=tasks).learn()


def test_everything_switched_off_says_so(world: World) -> None:
    ledger = Ledger()
    off = config(rl={"rounds": 1, "kl": 0.0, "clip": 0.0, "interleave_sft": 0.0, "reward": {"solution": False, "behaviour": False},
                     "consolidation": {"kind": "off"}})
    world.learn(off, ledger=ledger)
    said = "\n".join(ledger.lines)
    assert all(name in said for name in ("KL", "clip", "interleave", "S_sol", "S_beh", "consolidation"))
    world.learn(config(rl={"rounds": 1}), ledger=(quiet := Ledger()))
    assert quiet.lines == []


def test_without_a_source_only_the_stored_round_is_learnt_from(world: World) -> None:
    ledger = Ledger()
    artifact = rl.run(PLAIN, world.base, world.rollouts, world.verdicts, world.tasks, source=None, store=world.store(), ledger=ledger)
    assert len(rows_of(world, artifact)) == 1 and any("no task source" in line for line in ledger.lines)


# --- no trace of how it was run


class Killed(BaseException):
    """A kill as the stage sees it."""


@pytest.mark.parametrize("round", [1, 4, 5])
def test_a_killed_run_rolls_no_committed_round_again_and_ends_at_the_same_weights(
        world: World, finished: tuple[World, Artifact], round: int) -> None:
    def progress(stage: str, done: int, total: int, unit: str, **facts: Any) -> None:
        if stage == "rl" and done == round:
            raise Killed
    with pytest.raises(Killed):
        world.learn(ledger=Ledger(progress=progress))
    artifact = world.learn(ledger=(ledger := Ledger()))
    assert artifact.identity == finished[1].identity
    rolled = ledger.arms()["rounds rolled (the rest were committed already)"]
    resumed_at = (round - 1) // 2 * 2
    assert rolled == f"{6 - round}/{5 - max(resumed_at - 1, 0)}"


_KILLED_WHILE_ROLLING = """
import os, signal, sys
from pathlib import Path
from dormouse_core.artifacts.store import Store
from dormouse_core.ledger import Ledger
from tests.core.learning.test_rl import World

rolled = []

def progress(stage, done, total, unit, **facts):
    rolled.extend([done] if stage == "rollouts" else [])
    if len(rolled) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

store = Store(Path(sys.argv[1]))
World(store.root, *(store.open(Path(p)) for p in sys.argv[2:])).learn(ledger=Ledger(progress=progress))
"""


def test_sigkill_while_a_round_is_being_rolled_changes_nothing(world: World, finished: tuple[World, Artifact]) -> None:
    paths = [str(world.store().path(a)) for a in (world.base, world.rollouts, world.verdicts, world.tasks)]
    died = subprocess.run([sys.executable, "-c", _KILLED_WHILE_ROLLING, str(world.root), *paths], env={**os.environ, "PYTHONPATH": "."},
                          cwd=Path(__file__).parents[3], capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-500:]
    assert world.learn().identity == finished[1].identity


def test_two_workers_give_the_bits_of_one(world: World, finished: tuple[World, Artifact]) -> None:
    artifact = world.learn(config(roll={"workers": 2}))
    both = [w.store().read_checkpoint(a) for w, a in ((world, artifact), finished)]
    assert weights_identity(both[0].model) == weights_identity(both[1].model) and both[0].state == both[1].state
