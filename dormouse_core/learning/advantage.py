"""Credit of every step from group outcomes and from forks (2607.00152, 2609.33875; docs/mechanisms/{group,fork-replay}.md).

group        A_i = (R_i - baseline_i) / std^kappa, the same for every step of trajectory i. kappa 0 is Dr. GRPO, 1 is GRPO;
             a leave-one-out baseline with kappa 0 is RLOO.
fork-replay  where step k of trajectory i was forked, A_ik = (1 - pi(a_ik | s_ik)) (R_i - R_fork) replaces that step's credit
             and no other; every other step keeps the group's.
Forks only measure: they carry no policy loss, stand in no baseline, and label V at the state they start from.
Not here: the return (reward.py), how credit becomes a loss (loss.py), which steps are forked (rollouts).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dormouse_core.config.stages import Advantage, ForkReplayAdvantage
from dormouse_core.learning.reward import Rewards, is_fork
from dormouse_core.rollouts.trajectory import Step, Trajectory


@dataclass(frozen=True, slots=True)
class Credit:
    """What an update needs of N trajectories of at most K steps, in the order given."""

    advantage_NK: np.ndarray  # float64; exactly 0 beyond a trajectory's steps, in dead groups, for forks and invalid rows
    value_NK: np.ndarray  # float64 target of V before step k; NaN where there is no label
    learns_N: np.ndarray  # bool: valid, not a fork, not a probe: a member of its prompt's mean
    live_N: np.ndarray  # bool: learns, and its group has credit other than 0; the others are left out of the update whole
    counts: dict[str, int]


def estimate(trajectories: Sequence[Trajectory], rewards: Rewards, config: Advantage) -> Credit:
    """Credit every step. Groups with fewer than two valid rows, or without spread, get exactly 0 and count as dead.

    Raises ValueError if a group mixes tasks or start states.
    """
    n, k_max = len(trajectories), max((len(t.steps) for t in trajectories), default=0)
    counts: Counter[str] = Counter()
    learns = np.array([bool(v) and not is_fork(t) and not t.probe for t, v in zip(trajectories, rewards.valid_N, strict=True)], dtype=bool)
    members = _members(trajectories)
    kappa = 0.0 if isinstance(config, ForkReplayAdvantage) else config.kappa
    base_N = np.zeros(n)
    for rows in members.values():
        inside = rows[learns[rows]]
        base_N[inside] = group_credit(rewards.total_N[inside], kappa, config.leave_one_out)
    in_trajectory_NK = np.arange(k_max) < np.array([len(t.steps) for t in trajectories]).reshape(n, 1)
    advantage = np.where(in_trajectory_NK & learns[:, None], base_N[:, None], 0.0)
    value = np.where(in_trajectory_NK & learns[:, None], rewards.total_N[:, None], np.nan)
    if isinstance(config, ForkReplayAdvantage):
        _credit_forks(trajectories, rewards, config, learns, advantage, value, counts)
    else:
        counts["forks_unused"] += sum(is_fork(t) for t in trajectories)
    live = np.zeros(n, dtype=bool)
    for rows in members.values():
        inside = rows[learns[rows]]
        _count_group(rewards, rows, inside, advantage, base_N, counts)
        live[inside] = bool(np.any(advantage[inside]))
    return Credit(advantage, value, learns, live, dict(sorted(counts.items())))


def group_credit(return_G: np.ndarray, kappa: float, leave_one_out: bool) -> np.ndarray:
    """Group-relative credit [G] of valid members: exactly 0 where there are fewer than two or no spread."""
    g = len(return_G)
    if g < 2 or return_G.max() == return_G.min():
        return np.zeros(g)
    credit = (return_G - return_G.mean()) * (g / (g - 1) if leave_one_out else 1.0)
    return credit / return_G.std() ** kappa if kappa else credit


def mass(credit: Credit) -> dict[str, float]:
    """How much is pushed and by how many steps: sums of credit above and below 0, and (sum |A|)^2 / sum A^2."""
    a = credit.advantage_NK[credit.live_N]
    total, square = float(np.abs(a).sum()), float(np.square(a).sum())
    if square == 0:
        return {}
    return {"advantage_positive": float(a[a > 0].sum()), "advantage_negative": float(a[a < 0].sum()), "advantage_n_eff": total**2 / square}


def not_taken(step: Step) -> float:
    """1 - pi(a|s): the probability, as sampled, that the policy writes anything but this step's bytes."""
    return float(-np.expm1(min(float(np.sum(step.log_probs, dtype=np.float64)), 0.0)))


