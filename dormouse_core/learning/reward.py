"""Shaped return of a judged trajectory: R = R_test * S_sol * S_beh (2610.11959; docs/mechanisms/reward.md).

A zero in any factor cannot be bought back: the factors multiply, and every penalty acts on passing members alone, so a
group in which nobody passes has one return, exactly 0, whatever its lengths and tools.
Not here: baselines (advantage.py), and which rows a statistic may use beyond saying so (`valid_N`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dormouse_core.config.stages import RewardConfig
from dormouse_core.encoding import unescape
from dormouse_core.ledger import Ledger
from dormouse_core.rollouts.trajectory import Start, Trajectory
from dormouse_core.tasks.task import Pool, Task
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

LENGTH_QUANTILE = 0.3
"""Passing length a member is compared with by the group-relative length penalty."""
_LITERAL = re.compile(rb"'[^'\n]*'|\"[^\"\n]*\"|(?<![A-Za-z_0-9])\d[\d_.]*")


@dataclass(frozen=True, slots=True)
class Rewards:
    """Per trajectory [N], in the order given. float64 so that equal returns stay equal."""

    total_N: np.ndarray  # the return R after penalties; 0 where invalid
    test_N: np.ndarray
    solution_N: np.ndarray
    behaviour_N: np.ndarray
    penalty_N: np.ndarray  # what the length and cost terms took from R
    passed_N: np.ndarray  # bool
    valid_N: np.ndarray  # bool: False takes no part in any statistic (no verdict, screened, or a return that is no number)


def is_fork(trajectory: Trajectory) -> bool:
    """True for a row that replays the head of a stored trajectory to measure one of its steps."""
    return trajectory.start is Start.PREFIX and trajectory.parent_id != ""


def announce(config: RewardConfig, ledger: Ledger) -> None:
    """One loud line for each factor that is switched off."""
    for on, name, key in ((config.solution, "S_sol", "solution"), (config.behaviour, "S_beh", "behaviour")):
        if not on:
            ledger.loud(f"reward: {name} is off (rl.reward.{key} = false); it counts as 1")


def shape(
    trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict], tasks: Mapping[str, Task], config: RewardConfig
) -> Rewards:
    """Return of every trajectory; `verdicts[i]` judges `trajectories[i]`, `tasks` maps task ids.

    A violation zeroes S_beh, a failure of any class zeroes R_test (with `graded`, a judged-wrong answer keeps its share of
    hidden cases). Raises ValueError where a verdict belongs to another trajectory, KeyError for an unknown task.
    """
    n = len(trajectories)
    test, solution, behaviour = np.zeros(n), np.ones(n), np.ones(n)
    valid, passed = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for i, (t, v) in enumerate(zip(trajectories, verdicts, strict=True)):
        if v.trajectory_id != t.id:
            raise ValueError(f"verdict {i} judges trajectory {v.trajectory_id}, not {t.id}")
        passed[i] = v.verdict is VerdictClass.PASS
        test[i] = outcome(v, config)
        valid[i] = v.verdict.counts and bool(np.isfinite(test[i]))
        if config.solution:
            solution[i] = solution_quality(t, tasks[t.task_id], config)
        if config.behaviour:
            behaviour[i] = 0.0 if v.verdict is VerdictClass.VIOLATION else behaviour_quality(t, tasks[t.task_id], config)
    gross = np.where(valid, np.where(valid, test, 0.0) * solution * behaviour, 0.0)
    total = np.maximum(gross - penalties(trajectories, passed & valid, valid, config), 0.0)
    return Rewards(total, test, solution, behaviour, gross - total, passed, valid)


def outcome(verdict: Verdict, config: RewardConfig) -> float:
    """R_test: 1 on pass, else 0; with `graded` the share of hidden cases of an answer that was judged wrong."""
    if verdict.verdict is VerdictClass.PASS:
        return 1.0
    if config.graded and verdict.verdict is VerdictClass.FAIL:
        return min(max(verdict.score, 0.0), 1.0) if np.isfinite(verdict.score) else float("nan")
    return 0.0


def solution_quality(trajectory: Trajectory, task: Task, config: RewardConfig) -> float:
    """S_sol in [0, 1]: reference steps / steps, floored at `solution_floor`; for code, times 1 - literal_weight * excess,
    where excess grows from 0 at a body that is half literals to 1 at one that is nothing else."""
    quality = 1.0
    if task.reference_steps is not None and trajectory.steps:
        quality = max(min(1.0, task.reference_steps / len(trajectory.steps)), config.solution_floor)
    if task.pool is Pool.CODE and trajectory.steps:
        quality *= 1.0 - config.literal_weight * max(0.0, 2.0 * literal_share(unescape(trajectory.steps[-1].action_bytes)) - 1.0)
    return quality


def literal_share(body: bytes) -> float:
    """Share of a body's non-blank bytes that lie inside number or string literals. Total over any bytes."""
    solid = len(b"".join(body.split()))
    return sum(len(b"".join(m.group().split())) for m in _LITERAL.finditer(body)) / solid if solid else 0.0


def behaviour_quality(trajectory: Trajectory, task: Task, config: RewardConfig) -> float:
    """S_beh in [0, 1]: 1 minus the weighted rates of malformed actions, of (state, action) pairs already tried, and of tool
    calls beyond the steps the task needs."""
    steps = trajectory.steps
    if not steps:
        return 1.0
    malformed = sum(not s.tool_ok for s in steps)
    repeated = len(steps) - len({(s.state_digest, s.parsed or s.action_bytes) for s in steps})
    calls = trajectory.tool_calls
    needless = max(0, calls - task.reference_steps) / calls if task.reference_steps is not None and calls else 0.0
    cost = (config.malformed_weight * malformed + config.repeated_weight * repeated) / len(steps)
    return max(0.0, 1.0 - cost - config.needless_weight * needless)


def penalties(trajectories: Sequence[Trajectory], paying_N: np.ndarray, valid_N: np.ndarray, config: RewardConfig) -> np.ndarray:
    """What length and cost take from each return [N]: nothing at all from a member that does not pass.

    lambda_tokens a byte, lambda_cost a tool call; and in groups whose pass rate reaches `length_gamma`, length_alpha *
    clip(bytes / l - 1, 0, 1), l being the 0.3 quantile of the group's passing lengths.
    """
    taken = np.zeros(len(trajectories))
    if not (config.lambda_tokens or config.lambda_cost or config.length_alpha):
        return taken
    bytes_N = np.array([t.tokens for t in trajectories], dtype=np.float64)
    tools_N = np.array([t.tool_calls for t in trajectories], dtype=np.float64)
    taken = np.where(paying_N, config.lambda_tokens * bytes_N + config.lambda_cost * tools_N, 0.0)
    if config.length_alpha:
        group_N = np.array([t.group for t in trajectories])
        for group in np.unique(group_N[paying_N]):
            members = (group_N == group) & valid_N
            paying = members & paying_N
            if paying.sum() / members.sum() >= config.length_gamma:
                usual = max(float(np.quantile(bytes_N[paying], LENGTH_QUANTILE)), 1.0)
                taken[paying] += config.length_alpha * np.clip(bytes_N[paying] / usual - 1.0, 0.0, 1.0)
    return taken
