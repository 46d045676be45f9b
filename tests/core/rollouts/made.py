"""Short words for what the rollout tests do again and again."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from dormouse_core.config.stages import RolloutConfig
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.engine import roll
from dormouse_core.rollouts.forks import roll_with_forks
from dormouse_core.rollouts.request import Origin, RolloutRequest, group_requests
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.tasks.task import Task


def requests(tasks: Sequence[Task], origin: Origin, g: int = 4, temperature: float = 1.0) -> list[RolloutRequest]:
    return [r for task in tasks for r in group_requests(task, origin, range(g), temperature)]


def changed(task: Task, **changes: Any) -> Task:
    """Another task (with an id of its own) that differs in these fields."""
    return Task.model_validate({**task.model_dump(), **changes})


def bits(trajectory: Trajectory) -> tuple[object, ...]:
    """Everything of a trajectory but its timings, exactly."""
    steps = tuple((s.step, s.action_bytes, s.ended, s.parsed, s.observation, s.obs_digest, s.state_digest, s.tool, s.tool_ok, s.reward,
                   s.log_probs.tobytes(), s.entropies.tobytes()) for s in trajectory.steps)
    t = trajectory
    return (t.id, t.cycle, t.round, t.task_id, t.group, t.row, t.start, t.parent_id, t.fork_step, t.seed, t.policy, t.temperature, t.prompt,
            t.stop, t.fork_count, tuple(sorted(t.extra.items())), steps)


def fingerprint(trajectories: Iterable[Trajectory]) -> dict[str, str]:
    """id -> hash of the bits."""
    return {t.id: hashlib.sha256(repr(bits(t)).encode()).hexdigest() for t in trajectories}


def played(policy: Policy, owed: Sequence[RolloutRequest], config: RolloutConfig, forks: bool = False,
           ledger: Ledger | None = None) -> list[Trajectory]:
    function = roll_with_forks if forks else roll
    return list(function(policy, owed, config, ledger or Ledger()))
