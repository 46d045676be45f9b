"""The roll stage: the same shards whoever rolls them, resumed by shard, whole or owed."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts import stage
from dormouse_core.rollouts.query import connect
from dormouse_core.rollouts.shards import committed, folder, read_shards
from dormouse_core.rollouts.stage import RolloutSet, load, roll_round, run
from dormouse_core.rollouts.trajectory import Start
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.store import KEYS, tasks_to_table
from tests.core.rollouts.conftest import machine_tasks
from tests.core.rollouts.made import bits

CYCLE = "main.c0000"
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(stage, "GROUPS_PER_SHARD", 2)


def _roll(store, policy, tasks, config, workers=1, ledger=None, round=3, name="w" * 64):
    with WorkerPool(workers) as pool:
        return roll_round(policy, tasks, config, cycle=CYCLE, round=round, policy_identity=name, pool=pool, store=store,
                          ledger=ledger or Ledger())


def _files(store):
    return {p.name: p.read_bytes() for p in folder(store.root, CYCLE).iterdir()}


def test_one_and_two_workers_leave_the_same_identities_and_bits(policy, tasks, config, tmp_path):
    ledgers = Ledger(), Ledger()
    rounds = [_roll(Store(tmp_path / str(n)), policy, tasks, config, workers=n, ledger=ledgers[n - 1]) for n in (1, 2)]
    assert [s.identity for s in rounds[0].shards] == [s.identity for s in rounds[1].shards]
    assert [bits(t) for t in rounds[0].trajectories] == [bits(t) for t in rounds[1].trajectories]
    assert ledgers[0].counters() == ledgers[1].counters()
    assert len(rounds[0].shards) == 3


def test_what_is_returned_is_what_is_stored_in_the_order_of_the_tasks(policy, tasks, config, store):
    done = _roll(store, policy, tasks, config)
    assert [bits(t) for t in read_shards(store.root, done.shards)] == [bits(t) for t in done.trajectories]
    roots = [t for t in done.trajectories if t.start is Start.ROOT]
    assert [(t.task_id, t.row) for t in roots] == [(t.id, row) for t in tasks for row in range(config.roll.group_size)]
    assert any(t.start is Start.PREFIX for t in done.trajectories)


def test_a_second_run_rolls_nothing_writes_nothing_and_counts_the_same(policy, tasks, config, store):
    first, second = Ledger(), Ledger()
    done = _roll(store, policy, tasks, config, ledger=first)
    before = _files(store)
    again = _roll(store, policy, tasks, config, ledger=second)
    assert _files(store) == before
    assert [bits(t) for t in again.trajectories] == [bits(t) for t in done.trajectories]
    assert first.counters() == second.counters()
    assert (second.ran["shards rolled (the rest stood already)"], second.asked["shards rolled (the rest stood already)"]) == (0, 3)


@pytest.mark.parametrize("suffix", [".shard.json", ".steps.parquet", ".trajectories.parquet"])
def test_a_damaged_shard_is_rolled_again_and_the_others_keep_every_byte(policy, tasks, config, store, suffix):
    done = _roll(store, policy, tasks, config)
    victim = folder(store.root, CYCLE) / f"{done.shards[1].key[:16]}{suffix}"
    before = _files(store)
    victim.write_bytes(victim.read_bytes()[:-9])
    again = _roll(store, policy, tasks, config)
    after = _files(store)
    assert [s.identity for s in again.shards] == [s.identity for s in done.shards]
    assert {n for n in after if after[n] != before[n]} <= {n for n in after if n.startswith(done.shards[1].key[:16])}


def test_other_weights_seed_round_tasks_or_settings_owe_other_shards(policy, tasks, config, store):
    keys = [tuple(s.key for s in _roll(store, policy, tasks[:2], config).shards)]
    for changed in ({"name": "v" * 64}, {"round": 4}, {"tasks": tasks[1:3]},
                    {"config": config.model_copy(update={"roll": config.roll.model_copy(update={"temperature": 0.9})})},
                    {"config": config.model_copy(update={"runtime": config.runtime.model_copy(update={"seed": 9})})}):
        keys.append(tuple(s.key for s in _roll(store, policy, **{"tasks": tasks[:2], "config": config, **changed}).shards))
    assert len(set(keys)) == len(keys)
    faster = config.model_copy(update={"roll": config.roll.model_copy(update={"lanes": 32, "workers": 2})})
    assert tuple(s.key for s in _roll(store, policy, tasks[:2], faster).shards) == keys[0]


def test_a_task_asked_for_twice_is_rolled_once_and_counted(policy, tasks, config, store):
    ledger = Ledger()
    done = _roll(store, policy, [tasks[0], tasks[1], tasks[0]], config, ledger=ledger)
    roots = [t for t in done.trajectories if t.start is Start.ROOT]
    assert len(roots) == 2 * config.roll.group_size and ledger.counts["rollouts.repeated_tasks"] == 1


def test_forks_belong_to_fork_replay_alone(policy, tasks, config, store):
    from dormouse_core.config.stages import GroupAdvantage
    group = config.model_copy(update={"rl": config.rl.model_copy(update={"advantage": GroupAdvantage()})})
    assert all(t.start is Start.ROOT for t in _roll(store, policy, tasks[:2], group).trajectories)


def test_progress_says_how_far_and_how_fast(policy, tasks, config, store):
    said = []
    _roll(store, policy, tasks, config, ledger=Ledger(progress=lambda *a, **facts: said.append((a, facts))))
    assert [a for a, _ in said] == [("rollouts", n, 24, "trajectories") for n in (8, 16, 24)]
    assert all(facts["rate"] > 0 for _, facts in said)


def _inputs(store, policy, tasks, config):
    provenance = Provenance(kind=Kind.TASKS, stage="cycle_plan", config_sha256=config.sha256(), code_version=code_version(), seed=1)
    drawn = store.put_table(tasks_to_table(tasks), KEYS, provenance)
    weights = store.put_checkpoint(Checkpoint(config, policy.state_dict()), provenance.model_copy(update={"kind": Kind.CHECKPOINT}))
    return drawn, weights


def test_the_artifact_names_its_shards_its_parents_and_the_weights(policy, tasks, config, store, ledger):
    drawn, weights = _inputs(store, policy, tasks, config)
    made = run(config, drawn, weights, cycle=CYCLE, store=store, ledger=ledger, run_id="r1")
    assert {(p.role, p.kind, p.identity) for p in made.provenance.parents} == {
        ("tasks", Kind.TASKS, drawn.identity), ("policy", Kind.CHECKPOINT, weights.identity)}
    stored, payload = load(store, made), store.read_record(made, RolloutSet)
    assert payload.trajectories == len(stored) and payload.forks == sum(t.start is Start.PREFIX for t in stored)
    assert {t.policy for t in stored} == {weights.identity} == {s.policy for s in payload.shards}
    assert made.provenance.counters["rollouts.trajectories"] == len(stored)
    again = run(config, drawn, weights, cycle=CYCLE, store=store, ledger=Ledger(), run_id="r2")
    assert again.identity == made.identity
    elsewhere = Store(store.root.parent / "elsewhere")
    assert run(config, *_inputs(elsewhere, policy, tasks, config), cycle=CYCLE, store=elsewhere, ledger=Ledger()).identity == made.identity


def test_a_missing_shard_is_named_when_rollouts_are_loaded(policy, tasks, config, store, ledger):
    made = run(config, *_inputs(store, policy, tasks[:2], config), cycle=CYCLE, store=store, ledger=ledger)
    gone = next(p for p in folder(store.root, CYCLE).iterdir() if p.name.endswith("steps.parquet"))
    gone.unlink()
    with pytest.raises(DormouseError, match=gone.name):
        load(store, made)


def test_sql_sees_every_whole_shard_and_no_torn_one(policy, tasks, config, store):
    assert connect(store.root).sql("select count(*) from trajectories").fetchall() == [(0,)]
    done = _roll(store, policy, tasks, config)
    db = connect(store.root, CYCLE)
    assert db.sql("select count(*), sum(n_steps), sum(tokens) from trajectories").fetchall() == [
        (len(done.trajectories), sum(len(t.steps) for t in done.trajectories), sum(t.tokens for t in done.trajectories))]
    joined = db.sql("select s.log_probs, s.tokens, s.log_prob from steps s join trajectories t on t.id = s.trajectory_id "
                    "where t.start = 'root' and s.step = 0").fetchall()
    assert len(joined) == sum(t.start is Start.ROOT for t in done.trajectories)
    for blob, tokens, log_prob in joined:
        assert len(np.frombuffer(blob, "<f4")) == tokens and np.frombuffer(blob, "<f4").sum(dtype=np.float64) == pytest.approx(log_prob)
    (folder(store.root, CYCLE) / f"{done.shards[0].key[:16]}.shard.json").write_bytes(b"{")
    gone = read_shards(store.root, done.shards[:1])
    assert connect(store.root).sql("select count(*) from trajectories").fetchall() == [(len(done.trajectories) - len(gone),)]


_ROLLER = """
import sys
from pathlib import Path
import torch
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts import stage
from dormouse_core.rollouts.workers import WorkerPool
from tests.core.rollouts.conftest import SETTINGS, machine_tasks
stage.GROUPS_PER_SHARD = 2
stage.code_version = lambda: "fixed"
torch.set_num_threads(1)
config = resolve("tiny", sets=SETTINGS)
with WorkerPool(1) as pool:
    stage.roll_round(build_policy(config.policy, 5), machine_tasks(24), config, cycle="main.c0000", round=0, policy_identity="w" * 64,
                     pool=pool, store=Store(Path(sys.argv[1])), ledger=Ledger())
