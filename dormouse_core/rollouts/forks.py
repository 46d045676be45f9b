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
from dormouse_core.rollouts.snapshots import Boundary
from dormouse_core.rollouts.trajectory import Start, Trajectory

LIKELY = 4
"""States are kept at the first LIKELY times as many steps in a group's order as it gets forks; behind others the prefix is replayed."""


def roll_with_forks(policy: Policy, requests: Sequence[RolloutRequest], config: RolloutConfig, ledger: Ledger,
                    environment_of: Callable[[str], type[Environment]] = environment) -> Iterator[Trajectory]:
    """Play whole groups, and the forks of each as soon as it is complete. A group's members come before its forks, with
    `fork_count` set; otherwise the order is the lanes'. Probes are played once and never forked."""
    engine = Engine(policy, config, ledger, environment_of)
    groups: dict[str, list[RolloutRequest]] = defaultdict(list)
    for request in requests:
        if not request.probe:
            groups[request.group].append(request)
    for group in groups.values():
        likely = set(fork_order(group)[: LIKELY * _wanted(group, config)])
        for request in group:
            engine.submit(request, keep=frozenset(k for trajectory, k in likely if trajectory == request.id))
    for request in requests:
        if request.probe:
            engine.submit(request)
    ended: dict[str, dict[str, Trajectory]] = defaultdict(dict)
    for trajectory in engine.run():
        if trajectory.probe:
            yield trajectory
            continue
        if trajectory.start is Start.PREFIX:
            engine.drop((trajectory.parent_id, trajectory.fork_step))
            yield trajectory
            continue
        members, group = ended[trajectory.group], groups[trajectory.group]
        members[trajectory.id] = trajectory
        if len(members) == len(group):
            del ended[trajectory.group]
            forks = plan_forks([(request, members[request.id]) for request in group], config, ledger)
            engine.keep_only(members, {(fork.parent_id, fork.fork_step) for fork in forks})
            for fork in forks:
                engine.submit(fork)
            for member in members.values():
                yield replace(member, fork_count=sum(fork.parent_id == member.id for fork in forks))


def plan_forks(members: Sequence[tuple[RolloutRequest, Trajectory]], config: RolloutConfig, ledger: Ledger) -> list[RolloutRequest]:
    """The forks of one complete group, in the order of their draws. At most one a step."""
    group, of = [request for request, _ in members], {t.id: (request, t) for request, t in members}
    eligible = {(t.id, k) for _, t in members for k, step in enumerate(t.steps)
                if step.tokens and float(step.entropies[0]) > config.fork_entropy}
    order = fork_order(group)
    ledger.count("rollouts.fork_eligible_steps", sum(place in eligible for place in order))
    chosen = [place for place in order if place in eligible][: _wanted(group, config)]
    possible = [fork_request(*of[name], k) for name, k in chosen if can_deviate(of[name][1].steps[k])]
    ledger.count("rollouts.forks_of_certain_actions", len(chosen) - len(possible))
    return possible


def fork_order(group: Sequence[RolloutRequest]) -> list[Boundary]:
    """Every (trajectory id, step) a group of several-step episodes could be forked at, in an order drawn by keys alone."""
    several = [request for request in group if request.task.max_steps > 1]
    if not several:
        return []
    places = [(request.id, k) for request in several for k in range(request.task.max_steps)]
    seeds = np.array([seeding.key("fork order", r.seed) for r in several], dtype=np.int64).repeat([r.task.max_steps for r in several])
    steps = np.array([k for _, k in places], dtype=np.int64)
    return [places[i] for i in np.argsort(seeding.uniform(seeds, steps, np.zeros_like(steps)), kind="stable")]


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


def _wanted(group: Sequence[RolloutRequest], config: RolloutConfig) -> int:
    """How many forks a group gets: `fork_share` for each several-step episode, rounded up or down by a draw of the group's own, so that
    the mean is exact."""
    zero = np.zeros(1, dtype=np.int64)
    point = float(seeding.uniform(np.array([seeding.key("fork count", group[0].group)], dtype=np.int64), zero, zero)[0])
    return int(np.floor(sum(request.task.max_steps > 1 for request in group) * config.fork_share + point))
