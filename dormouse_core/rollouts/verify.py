"""The verify stage: stored rollouts -> one verdict a trajectory, in a table keyed by trajectory id.

Rollouts are never changed here: a changed verifier makes verdicts stale, and this stage is simply run again. Every episode is
judged by its action bytes alone; what the trajectory says of its rewards and digests is not believed. `verify.fork_budget` episodes are
also played again, and must repeat themselves (replay.py).
Not here: how a verdict is reached (verifiers), what it is worth (learning).
"""

import time
from collections.abc import Mapping, Sequence

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.encoding import unescape
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.rollouts import replay, stage
from dormouse_core.rollouts.trajectory import Start, Trajectory
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.store import tasks_from_table
from dormouse_core.tasks.task import Task, VerifierKind
from dormouse_core.verifiers import hack_screen, report
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

STAGE = "verified_trajectories"
SHOWN = 5
"""Episodes that did not repeat themselves, named one by one; all are counted."""
BATCH = 512
"""Trajectories judged between two progress reports; each batch of programs carries its own canaries."""


def attempt_of(trajectory: Trajectory, task: Task) -> Attempt:
    """What the judge of a trajectory may know. An action the byte budget cut was never carried out and is left out."""
    return Attempt(trajectory.id, task, tuple(unescape(s.action_bytes) for s in trajectory.steps if s.ended), trajectory.stop)


def attempts_of(trajectories: Sequence[Trajectory], tasks: Mapping[str, Task]) -> list[Attempt]:
    """Raises DormouseError where a trajectory's task is not among `tasks`."""
    missing = {t.task_id for t in trajectories} - tasks.keys()
    if missing:
        raise DormouseError(f"{len(missing)} of the rollouts' tasks are not in the task table ({min(missing)[:12]}, …): they were rolled "
                            "on other tasks. Verify them with the task table their provenance names.")
    return [attempt_of(t, tasks[t.task_id]) for t in trajectories]


def verify(trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], config: VerifyConfig, ledger: Ledger,
           runners: Runners | None = None) -> list[Verdict]:
    """Verdicts in trajectory order: the stage's work without its files, for the rounds inside RL. `tasks` by id. Give whole groups: the
    hack screen compares their members."""
    return _screened(trajectories, _judged(trajectories, tasks, config, ledger, runners), tasks, config, ledger)


def _judged(trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], config: VerifyConfig, ledger: Ledger,
            runners: Runners | None) -> list[Verdict]:
    verdicts = judge(attempts_of(trajectories, tasks), config, ledger, runners)
    ledger.count("verify.calls", len(verdicts))
    return verdicts


def _screened(trajectories: Sequence[Trajectory], verdicts: list[Verdict], tasks: Mapping[str, Task], config: VerifyConfig,
              ledger: Ledger) -> list[Verdict]:
    """Behind the hack screen, where there is a program it could read."""
    if not any(v.kind is VerifierKind.EXEC for v in verdicts):
        return verdicts
    return hack_screen.screen(trajectories, verdicts, tasks, config, ledger)


def run(config: RunConfig, rollouts: Artifact, tasks: Artifact, *, store: Store, ledger: Ledger, run_id: str = "") -> Artifact:
    """Judge every trajectory of a ROLLOUTS artifact, screen what was judged, and re-execute `verify.fork_budget` episodes.

    An episode that does not repeat itself has no verdict (`verifier_error` by `verify.replay`), is named aloud and counted as
    `verify.replay_differences`; the command line then ends with 1, behind its report. Raises DormouseError where the task table is not the
    rollouts' own.
    """
    by_id = {t.id: t for t in tasks_from_table(store.read_table(tasks))}
    trajectories = stage.load(store, rollouts)
    verdicts: list[Verdict] = []
    began = time.perf_counter()
    programs = any(t.verifier is VerifierKind.EXEC for t in by_id.values())
    runners = Runners(config.verify, ledger) if programs else None
    try:
        for i in range(0, len(trajectories), BATCH):
            verdicts += _judged(trajectories[i : i + BATCH], by_id, config.verify, ledger, runners)
            rate = len(verdicts) / max(time.perf_counter() - began, 1e-9)
            ledger.progress(STAGE, len(verdicts), len(trajectories), "verdicts", rate=rate)
        different = _replayed(trajectories, verdicts, by_id, config, rollouts.provenance.seed, ledger, runners)
    finally:
        if runners is not None:
            runners.close()
    verdicts = [_without(v, different[v.trajectory_id]) if v.trajectory_id in different else v
                for v in _screened(trajectories, verdicts, by_id, config.verify, ledger)]
    parents = (Parent(role="rollouts", kind=rollouts.kind, identity=rollouts.identity),
               Parent(role="tasks", kind=tasks.kind, identity=tasks.identity))
    return store.put_table(report.verdicts_to_table(verdicts), report.KEYS, Provenance(
        kind=Kind.VERDICTS, stage=STAGE, parents=parents, config_sha256=config.sha256(), code_version=code_version(),
        seed=config.runtime.seed, counters=ledger.counters(), run_id=run_id), report.VOLATILE)


def _replayed(trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict], tasks: Mapping[str, Task], config: RunConfig, seed: int,
              ledger: Ledger, runners: Runners | None) -> dict[str, str]:
    """What differs, by trajectory id, of those re-executed: played again from a snapshot, and judged again in a batch of their own."""
    again = replay.chosen(trajectories, config.verify.fork_budget)
    if not again:
        return {}
    of = {v.trajectory_id: v for v in verdicts}
    found = replay.differences(again, tasks, seed)
    quiet = Ledger(on_line=ledger.loud)  # a second judgement of the same episodes: its counts stay out of the stage's
    for verdict in judge(attempts_of(again, tasks), config.verify, quiet, runners):
        if other := replay.difference(of[verdict.trajectory_id], verdict):
            found.setdefault(verdict.trajectory_id, other)
    ledger.ask("episodes re-executed", ran=True, n=len(again))
    ledger.ask("episodes re-executed", ran=False, n=config.verify.fork_budget - len(again))
    ledger.count("verify.replayed", len(again))
    ledger.count("verify.replayed_forks", sum(t.start is Start.PREFIX for t in again))
    ledger.count("verify.replay_differences", len(found))
    for name, said in list(found.items())[:SHOWN]:
        ledger.loud(f"trajectory {name[:16]} does not repeat itself: {said}. It has no verdict; what else this machine rolled since is in "
                    "doubt too.")
    return found


def _without(verdict: Verdict, reason: str) -> Verdict:
    return verdict.model_copy(update={
        "verdict": VerdictClass.VERIFIER_ERROR, "score": 0.0, "decided_by": "verify.replay", "reason": reason})


def load(store: Store, verdicts: Artifact) -> dict[str, Verdict]:
    """Verdicts of a VERDICTS artifact by trajectory id."""
    return {v.trajectory_id: v for v in report.verdicts_from_table(store.read_table(verdicts))}