def _members(trajectories: Sequence[Trajectory]) -> dict[str, np.ndarray]:
    """Row indices of each group of non-forks, groups in order of first appearance."""
    rows: dict[str, list[int]] = defaultdict(list)
    start: dict[str, tuple[str, str, str, int]] = {}
    for i, t in enumerate(trajectories):
        if is_fork(t) or t.probe:
            continue
        here = (t.task_id, t.start.value, t.parent_id, t.fork_step)
        if start.setdefault(t.group, here) != here:
            raise ValueError(f"group {t.group} mixes start states: {start[t.group]} and {here}")
        rows[t.group].append(i)
    return {g: np.array(r, dtype=np.int64) for g, r in rows.items()}


def _credit_forks(
    trajectories: Sequence[Trajectory],
    rewards: Rewards,
    config: ForkReplayAdvantage,
    learns_N: np.ndarray,
    advantage_NK: np.ndarray,
    value_NK: np.ndarray,
    counts: Counter[str],
) -> None:
    """Overwrite, in place, the credit and the V label of forked steps. Several forks of one step are averaged.

    V label: pi R + (1 - pi) R_fork, whose mean is V(s) exactly, because the fork never takes the realised action.
    """
    index = {t.id: i for i, t in enumerate(trajectories) if not is_fork(t)}
    returns: dict[tuple[int, int], list[float]] = defaultdict(list)
    for j, t in enumerate(trajectories):
        if not is_fork(t):
            continue
        counts["forks"] += 1
        parent = index.get(t.parent_id)
        if parent is None or not 0 <= t.fork_step < len(trajectories[parent].steps):
            counts["forks_orphaned"] += 1
        elif not (rewards.valid_N[j] and learns_N[parent]):
            counts["forks_without_verdict"] += 1
        else:
            returns[parent, t.fork_step].append(float(rewards.total_N[j]))
    for (i, k), outcomes in returns.items():
        other = not_taken(trajectories[i].steps[k]) if config.corrected else 1.0
        mean_fork = float(np.mean(outcomes))
        contrast = other * (rewards.total_N[i] - mean_fork)
        counts["forked_steps"] += 1
        counts["forked_steps_informative"] += contrast != 0
        counts["forked_steps_sign_changed"] += contrast * advantage_NK[i, k] < 0
        advantage_NK[i, k] = contrast
        pi = 1.0 - not_taken(trajectories[i].steps[k])
        value_NK[i, k] = pi * rewards.total_N[i] + (1.0 - pi) * mean_fork


def _count_group(
    rewards: Rewards, rows: np.ndarray, inside: np.ndarray, advantage_NK: np.ndarray, base_N: np.ndarray, counts: Counter[str]
) -> None:
    """Count one group: live or dead and why, and what left it."""
    counts["groups"] += 1
    counts["rows_left_out"] += len(rows) - len(inside)
    if np.any(advantage_NK[inside]):
        counts["groups_live"] += 1
        counts["groups_live_by_forks_alone"] += not np.any(base_N[inside])
        return
    counts["groups_dead"] += 1
    if len(inside) < 2:
        counts["groups_dead_too_few"] += 1
    elif np.all(rewards.passed_N[inside]):
        counts["groups_dead_all_pass"] += 1
    elif not np.any(rewards.passed_N[inside]):
        counts["groups_dead_all_fail"] += 1
    else:
        counts["groups_dead_equal_return"] += 1
