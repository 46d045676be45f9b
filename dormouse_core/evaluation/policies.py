"""Policies that bound every suite: four that know nothing and one that knows everything. None of them needs the network.

A policy that knows nothing may not beat the suite's guess bound (beyond chance), and the oracle must pass every task whose
solution is known. Where either fails, the suite or its verifier is broken and every number measured on it is INVALID.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import numpy as np

from dormouse_core import seeding
from dormouse_core.config.base import Record
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.encoding import escape
from dormouse_core.envs import registry
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import Ledger
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

LUCK = 4.0
"""Standard errors above its bound at which a null's rate is no longer luck: twelve bounds a report, three reports a loop."""
Actor = Callable[[int, bytes], bytes]
"""(step, what is shown: the prompt, then each observation) -> action."""


class BoundPolicy(StrEnum):
    """Every policy that needs no network."""

    EMPTY = "empty"  # writes nothing
    CONSTANT = "constant"  # the cell's commonest solution action, read from the other half of the tasks
    ECHO = "echo"  # repeats what it was shown
    RANDOM = "random_bytes"  # up to eight random bytes
    ORACLE = "oracle"  # plays the task's reference


NULLS = (BoundPolicy.EMPTY, BoundPolicy.CONSTANT, BoundPolicy.ECHO, BoundPolicy.RANDOM)


class Bound(Record):
    """What one bounding policy reached in one pool, and what it was allowed to."""

    policy: BoundPolicy
    pool: str
    tasks: int
    rate: float
    limit: float
    """Highest rate allowed (nulls) or lowest (oracle)."""
    holds: bool
    measured: bool
    """False: some of the pool's cells have no measured guess bound, so a null can hardly break it."""


def play(task: Task, actor: Actor) -> tuple[tuple[bytes, ...], StopReason]:
    """One episode of an actor in the task's own environment, under its byte budget (END counted): an action that does not
    fit is cut to what is left."""
    world, shown, left = registry.start(task), task.prompt, task.byte_budget
    actions: list[bytes] = []
    for step in range(task.max_steps):
        action = actor(step, shown)
        while action and len(escape(action)) + 1 > left:
            action = action[:-1]
        left -= len(escape(action)) + 1
        if left < 0:
            return tuple(actions), StopReason.BYTE_BUDGET
        actions.append(action)
        result = world.step(action)
        if result.stop is not None:
            return tuple(actions), result.stop
        shown = result.observation
    return tuple(actions), StopReason.MAX_STEPS


def _constants(tasks: Sequence[Task]) -> Mapping[str, bytes]:
    """Task id -> the commonest reference action of its cell among the tasks at positions of the other parity, so no task votes
    for its own answer."""
    votes: dict[tuple[str, int], Counter[bytes]] = defaultdict(Counter)
    for i, t in enumerate(tasks):
        votes[t.cell, i % 2].update(t.reference)
    chosen = {key: min(count, key=lambda a: (-count[a], a)) for key, count in votes.items() if count}
    return {t.id: chosen.get((t.cell, 1 - i % 2), b"0") for i, t in enumerate(tasks)}


def actor_of(policy: BoundPolicy, task: Task, constant: bytes) -> Actor:
    """The actor that plays one task as `policy` does."""
    if policy is BoundPolicy.ORACLE:
        return lambda step, shown: task.reference[step] if step < len(task.reference) else b""
    if policy is BoundPolicy.RANDOM:
        rng = seeding.generator("random policy", task.id)
        return lambda step, shown: rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8).tobytes()
    if policy is BoundPolicy.ECHO:
        return lambda step, shown: shown
    return lambda step, shown: constant if policy is BoundPolicy.CONSTANT else b""


def bound_attempts(policy: BoundPolicy, tasks: Sequence[Task]) -> list[Attempt]:
    """The policy's answer to every task; the oracle leaves out tasks without a reference."""
    constants = _constants(tasks)
    played = [t for t in tasks if policy is not BoundPolicy.ORACLE or t.reference]
    return [Attempt(f"{policy}:{t.id}", t, *play(t, actor_of(policy, t, constants[t.id]))) for t in played]


def measure_bounds(tasks: Sequence[Task], config: VerifyConfig, ledger: Ledger) -> list[Bound]:
    """Every bounding policy on every pool of the tasks, judged by the suite's own verifiers."""
    attempts = {policy: bound_attempts(policy, tasks) for policy in BoundPolicy}
    for_pool = Counter(t.pool.value for t in tasks)
    known = Counter(a.task.pool.value for a in attempts[BoundPolicy.ORACLE])
    for pool, n in for_pool.items():
        ledger.ask(f"oracle on {pool}", ran=True, n=known[pool])
        ledger.ask(f"oracle on {pool}", ran=False, n=n - known[pool])
    flat = [a for group in attempts.values() for a in group]
    verdicts = dict(zip([a.trajectory_id for a in flat], judge(flat, config, ledger), strict=True))
    return [_bound(policy, pool, [a for a in group if a.task.pool.value == pool], verdicts)
            for policy, group in attempts.items() for pool in for_pool]


def _bound(policy: BoundPolicy, pool: str, attempts: Sequence[Attempt], verdicts: Mapping[str, Verdict]) -> Bound:
    n = len(attempts)
    passed = sum(verdicts[a.trajectory_id].verdict is VerdictClass.PASS for a in attempts)
    rate = passed / n if n else float(policy is BoundPolicy.ORACLE)
    guess = [a.task.guess_bound for a in attempts]
    if policy is BoundPolicy.ORACLE:
        return Bound(policy=policy, pool=pool, tasks=n, rate=rate, limit=1.0, holds=passed == n, measured=n > 0)
    limit = guess_limit(guess)
    return Bound(policy=policy, pool=pool, tasks=n, rate=rate, limit=limit, holds=rate <= limit, measured=all(g < 1 for g in guess))


def guess_limit(guess_M: Sequence[float]) -> float:
    """Highest rate a policy that knows nothing may show: the mean guess bound and LUCK standard errors of as many guesses (of at least
    one lucky one), at most 1."""
    m = len(guess_M)
    if not m:
        return 1.0
    g = np.asarray(guess_M, dtype=np.float64)
    return float(min(1.0, g.mean() + LUCK * np.sqrt(max((g * (1 - g)).sum(), 1.0)) / m))