"""


def test_kill_9_in_the_middle_loses_nothing_doubles_nothing_and_keeps_finished_shards_byte_identical(config, store, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "code_version", lambda: "fixed")
    script = tmp_path / "roller.py"
    script.write_text(_ROLLER)
    roller = subprocess.Popen([sys.executable, str(script), str(store.root)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    until = time.monotonic() + 60
    while len(committed(store.root)) < 3 and time.monotonic() < until:
        time.sleep(0.002)
    roller.send_signal(signal.SIGKILL)
    roller.wait()
    standing = committed(store.root)
    assert 3 <= len(standing) < 12, "the roller was to die in the middle"
    named = {f.file for r in standing for f in (r.trajectories, r.steps)} | {f"{r.key[:16]}.shard.json" for r in standing}
    before = {name: data for name, data in _files(store).items() if name in named}

    fresh, drawn = build_policy(config.policy, 5), machine_tasks(24)
    ledger = Ledger()
    done = _roll(store, fresh, drawn, config, round=0, ledger=ledger)
    assert ledger.arms()["shards rolled (the rest stood already)"] == f"{12 - len(standing)}/12"
    after = _files(store)
    assert {name: after[name] for name in before} == before
    roots = Counter((t.task_id, t.row) for t in done.trajectories if t.start is Start.ROOT)
    assert roots == Counter((t.id, row) for t in drawn for row in range(config.roll.group_size))
    assert len({t.id for t in done.trajectories}) == len(done.trajectories)
    stored = connect(store.root, CYCLE).sql("select count(*), count(distinct id) from trajectories").fetchall()
    assert stored == [(len(done.trajectories), len(done.trajectories))]
    untouched = _roll(Store(tmp_path / "never killed"), fresh, drawn, config, round=0)
    assert [s.identity for s in untouched.shards] == [s.identity for s in done.shards]


def test_changed_weights_change_what_is_sampled_with_the_same_uniforms(policy, tasks, config, tmp_path):
    other = build_policy(config.policy, 5)
    other.load_state_dict(policy.state_dict())
    with torch.no_grad():
        other.embedding.mul_(0.5)
    one, two = (_roll(Store(tmp_path / n), p, tasks[:2], config, name=n * 64).trajectories for n, p in (("a", policy), ("b", other)))
    assert {t.seed for t in one if t.start is Start.ROOT} == {t.seed for t in two if t.start is Start.ROOT}
    assert [bits(replace(t, id="", policy="", group="", parent_id="")) for t in one] != [
        bits(replace(t, id="", policy="", group="", parent_id="")) for t in two]
