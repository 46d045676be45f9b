"""RolloutRequest: one episode that is owed, and the keys every one of its draws is a function of.

Not here: which tasks are drawn (tasks, evolution), and how an episode is played (engine).
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from dormouse_core import seeding
from dormouse_core.rollouts.trajectory import Start, Step
from dormouse_core.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Origin:
    """What the episodes of one round share: where they belong, and the weights that sample them."""

    cycle: str
    round: int
    policy: str  # identity of the weights
    seed: int  # root seed of the run
    lfb_version: int = 0


@dataclass(frozen=True)
class RolloutRequest:
    """One episode to be played. `prefix` are steps that are replayed byte for byte before the first draw."""

    task: Task
    origin: Origin
    row: int
    seed: int  # stream of the policy's draws: (seed, step, byte) -> uniform
    env_seed: int  # stream of the environment's; the members of a group share it, and so share their start state
    group: str
    temperature: float = 1.0  # 0 is greedy
    start: Start = Start.ROOT
    parent_id: str = ""
    fork_step: int = -1
    prefix: tuple[Step, ...] = ()
    avoid: Step | None = None  # a fork: the realised step whose action the first draw must not repeat
    probe: bool = False
    extra: dict[str, float] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        """Identity of the trajectory this request becomes: a function of its keys, known before it is played."""
        o = self.origin
        return digest("trajectory", o.policy, o.cycle, o.round, self.task.id, self.row, self.start, self.parent_id, self.fork_step,
                      self.seed, self.temperature)


def digest(*names: str | int | float) -> str:
    """sha256 hex of a sequence of names; the kind of thing named comes first."""
    return hashlib.sha256(json.dumps([str(n) for n in names]).encode()).hexdigest()


def group_requests(task: Task, origin: Origin, rows: Iterable[int], temperature: float, probe: bool = False) -> list[RolloutRequest]:
    """The members of one group: the same task from the same start state, one row each.

    A row's draws depend on (root seed, cycle, round, task, row) alone: not on the other rows, nor on the weights.
    """
    root = seeding.key("rollouts", origin.seed, origin.cycle, origin.round)
    group = digest("group", origin.policy, origin.cycle, origin.round, origin.seed, task.id)
    return [
        RolloutRequest(
            task=task,
            origin=origin,
            row=row,
            seed=seeding.key("policy", root, task.id, row),
            env_seed=seeding.key("environment", root, task.id),
            group=group,
            temperature=temperature,
            probe=probe,
        )
        for row in rows
    ]
