"""Register machines: `R12>47` asks to bring the number 12 to 47 by operations a, b, c, d; each answer shows the new number.

`register_machine` has +1 -1 +10 -10 inside 0..99; `register_mix` has +3 *2 -7 swap, modulo 100. The pair (start, goal) is the problem, so
pairs measured on are pairs never trained on.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.register import LETTERS, best_actions, milestones, pairs, plan, show
from dormouse_core.tasks.task import Pool, Task, VerifierKind

SLACK = 2
"""Steps allowed beyond the shortest plan."""
_STEPS = {"walk": ((1, 2), (2, 3), (3, 4), (4, 5), (5, 7), (8, 12)), "mix": ((1, 1), (2, 2), (3, 3), (4, 4), (4, 5), (5, 6))}
"""Fewest and most steps of the shortest plan, by difficulty."""
_MARK = {"walk": "R", "mix": "X"}


def _make(machine: str, difficulty: int, rng: np.random.Generator) -> Draft:
    choice = pairs(machine, *_STEPS[machine][difficulty])
    start, goal = choice[int(rng.integers(len(choice)))]
    shortest = plan(machine, start, goal)
    steps = len(shortest)
    return Draft(
        canonical=f"{start}>{goal}", prompt=f"{_MARK[machine]}{show(start)}>{show(goal)}".encode(), verifier=VerifierKind.ENV_STEP,
        trusted={"target": {"value": goal}, "milestones": milestones(machine, start, goal)}, environment="register_machine",
        reference=tuple(letter.encode() for letter in shortest), reference_steps=steps,
        start={"machine": machine, "value": start, "goal": goal}, byte_budget=2 * (steps + SLACK), max_steps=steps + SLACK)


def make_walk(difficulty: int, rng: np.random.Generator) -> Draft:
    return _make("walk", difficulty, rng)


def make_mix(difficulty: int, rng: np.random.Generator) -> Draft:
    return _make("mix", difficulty, rng)


def wrong(task: Task, rng: np.random.Generator) -> bytes:
    """A first operation that lies on no shortest path (any operation, where all do)."""
    start = task.start
    off = [c for c in LETTERS if c not in best_actions(start["machine"], start["value"], start["goal"])]
    return str(rng.choice(off or list(LETTERS))).encode()


FAMILIES = (
    Family("register_machine", Pool.AGENT, "reach the goal by a:+1 b:-1 c:+10 d:-10: R12>47", make_walk, wrong),
    Family("register_mix", Pool.AGENT, "reach the goal by a:+3 b:*2 c:-7 d:swap, modulo 100: X12>47", make_mix, wrong),
)
