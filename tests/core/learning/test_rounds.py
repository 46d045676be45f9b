"""The commit of a round beside its update: whatever ends the run in between, the round is read back or owed, and no bit differs."""

import time
from typing import Any

import pytest

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.journal import StageJournal
from dormouse_core.artifacts.provenance import Artifact, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.learning import rl
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.task import Task
from tests.core.learning.made import Coins, config
from tests.core.learning.test_rl import World, finished, origin, world  # noqa: F401 - fixtures

ROLLED = "rounds rolled (the rest were committed already)"


def test_a_run_that_dies_in_an_update_reads_that_round_back(
        world: World, finished: tuple[World, Artifact], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    update, calls = rl.update, list[int]()

    def dies(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return update(*args, **kwargs)

    monkeypatch.setattr(rl, "update", dies)
    with pytest.raises(KeyboardInterrupt):
        world.learn()
    monkeypatch.setattr(rl, "update", update)
    ledger = Ledger()
    assert world.learn(ledger=ledger).identity == finished[1].identity
    assert ledger.asked[ROLLED] - ledger.ran[ROLLED] >= 1


def test_a_commit_that_fails_stops_the_stage_before_the_next_round_and_its_round_is_owed(
        world: World, finished: tuple[World, Artifact], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    commit, drawn = StageJournal.commit, list[int]()

    def full(self: StageJournal, unit: str, payload: Any) -> None:
        if unit == "round 3":
            raise DormouseError("the disk is full")
        commit(self, unit, payload)

    class Noted(Coins):
        def draw(self, round: int, n: int) -> list[Task]:
            drawn.append(round)
            return super().draw(round, n)

    monkeypatch.setattr(StageJournal, "commit", full)
    with pytest.raises(DormouseError, match="the disk is full"):
        world.learn(config(rl={"ckpt_every": 100}), source=Noted())
    assert drawn == [1, 2, 3]
    monkeypatch.setattr(StageJournal, "commit", commit)
    assert world.learn().identity == finished[1].identity


def test_a_resume_file_is_never_ahead_of_the_journal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    commit, save = StageJournal.commit, Store.save_resume
    seen, done = list[tuple[int, list[str]]](), set[str]()

    def slow(self: StageJournal, unit: str, payload: Any) -> None:
        time.sleep(0.3)
        commit(self, unit, payload)
        done.add(unit)

    def saved(self: Store, key: str, checkpoint: Checkpoint, provenance: Provenance) -> None:
        seen.append((checkpoint.state["rounds"], sorted(done)))
        save(self, key, checkpoint, provenance)

    monkeypatch.setattr(StageJournal, "commit", slow)
    monkeypatch.setattr(Store, "save_resume", saved)
    world.learn(config(rl={"ckpt_every": 2}))
    assert seen and all(units == [f"round {i}" for i in range(1, rounds)] for rounds, units in seen)
