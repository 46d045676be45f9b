"""`post-train verify` on stored rollouts: the report, re-execution, re-verification, and the hack screen's switch."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dormouse_core.artifacts.provenance import Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.encoding import escape
from dormouse_core.envs import register_machine
from dormouse_core.envs.environment import StopReason
from dormouse_core.envs.registry import start
from dormouse_core.rollouts.shards import ShardHead, write_shard
from dormouse_core.rollouts.stage import RolloutSet
from dormouse_core.rollouts.trajectory import Start, Step, Trajectory
from dormouse_core.sandbox import limits
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.store import KEYS, tasks_to_table
from dormouse_core.tasks.task import Split, Task
from dormouse_pipeline.cli.main import cli

CELLS = (("register_machine", 2), ("sum_of_terms", 1), ("affine_function", 1))


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def flat(text: str) -> str:
    return " ".join(text.split())


def episode(name: str, task: Task, actions: tuple[bytes, ...]) -> Trajectory:
    """The record an honest run of these actions would leave."""
    state, steps, stop = start(task), [], StopReason.BYTE_BUDGET
    for k, action in enumerate(actions):
        digest, result = state.digest(), state.step(action)
        n = np.zeros(len(escape(action)) + 1, np.float32)
        shown = hashlib.sha256(result.observation).hexdigest()
        steps.append(Step(k, escape(action), True, result.parsed, result.observation, shown, digest, result.tool, result.tool_ok, n, n,
                          result.reward))
        stop = result.stop or StopReason.BYTE_BUDGET
    return Trajectory(name, "main.c0000", 0, task.id, task.pool, task.cell, "g", 0, Start.ROOT, "", -1, 0, "w" * 64, 0, 1.0, task.prompt,
                      tuple(steps), stop)


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(rollouts file, store): right and wrong episodes of three verifiers."""
    store = Store(tmp_path_factory.mktemp("verify") / "store")
    tasks = [draw(family, level, Split.TRAIN, 0, "verify") for family, level in CELLS]
    played = [episode(f"{i}{kind}", t, actions) for i, t in enumerate(tasks) for kind, actions in (("r", t.reference), ("w", (b"?",)))]
    common = {"stage": "test", "config_sha256": "0" * 64, "code_version": "0" * 64, "seed": 1}
    table = store.put_table(tasks_to_table(tasks), KEYS, Provenance(kind=Kind.TASKS, **common))
    head = ShardHead(key="k" * 64, cycle="main.c0000", round=0, policy="w" * 64, lfb_version=0, code_version="0", slot="s",
                     tasks=tuple(t.id for t in tasks))
    shard = write_shard(store.root, head, played, {})
    of_tasks = Parent(role="tasks", kind=table.kind, identity=table.identity)
    made = store.put_record(RolloutSet(cycle="main.c0000", round=0, policy="w" * 64, content=(shard.identity,), shards=(shard,),
                                       trajectories=len(played), forks=0, bytes=0),
                            Provenance(kind=Kind.ROLLOUTS, parents=(of_tasks,), **common))
    return str(store.path(made)), str(store.root)


def test_verify_reports_calls_kinds_shares_seconds_and_re_executed_episodes(rolled: tuple[str, str], tmp_path: Path) -> None:
    report, judged = tmp_path / "v.json", tmp_path / "v.parquet"
    common = ("--preset", "tiny", "--store", rolled[1])
    code, said, error = call("post-train", "verify", "--traj", rolled[0], "--fork-budget", "6", "--hack-screen", "on", "--report",
                             str(report), "--out", str(judged), "--json", *common)
    assert code == 0, error
    told = json.loads(report.read_text())["report"]
    assert told == json.loads(said)["report"]
    assert told["verifier_calls"] == 6 and told["verifier_kind"] == {"exact": 2, "exec": 2, "env_step": 2}
    assert told["shares"]["pass"] == 0.5 and sum(told["shares"].values()) == pytest.approx(1)
    assert (told["replayed"], told["fork_budget"], told["replay_differences"], told["canary_failures"]) == (6, 6, 0, 0)
    assert told["canaries"] == 9 and told["seconds_per_rollout"] > 0 and told["hack_screen"] == "on" and told["before"] is None
    code, said, _ = call("post-train", "verify", "--traj", str(judged), "--hack-screen", "off", *common)
    assert code == 0 and "0/6 were stale; none changed its class" in flat(said) and "off, 0 set aside" in flat(said)


def test_an_episode_that_does_not_repeat_itself_ends_the_command_with_one_behind_its_report(
        rolled: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_machine, "show", lambda value: f"{value}!")
    report = tmp_path / "v.json"
    code, _, error = call("post-train", "verify", "--traj", rolled[0], "--fork-budget", "6", "--report", str(report), "--preset", "tiny",
                          "--store", rolled[1])
    assert code == 1 and "1 of 6 re-executed episodes do not repeat themselves" in flat(error)
    assert json.loads(report.read_text())["report"]["replay_differences"] == 1


def test_hard_requires_the_full_jail_and_turns_the_screen_on_and_says_so(rolled: tuple[str, str], tmp_path: Path) -> None:
    report = tmp_path / "v.json"
    common = ("post-train", "verify", "--traj", rolled[0], "--preset", "tiny", "--store", rolled[1], "--verifier", "hard")
    code, _, error = call(*common, "--report", str(report), "--json")
    assert code == 0 and "! --verifier hard: verify.jail=full verify.hack_screen.enabled=true" in flat(error)
    told = json.loads(report.read_text())["report"]
    assert told["hack_screen"] == "on" and {"seccomp", "landlock7", "pidns"} <= set(told["layers"]), "this machine has the full jail"
    code, _, error = call(*common, "--hack-screen", "off")
    assert code == 1 and "sets verify.hack_screen.enabled=true, and another flag asks for false" in flat(error)


def test_hard_gives_no_verdict_on_a_program_where_a_layer_is_missing(rolled: tuple[str, str], tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    honest = limits.stand
    monkeypatch.setattr(limits, "stand", lambda told, mode, without, why: honest(told, mode, without, "EPERM, for the test"))
    common = ("post-train", "verify", "--traj", rolled[0], "--preset", "tiny", "--store", rolled[1], "--json")
    rows = (((), {"pass", "unparseable"}, "no namespaces here"), (("--verifier", "hard"), {"verifier_error"}, "full jail was asked"))
    for more, wanted, loud in rows:
        code, said, error = call(*common, *more)
        assert {r["class"] for r in json.loads(said)["rows"] if r["verifier"] == "exec"} == wanted and loud in flat(error), (code, error)


def test_a_kind_that_is_not_there_is_refused_and_repo_is_a_kind(rolled: tuple[str, str]) -> None:
    code, _, error = call("post-train", "verify", "--traj", rolled[0], "--verifier", "repo", "--preset", "tiny", "--store", rolled[1])
    assert code == 1 and "--verifier repo: the rollouts also hold tasks of" in flat(error)
