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
from dormouse_core.tasks.task import Split, Task, VerifierKind
from dormouse_core.verifiers import judge as judging
from dormouse_core.verifiers import report
from dormouse_core.verifiers.attempt import Attempt, Finding
from dormouse_core.verifiers.judge import IN_PROCESS
from dormouse_core.verifiers.report import smoke_rows, stale, summary, verdicts_from_table, verdicts_to_table, verify_report
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


def stored(store: Store, tasks: list[Task], trajectories: list[Trajectory], seed: int = 1) -> tuple[Artifact, Artifact]:
    def provenance(kind: Kind) -> Provenance:
        return Provenance(kind=kind, stage="test", config_sha256="0" * 64, code_version="0" * 64, seed=seed)

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


def test_a_changed_verifier_makes_other_verdicts_of_the_same_rollouts_and_the_old_ones_are_called_stale(
        config: RunConfig, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "s")
    rollouts, table = stored(store, tasks, episodes(tasks))
    before_bytes = {p: p.read_bytes() for p in sorted(store.root.rglob("*")) if p.is_file()}
    first = verify.run(config, rollouts, table, store=store, ledger=Ledger())
    old = list(verify.load(store, first).values())
    assert stale(old) == 0
    whole = IN_PROCESS[VerifierKind.EXACT]

    def stricter(attempt: Attempt) -> Finding:
        found = whole(attempt)
        right = found.verdict is VerdictClass.PASS and attempt.task.family != "canary"
        return Finding(VerdictClass.FAIL, "exact.number", "a stricter verifier") if right else found

    monkeypatch.setitem(IN_PROCESS, VerifierKind.EXACT, stricter)
    for module in (judging, report):
        monkeypatch.setattr(module, "verifier_sha256", lambda: "f" * 64)
    ledger = Ledger()
    second = verify.run(config, rollouts, table, store=store, ledger=ledger)
    now = list(verify.load(store, second).values())
    told = verify_report(now, ledger.counters(), ledger.seconds["judge"], config.verify, old)
    assert first.identity != second.identity and stale(now) == 0
    assert told.before is not None and (told.before.stale, told.before.changed) == (len(old), {"pass -> fail": 1})
    assert all(path.read_bytes() == content for path, content in before_bytes.items()), "rollouts and tasks are as they were"


def test_the_hack_screen_is_a_switch_of_the_stage_and_being_off_is_said(config: RunConfig, tasks: list[Task], tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    function = tasks[1]
    liar = function.reference[0] + b" if __import__('sys')._getframe() else 0"
    rollouts, table = stored(store, tasks, [trajectory("a", function, function.reference[0]), trajectory("b", function, liar)])
    found = {}
    for enabled in (False, True):
        screen = config.verify.hack_screen.model_copy(update={"enabled": enabled})
        settings = config.model_copy(update={"verify": config.verify.model_copy(update={"hack_screen": screen})})
        ledger = Ledger()
        verdicts = verify.load(store, verify.run(settings, rollouts, table, store=store, ledger=ledger))
        found[enabled] = {name: v.verdict for name, v in verdicts.items()}
        assert any("hack screen: off" in line for line in ledger.lines) is not enabled
        told = verify_report(list(verdicts.values()), ledger.counters(), 1.0, settings.verify)
        assert (told.hack_screen, told.screened) == (("on", 1) if enabled else ("off", 0))
    assert found[False] == {"a": VerdictClass.PASS, "b": VerdictClass.PASS}
    assert found[True] == {"a": VerdictClass.PASS, "b": VerdictClass.HACK_SUSPECTED}
