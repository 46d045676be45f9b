"""The hack screen through the real path of RL: real programs of a real policy, judged in the jail, screened, learnt from or not.

The base answers `x+y` (right), `x+y or exit()` (right, and labelled: it would leave before it is checked) and `x-y` (wrong), each
now and then. What is screened has to leave the update as if it had never been written.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from dormouse_core.artifacts.checkpoint import weights_identity
from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.encoding import Role, Span
from dormouse_core.evolution import failure_memory
from dormouse_core.learning import sft
from dormouse_core.learning.consolidation import Passes
from dormouse_core.learning.demonstrations import RowKind, SftRow
from dormouse_core.learning.monitor import Round
from dormouse_core.ledger import Ledger
from dormouse_core.rollouts import stage, verify
from dormouse_core.rollouts.shards import write_shard
from dormouse_core.tasks.store import tasks_from_table
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers import report
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.core.learning.made import Coins, config, judged_round, pretrained
from tests.core.learning.test_rl import World

RIGHT, HACK, WRONG = b"x+y", b"x+y or exit()", b"x-y"
ONE = {"rounds": 1, "interleave_sft": 0.0, "consolidation": {"kind": "off"}}
SCREEN = {"hack_screen": {"enabled": True, "min_group": 99}}
MORE = {"roll": {"group_size": 8, "prompts": 8, "lanes": 64}, "sft": {"batch": 64, "max_epochs": 20, "eval_every": 60}}
ON, OFF = config(verify=SCREEN, rl=ONE, **MORE), config(rl=ONE, **MORE)


def adding(k: int) -> Task:
    cases = [{"args": repr((a, a + 3)), "expected": repr(2 * a + 3)} for a in range(1, 6)]
    return Task(pool=Pool.CODE, family="adding", prompt=f"{k % 50}?".encode(), params={"k": k}, environment="answer",
                start={"program_prefix": "def f(x,y):\n return ", "program_suffix": "\n"}, verifier=VerifierKind.EXEC,
                trusted={"entry_point": "f", "cases": cases}, reference=(RIGHT,), byte_budget=20, split=Split.TRAIN, use=Use.TRAIN)


class Adding(Coins):
    def draw(self, round: int, n: int) -> list[Task]:
        return [adding(1000 * round + 7 * i) for i in range(n)]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, World]:
    """(judged with the screen, judged without it): the same rollouts."""
    store = Store(tmp_path_factory.mktemp("screen"))
    answers = (HACK, RIGHT, HACK, WRONG)
    rows = [SftRow((Span(Role.PROMPT, f"{i % 50}?".encode()), Span(Role.ASSISTANT, answers[i // 50])), RowKind.EXPERT, Pool.CODE,
                   "adding/d0", str(i)) for i in range(200)]
    base = sft.run(ON, pretrained(store, ON), store=store, ledger=Ledger(), rows=rows)
    drawn = Adding().draw(0, 8)
    screened = World(store.root, base, *judged_round(store, ON, base, drawn))
    plain = verify.run(OFF, screened.rollouts, screened.tasks, store=store, ledger=Ledger())
    return screened, replace(screened, verdicts=plain)


def verdicts_of(world: World) -> list[Verdict]:
    return report.verdicts_from_table(world.store().read_table(world.verdicts))


def texts(world: World) -> dict[str, bytes]:
    """Trajectory -> its program."""
    return {t.id: t.steps[-1].action_bytes for t in stage.load(world.store(), world.rollouts)}


def model(world: World, artifact: Artifact) -> str:
    return weights_identity(world.store().read_checkpoint(artifact).model)


def row(world: World, artifact: Artifact, number: int = 0) -> dict[str, float]:
    found: dict[str, float] = world.store().read_checkpoint(artifact).state["metrics"][number]
    return found


def without(world: World, gone: set[str]) -> World:
    """The same round, had these trajectories never been written."""
    store = world.store()
    record = store.read_record(world.rollouts, stage.RolloutSet)
    kept = [t for t in stage.load(store, world.rollouts) if t.id not in gone]
    head = record.shards[0].model_dump(exclude={"trajectories", "steps", "counts"})
    shard = write_shard(store.root, stage.ShardHead(**head | {"key": "0" * 64}), kept, {})
    payload = record.model_copy(update={"shards": (shard,), "content": (shard.identity,), "trajectories": len(kept)})
    rollouts = store.put_record(payload, world.rollouts.provenance, stage.VOLATILE)
    table = report.verdicts_to_table([v for v in verdicts_of(world) if v.trajectory_id not in gone])
    return replace(world, rollouts=rollouts, verdicts=store.put_table(table, report.KEYS, world.verdicts.provenance, report.VOLATILE))


def test_the_screen_sets_aside_the_labelled_passes_and_nothing_else(worlds: tuple[World, World]) -> None:
    on, off = worlds
    written = texts(on)
    assert {RIGHT, HACK, WRONG} <= set(written.values())
    now = {v.trajectory_id: v for v in verdicts_of(on)}
    for was in verdicts_of(off):
        hacked = was.verdict is VerdictClass.PASS and written[was.trajectory_id] == HACK
        assert now[was.trajectory_id].verdict is (VerdictClass.HACK_SUSPECTED if hacked else was.verdict)


def test_screened_answers_leave_the_update_as_if_they_had_never_been_written(worlds: tuple[World, World]) -> None:
    on, off = worlds
    gone = {v.trajectory_id for v in verdicts_of(on) if v.verdict is VerdictClass.HACK_SUSPECTED}
    assert len(gone) >= 4
    screened, absent, paid = on.learn(ON), without(on, gone).learn(ON), off.learn(OFF)
    assert row(on, screened)["groups_live"] >= 2 and model(on, screened) == model(on, absent)
    assert model(on, screened) != model(off, paid), "paid, they would have moved the weights"


def test_screened_answers_stand_in_no_baseline_no_pass_rate_and_are_counted_by_name(worlds: tuple[World, World]) -> None:
    on, off = worlds
    screened, paid = row(on, on.learn(ON)), row(off, off.learn(OFF))
    classes = [v.verdict for v in verdicts_of(on)]
    passed, failed = classes.count(VerdictClass.PASS), sum(c.counts for c in classes) - classes.count(VerdictClass.PASS)
    assert screened["pass_rate"] == pytest.approx(passed / (passed + failed)) and screened["pass_rate"] < paid["pass_rate"]
    assert screened["verdict.hack_suspected"] == classes.count(VerdictClass.HACK_SUSPECTED) == screened["rows_left_out"]
    assert "verdict.hack_suspected" not in paid


def test_screened_answers_are_not_consolidated(worlds: tuple[World, World]) -> None:
    on, off = worlds
    passes = {"consolidation": {"kind": "passes", "steps": 2, "batch": 8}}

    def rows(world: World, of: RunConfig) -> float:
        found: float = world.store().read_checkpoint(world.learn(of)).state["consolidation"]["rows"]
        return found

    assert rows(on, config(verify=SCREEN, rl=ONE | passes, **MORE)) < rows(off, config(rl=ONE | passes, **MORE))
    kept = Passes()
    kept.add(judged(on))
    streams = [s.tobytes() for s in kept.rows().streams]
    assert any(RIGHT in s for s in streams) and not any(b"exit" in s for s in streams)


def judged(world: World) -> Round:
    store = world.store()
    of = {v.trajectory_id: v for v in verdicts_of(world)}
    rolled = stage.load(store, world.rollouts)
    return Round(0, rolled, [of[t.id] for t in rolled], {t.id: t for t in tasks_from_table(store.read_table(world.tasks))})


def test_screened_answers_are_in_no_curriculum_outcome_and_solve_no_task_of_the_failure_memory(worlds: tuple[World, World]) -> None:
    on, _ = worlds
    round = judged(on)
    counted = [v for v in round.verdicts if v.verdict.counts]
    ((cell, passed, tried),) = round.outcomes()
    assert (cell, passed, tried) == ("adding/d0", sum(v.verdict is VerdictClass.PASS for v in counted), len(counted)) and tried < len(
        round.verdicts)
    source = Adding()
    world = replace(on)
    state = world.store().read_checkpoint(world.learn(ON, source)).state
    assert state["source"]["seen"] == tried
    only_hacks = {v.trajectory_id: v for v in round.verdicts if v.verdict is not VerdictClass.PASS}
    rows = failure_memory.remember(list(round.tasks.values()), round.trajectories, only_hacks, "t", "main.c0000")
    failing = {v.task_id for v in only_hacks.values() if v.verdict.counts}
    assert {str(r["task_id"]) for r in rows} == failing and all(r["verdict"] != "hack_suspected" for r in rows)


def test_rounds_inside_rl_are_screened_too(worlds: tuple[World, World], tmp_path: Path) -> None:
    world = worlds[0].copy(tmp_path)
    of = config(verify=SCREEN, rl=ONE | {"rounds": 3}, **MORE)
    artifact = world.learn(of, Adding(), ledger := Ledger())
    inside = [row(world, artifact, k) for k in (1, 2)]
    assert sum(r.get("verdict.hack_suspected", 0.0) for r in inside) == ledger.counts["hack_screen.screened"] > 0
    assert all(r["rows_left_out"] == r.get("verdict.hack_suspected", 0.0) for r in inside)


def test_a_label_never_spares_a_failure_its_place_in_the_baseline(worlds: tuple[World, World]) -> None:
    """Setting a caught hack that earned nothing aside would spare it: it stays a failure, and is pushed down."""
    on, _ = worlds
    failing = on.rejudge(lambda v: v.model_copy(update={"verdict": VerdictClass.FAIL, "score": 0.0})
                         if v.verdict is VerdictClass.HACK_SUSPECTED else v)
    learned, screened = failing.learn(ON), on.learn(ON)
    assert row(failing, learned)["rows_left_out"] == 0 < row(on, screened)["rows_left_out"]
    assert model(failing, learned) != model(on, screened)
