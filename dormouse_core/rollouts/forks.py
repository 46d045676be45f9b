"""Forks: the same state, another action, played to the end (2609.33875 in its corrected form; docs/mechanisms/fork-replay.md).

A step may be forked when the entropy of its first byte's distribution is above `fork_entropy`, and which of them are is drawn
by keys. Both look at the state alone: a rule that looked at the realised action would bias the update. A group gets
`fork_share` forks for each of its multi-step trajectories (the fraction rounded by a keyed draw), all planned as soon as the
group is complete, so no other group decides anything. The alternative is drawn by exact excluded sampling (deviation).
Not here: what a fork is worth (learning).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from dormouse_core import seeding
from dormouse_core.config.stages import RolloutConfig
from dormouse_core.envs.environment import Environment
from dormouse_core.envs.registry import environment
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.deviation import can_deviate
from dormouse_core.rollouts.engine import Engine
from dormouse_core.rollouts.request import RolloutRequest, digest
from dormouse_core.rollouts.trajectory import Start, Trajectory


def roll_with_forks(policy: Policy, requests: Sequence[RolloutRequest], config: RolloutConfig, ledger: Ledger,
                    environment_of: Callable[[str], type[Environment]] = environment) -> Iterator[Trajectory]:
    """Play whole groups, and the forks of each as soon as it is complete. A group's members come before its forks, with
    `fork_count` set; otherwise the order is the lanes'."""
    engine = Engine(policy, config, ledger, keep_snapshots=True, environment_of=environment_of)
    owed: dict[str, dict[str, RolloutRequest]] = defaultdict(dict)
    for request in requests:
        owed[request.group][request.id] = request
        engine.submit(request)
    ended: dict[str, list[tuple[RolloutRequest, Trajectory]]] = defaultdict(list)
    for trajectory in engine.run():
        if trajectory.start is Start.PREFIX:
            engine.drop((trajectory.parent_id, trajectory.fork_step))
            yield trajectory
            continue
        group = ended[trajectory.group]
        group.append((owed[trajectory.group].pop(trajectory.id), trajectory))
        if not owed[trajectory.group]:
            members = sorted(ended.pop(trajectory.group), key=lambda member: member[0].row)
            forks = plan_forks(members, config, ledger)
            wanted = {(fork.parent_id, fork.fork_step) for fork in forks}
            for request, member in members:
                for k in range(len(member.steps)):
                    if (request.id, k) not in wanted:
                        engine.drop((request.id, k))
            for fork in forks:
                engine.submit(fork)
            for _, member in members:
                yield replace(member, fork_count=sum(fork.parent_id == member.id for fork in forks))


def plan_forks(members: Sequence[tuple[RolloutRequest, Trajectory]], config: RolloutConfig, ledger: Ledger) -> list[RolloutRequest]:
    """The forks of one complete group, in the order of their draws. At most one a step."""
    multi = [(request, t) for request, t in members if request.task.max_steps > 1]
    eligible = [(request, t, k) for request, t in multi for k, step in enumerate(t.steps)
                if step.tokens and float(step.entropies[0]) > config.fork_entropy]
    wanted = _round(len(multi) * config.fork_share, members[0][0].group)
    ledger.count("rollouts.fork_eligible_steps", len(eligible))
    if not eligible or not wanted:
        return []
    seeds = np.array([seeding.key("fork order", request.seed) for request, _, _ in eligible], dtype=np.int64)
    steps = np.array([k for _, _, k in eligible], dtype=np.int64)
    order = np.argsort(seeding.uniform(seeds, steps, np.zeros_like(steps)), kind="stable")
    chosen = [eligible[i] for i in order[:wanted]]
    possible = [fork_request(request, t, k) for request, t, k in chosen if can_deviate(t.steps[k])]
    ledger.count("rollouts.forks_of_certain_actions", len(chosen) - len(possible))
    return possible


def fork_request(request: RolloutRequest, parent: Trajectory, k: int) -> RolloutRequest:
    """The fork of a stored trajectory at step k: its steps before k replayed, its action at k avoided.

    `request` is what the parent was played from, or an equal one made from its stored keys.
    """
    if not 0 <= k < len(parent.steps):
        raise ValueError(f"trajectory {parent.id[:16]} has {len(parent.steps)} steps: none to fork at {k}")
    return replace(
        request,
        seed=seeding.key("fork", parent.seed, k),
        group=digest("fork group", parent.id, k),
        start=Start.PREFIX,
        parent_id=parent.id,
        fork_step=k,
        prefix=parent.steps[:k],
        avoid=parent.steps[k],
    )


def _round(expected: float, group: str) -> int:
    """`expected` rounded up or down by a draw of the group's own, so that its mean is exact."""
    zero = np.zeros(1, dtype=np.int64)
    point = float(seeding.uniform(np.array([seeding.key("fork count", group)], dtype=np.int64), zero, zero)[0])
    return int(np.floor(expected + point))
