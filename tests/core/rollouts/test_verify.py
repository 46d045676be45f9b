"""The verify stage: stored trajectories in, one verdict a trajectory out, the same table every time."""

from pathlib import Path

import numpy as np
import pytest

from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.encoding import escape
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.rollouts import verify
from dormouse_core.rollouts.shards import ShardHead, write_shard
from dormouse_core.rollouts.stage import RolloutSet
from dormouse_core.rollouts.trajectory import Start, Step, Trajectory
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.store import KEYS, tasks_to_table
from dormouse_core.tasks.task import Split, Task
from dormouse_core.verifiers.report import smoke_rows, summary, verdicts_from_table, verdicts_to_table
from dormouse_core.verifiers.verdict import VerdictClass


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return resolve("tiny")


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [draw(name, 2, Split.TRAIN, 0, "v") for name in ("sum_of_terms", "affine_function", "register_machine")]


def step(index: int, action: bytes, ended: bool = True) -> Step:
    n = len(escape(action)) + ended
    return Step(index, escape(action), ended, "", b"", "", "", "", True, np.zeros(n, np.float32), np.zeros(n, np.float32), 0.0)


def trajectory(name: str, task: Task, *actions: bytes, stop: StopReason = StopReason.SUBMITTED, ended: bool = True) -> Trajectory:
    steps = tuple(step(i, a, ended or i + 1 < len(actions)) for i, a in enumerate(actions))
    return Trajectory(name, "main.c0000", 0, task.id, task.pool, task.cell, "g", 0, Start.ROOT, "", -1, 0, "w" * 64, 0, 1.0, task.prompt,
                      steps, stop)


def stored(store: Store, tasks: list[Task], trajectories: list[Trajectory]) -> tuple[Artifact, Artifact]:
    def provenance(kind: Kind) -> Provenance:
        return Provenance(kind=kind, stage="test", config_sha256="0" * 64, code_version="0" * 64, seed=1)

    head = ShardHead(key="k" * 64, cycle="main.c0000", round=0, policy="w" * 64, lfb_version=0, code_version="0", slot="s",
                     tasks=tuple(t.id for t in tasks))
    shard = write_shard(store.root, head, trajectories, {})
    payload = RolloutSet(cycle="main.c0000", round=0, policy="w" * 64, content=(shard.identity,), shards=(shard,),
                         trajectories=len(trajectories), forks=0, bytes=0)
    return store.put_record(payload, provenance(Kind.ROLLOUTS)), store.put_table(tasks_to_table(tasks), KEYS, provenance(Kind.TASKS))


def episodes(tasks: list[Task]) -> list[Trajectory]:
    total, function, machine = tasks
    return [
        trajectory("a", total, total.reference[0]), trajectory("b", total, b"x"),
        trajectory("c", total, b"1", stop=StopReason.BYTE_BUDGET, ended=False),
        trajectory("d", function, function.reference[0]), trajectory("e", function, b"\x01\x05"),
        trajectory("f", machine, *machine.reference, stop=StopReason.SOLVED), trajectory("g", machine, b"?", stop=StopReason.MAX_STEPS),
    ]


def test_every_stored_trajectory_gets_one_verdict_and_twice_the_same_table(config: RunConfig, tasks: list[Task], tmp_path: Path,
                                                                           ledger: Ledger) -> None:
    store = Store(tmp_path / "s")
    rollouts, table = stored(store, tasks, episodes(tasks))
    first = verify.run(config, rollouts, table, store=store, ledger=ledger)
    again = verify.run(config, rollouts, table, store=store, ledger=Ledger(), run_id="again")
    assert first.identity == again.identity and first.kind is Kind.VERDICTS
    found = verify.load(store, first)
    assert {name: v.verdict.value for name, v in found.items()} == {
        "a": "pass", "b": "unparseable", "c": "truncated", "d": "pass", "e": "unparseable", "f": "pass", "g": "truncated"}
    assert [(p.role, p.identity) for p in first.provenance.parents] == [("rollouts", rollouts.identity), ("tasks", table.identity)]


def test_a_cut_action_is_not_replayed(tasks: list[Task]) -> None:
    machine = tasks[2]
    cut = trajectory("x", machine, *machine.reference, stop=StopReason.BYTE_BUDGET, ended=False)
    assert verify.attempt_of(cut, machine).actions == machine.reference[:-1]


def test_escaped_bytes_reach_the_verifier_as_they_were_meant(tasks: list[Task]) -> None:
    assert verify.attempt_of(trajectory("x", tasks[0], b"\x01\x05\x10a"), tasks[0]).actions == (b"\x01\x05\x10a",)


def test_rollouts_of_other_tasks_are_refused_with_the_way_out(config: RunConfig, tasks: list[Task], tmp_path: Path, ledger: Ledger) -> None:
    store = Store(tmp_path / "s")
    rollouts, _ = stored(store, tasks, episodes(tasks))
    _, others = stored(Store(tmp_path / "t"), tasks[:1], episodes(tasks)[:1])
    other_store = Store(tmp_path / "t")
    with pytest.raises(DormouseError, match="2 of the rollouts' tasks are not in the task table"):
        verify.attempts_of(episodes(tasks), {t.id: t for t in tasks[:1]})
    assert other_store.read_table(others).num_rows == 1 and store.open(store.path(rollouts)).identity == rollouts.identity


def test_verdicts_survive_their_table_and_the_smoke_rows_name_every_decision(config: RunConfig, tasks: list[Task], ledger: Ledger) -> None:
    played = episodes(tasks)
    by_id = {t.id: t for t in tasks}
    verdicts = verify.verify(played, by_id, config.verify, ledger)
    assert verdicts_from_table(verdicts_to_table(verdicts)) == verdicts
    rows = smoke_rows(verify.attempts_of(played, by_id), verdicts)
    assert [r.verdict for r in rows] == [v.verdict for v in verdicts]
    assert all(r.task and r.decided_by and (r.verdict is VerdictClass.PASS or r.reason) for r in rows)
    assert rows[3].cases == "8/8" and rows[3].isolation.startswith("jail") and rows[4].candidate == "\\x01\\x05"
    told = summary(verdicts)
    assert (told.verdicts, told.pass_share, told.no_verdict_share, told.by_class["pass"]) == (7, 3 / 7, 0.0, 3)
