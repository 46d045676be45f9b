"""Re-execution: stored forks and trajectories played again in fresh environments, which must show what was shown and be judged as judged.

An episode is carried to a boundary (a fork: to where it left its parent; a root: to a step drawn by keys), its environment is
snapshotted, thrown away and restored, and the rest of the stored actions follow. At every step the state's digest, the observation and
its digest, the parsed action, the tool and its reward must be the stored ones, and so must the end; then the actions are judged once
more, in a batch of their own. A difference means that what was learned from is not what happened: the machine, the environment or the
files changed.
Not here: sampling (no policy is run), and what follows from a difference (verify.py).
"""

import hashlib
from collections.abc import Mapping, Sequence

from dormouse_core import seeding
from dormouse_core.encoding import unescape
from dormouse_core.envs.environment import StopReason
from dormouse_core.envs.registry import environment
from dormouse_core.rollouts.request import Origin, group_requests
from dormouse_core.rollouts.trajectory import Start, Trajectory
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.verdict import Verdict

_FIELDS = ("parsed", "observation", "tool", "tool_ok", "reward")


def chosen(trajectories: Sequence[Trajectory], n: int) -> list[Trajectory]:
    """The n that are re-executed: half of them forks where there are so many, each kind in an order drawn by keys. Episodes that ended by
    a failure of the machine are left out: they show nothing that could be repeated."""
    whole = sorted((t for t in trajectories if t.stop is not StopReason.INFRA), key=lambda t: seeding.key("replay", t.id))
    forks = [t for t in whole if t.start is Start.PREFIX]
    roots = [t for t in whole if t.start is not Start.PREFIX]
    picked = forks[: max(n - n // 2, n - len(roots))]
    return picked + roots[: n - len(picked)]


def replay(trajectory: Trajectory, task: Task, seed: int) -> str:
    """'' where every step and the end are as stored, else the first difference. seed: root seed of the run that rolled it."""
    origin = Origin(trajectory.cycle, trajectory.round, trajectory.policy, seed)
    (request,) = group_requests(task, origin, (trajectory.row,), trajectory.temperature)
    made = environment(task.environment)
    state = made.start(task, request.env_seed)
    done = [s for s in trajectory.steps if s.ended]
    boundary = trajectory.fork_step if trajectory.start is Start.PREFIX else seeding.key("replay from", trajectory.id) % (len(done) + 1)
    stop = StopReason.BYTE_BUDGET
    for k, step in enumerate(trajectory.steps):
        if k == boundary:
            state = made.restore(task, state.snapshot())
        if state.digest() != step.state_digest:
            return f"step {k}: another state than the stored digest names"
        if not step.ended:
            break  # the budget cut it: it was never carried out
        result = state.step(unescape(step.action_bytes))
        different = [name for name in _FIELDS if getattr(result, name) != getattr(step, name)]
        if different or hashlib.sha256(result.observation).hexdigest() != step.obs_digest:
            return f"step {k}: another {', '.join(different) or 'observation digest'}"
        stop = result.stop or (StopReason.MAX_STEPS if k + 1 >= task.max_steps else StopReason.BYTE_BUDGET)
    return "" if stop is trajectory.stop else f"it ends by {stop} and not by {trajectory.stop}"


def difference(stored: Verdict, again: Verdict) -> str:
    """'' where two verdicts of one trajectory agree in all that is learned from."""
    names = ("verdict", "score", "decided_by", "cases_passed", "cases_total", "milestones_passed", "milestones_total")
    other = [name for name in names if getattr(stored, name) != getattr(again, name)]
    return f"judged again it has another {', '.join(other)} ({stored.verdict} by {stored.decided_by}, then {again.verdict} by " \
           f"{again.decided_by})" if other else ""


def differences(trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], seed: int) -> dict[str, str]:
    """First difference by trajectory id, for those that have one. An environment that raises is a difference."""
    found = {}
    for t in trajectories:
        try:
            said = replay(t, tasks[t.task_id], seed)
        except Exception as error:  # noqa: BLE001 - whatever an environment raises now, it did not raise then
            said = f"the environment raised {type(error).__name__}: {str(error)[:80]}"
        if said:
            found[t.id] = said
    return found
