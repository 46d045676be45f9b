"""Re-execution: what was rolled repeats itself from snapshots, and anything that changed since is found and named."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.envs import register_machine
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts import replay, verify
from dormouse_core.rollouts.request import Origin
from dormouse_core.rollouts.trajectory import Start, Trajectory
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.report import summary, verify_report
from dormouse_core.verifiers.verdict import VerdictClass
from tests.core.rollouts.made import played, requests
from tests.core.rollouts.test_verify import stored

SEED = 11
"""Root seed of the `origin` fixture."""


@pytest.fixture(scope="module")
def rolled(policy: Policy, config: RunConfig, tasks: list[Task], origin: Origin) -> list[Trajectory]:
    return played(policy, requests(tasks[:3], origin), config.roll, forks=True)


@pytest.fixture(scope="module")
def by_id(tasks: list[Task]) -> dict[str, Task]:
    return {t.id: t for t in tasks}


def test_every_fork_and_root_repeats_itself(rolled: list[Trajectory], by_id: dict[str, Task]) -> None:
    assert {t.start for t in rolled} == {Start.ROOT, Start.PREFIX} and max(len(t.steps) for t in rolled) > 2
    assert {t.stop for t in rolled} > {StopReason.SOLVED} or len({t.stop for t in rolled}) > 1
    assert replay.differences(rolled, by_id, SEED) == {}


def _first(trajectory: Trajectory, **changes: object) -> Trajectory:
    return replace(trajectory, steps=(replace(trajectory.steps[0], **changes), *trajectory.steps[1:]))


@pytest.mark.parametrize(("change", "said"), [
    (lambda t: _first(t, observation=b"99999"), "step 0: another observation"),
    (lambda t: _first(t, obs_digest="0" * 64), "step 0: another observation digest"),
    (lambda t: _first(t, state_digest="0" * 64), "step 0: another state"),
    (lambda t: _first(t, reward=0.75), "step 0: another reward"),
    (lambda t: _first(t, tool="z"), "step 0: another tool"),
    (lambda t: _first(t, action_bytes=b"??"), "step 0: another"),
    (lambda t: replace(t, stop=StopReason.SUBMITTED), "it ends by"),
    (lambda t: replace(t, steps=t.steps[1:]), "step 0: another state"),
])
def test_a_changed_record_is_found_with_its_step(change: Callable[[Trajectory], Trajectory], said: str, rolled: list[Trajectory],
                                                by_id: dict[str, Task]) -> None:
    whole = next(t for t in rolled if t.start is Start.ROOT and len(t.steps) > 2 and t.steps[0].tool_ok)
    assert said in replay.differences([change(whole)], by_id, SEED)[whole.id]


def test_an_environment_that_changed_or_raises_is_found(rolled: list[Trajectory], by_id: dict[str, Task],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_machine, "show", lambda value: f"{value}!")
    found = replay.differences(rolled, by_id, SEED)
    assert len(found) > len(rolled) / 2 and all("another observation" in said for said in found.values())
    monkeypatch.undo()
    monkeypatch.setattr(register_machine.RegisterMachine, "restore", classmethod(lambda *_: 1 / 0))
    fork = next(t for t in rolled if t.start is Start.PREFIX)
    assert "raised ZeroDivisionError" in replay.differences([fork], by_id, SEED)[fork.id]


def test_half_of_those_chosen_are_forks_and_the_choice_is_a_function_of_the_set(rolled: list[Trajectory]) -> None:
    forks = [t for t in rolled if t.start is Start.PREFIX]
    picked = replay.chosen(rolled, 4)
    assert len(picked) == 4 and sum(t in forks for t in picked) == 2
    assert picked == replay.chosen(list(reversed(rolled)), 4)
    assert len(replay.chosen(rolled, 10_000)) == len(rolled) and replay.chosen(rolled, 0) == []
    assert replay.chosen([replace(t, stop=StopReason.INFRA) for t in rolled], 4) == []


def _verified(config: RunConfig, trajectories: list[Trajectory], tasks: list[Task], store: Store, budget: int) -> tuple[Ledger, list]:
    rollouts, table = stored(store, tasks, trajectories, seed=SEED)
    ledger = Ledger()
    settings = config.model_copy(update={"verify": config.verify.model_copy(update={"fork_budget": budget})})
    made = verify.run(settings, rollouts, table, store=store, ledger=ledger)
    return ledger, list(verify.load(store, made).values())


def test_the_stage_re_executes_its_budget_and_says_so(config: RunConfig, rolled: list[Trajectory], tasks: list[Task], store: Store) -> None:
    ledger, verdicts = _verified(config, rolled, tasks, store, 6)
    told = verify_report(verdicts, ledger.counters(), ledger.seconds["judge"], config.verify)
    assert (told.replayed, told.replay_differences, ledger.counts["verify.replayed_forks"]) == (6, 0, 3)
    assert told.verifier_calls == len(rolled) == sum(told.verifier_kind.values()) and told.canaries == 3
    assert sum(told.shares.values()) == pytest.approx(1) and set(told.shares) == {c.value for c in VerdictClass}
    assert told.seconds_per_rollout > 0 and told.pass_share == summary(verdicts).pass_share
    assert ledger.arms()["episodes re-executed"] == "6/6"


def test_an_episode_that_does_not_repeat_itself_has_no_verdict_and_is_named(config: RunConfig, rolled: list[Trajectory], tasks: list[Task],
                                                                           store: Store) -> None:
    bad = next(t for t in rolled if t.start is Start.ROOT and len(t.steps) > 1)
    changed = [_first(t, observation=b"none of it") if t.id == bad.id else t for t in rolled]
    ledger, verdicts = _verified(config, changed, tasks, store, 10_000)
    of = {v.trajectory_id: v for v in verdicts}
    assert (of[bad.id].verdict, of[bad.id].decided_by, of[bad.id].score) == (VerdictClass.VERIFIER_ERROR, "verify.replay", 0.0)
    assert ledger.counts["verify.replay_differences"] == 1 and any(bad.id[:16] in line for line in ledger.lines)
    assert sum(v.verdict is VerdictClass.VERIFIER_ERROR for v in verdicts) == 1
    assert ledger.arms()["episodes re-executed"] == f"{len(rolled)}/10000"
