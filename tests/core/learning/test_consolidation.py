"""Consolidation: which trajectories it reads, that it moves the weights towards them, and that a kill leaves no trace."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dormouse_core.artifacts.checkpoint import weights_identity
from dormouse_core.learning.consolidation import Passes
from dormouse_core.learning.monitor import Round
from dormouse_core.ledger import Ledger
from tests.core.learning.made import Coins, config, step, trajectory, verdict
from tests.core.learning.test_rl import PLAIN, Killed, World, all_fail, finished, origin, world

__all__ = ["finished", "origin", "world"]  # fixtures


def test_only_verified_passes_enter_and_exact_repeats_once() -> None:
    made = {name: trajectory(name, steps=[step(0, name.encode())]) for name in ("right", "wrong", "lost", "hacked")}
    kinds = {"right": "pass", "wrong": "fail", "lost": "verifier_error", "hacked": "hack_suspected"}
    round = Round(0, list(made.values()), [verdict(t, kinds[name]) for name, t in made.items()], {})
    passes = Passes()
    passes.add(round)
    passes.add(round)
    rows = passes.rows()
    assert [s.tobytes() for s in rows.streams] == [made["right"].stream()[0]]
    assert rows.streams[0][rows.masks[0]].tobytes().startswith(b"right"), "targets are the bytes the policy wrote"


def test_a_probe_is_never_read_even_where_it_passes() -> None:
    t = replace(trajectory("probe"), probe=True)
    passes = Passes()
    passes.add(Round(0, [t], [verdict(t)], {}))
    assert len(passes) == 0


def test_a_fork_is_read_from_its_fork_on() -> None:
    t = trajectory("fork", steps=[step(0, b"old"), step(1, b"new")], fork_of="trunk", fork_step=1)
    passes = Passes()
    passes.add(Round(0, [t], [verdict(t)], {}))
    rows = passes.rows()
    assert b"old" not in rows.streams[0][rows.masks[0]].tobytes() and b"new" in rows.streams[0][rows.masks[0]].tobytes()


def test_consolidation_makes_the_passing_side_likelier_than_rl_alone_left_it(world: World) -> None:
    """One round at RL's learning rate ~0: whatever moves the coin is consolidation."""
    still = {"rounds": 1, "interleave_sft": 0.0, "optimizer": {"lr": 1e-12, "warmup": 0, "decay": "constant"}}
    how = {"kind": "passes", "steps": 40, "batch": 8, "optimizer": {"lr": 3e-3, "warmup": 1}}
    artifact = world.learn(config(rl=still | {"consolidation": how}), ledger=(ledger := Ledger()))
    did = world.store().read_checkpoint(artifact).state["consolidation"]
    assert did["steps"] == 40 and did["last_loss"] < 0.5 * did["first_loss"]
    assert ledger.arms()["consolidation"] == "1/1" and ledger.counters()["rl.consolidation_steps"] == 40
    policy = world.policy(artifact)
    assert weights_identity(policy.state_dict()) != weights_identity(world.policy().state_dict())


def test_where_nothing_passed_nothing_is_written_and_that_is_said(world: World) -> None:
    failed = world.rejudge(all_fail)
    artifact = failed.learn(config(rl={"rounds": 1, "interleave_sft": 0.0}), ledger=(ledger := Ledger()))
    assert weights_identity(failed.policy(artifact).state_dict()) == weights_identity(failed.policy().state_dict())
    assert any("nothing to consolidate" in line for line in ledger.lines) and ledger.arms()["consolidation"] == "0/1"


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_kill_in_the_phase_ends_at_the_weights_of_a_run_never_stopped(world: World, finished: tuple[World, Any], after: int) -> None:
    def progress(stage: str, done: int, total: int, unit: str, **facts: Any) -> None:
        if stage == "consolidation" and done == after:
            raise Killed
    with pytest.raises(Killed):
        world.learn(ledger=Ledger(progress=progress))
    drawn: list[int] = []

    class Watched(Coins):
        def draw(self, round: int, n: int) -> Any:
            drawn.append(round)
            return super().draw(round, n)

    artifact = world.learn(PLAIN, source=Watched())
    assert artifact.identity == finished[1].identity and drawn == [], "no round is rolled again"
    assert np.isfinite(world.store().read_checkpoint(artifact).state["consolidation"]["last_loss"])
