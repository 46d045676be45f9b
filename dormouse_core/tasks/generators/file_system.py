"""Small file systems: `Ya1b2>b2c1` asks to bring the listing a1b2 to b2c1 by commands; each answer shows the new listing.

Commands: w write, m move, c copy, r remove, k make folder, l look (`tasks/files.py`). Milestones are the goal's predicates:
every wanted file that was not there, every spare file gone, every folder made.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.files import FOLDERS, Files, plan, predicates, random_command, random_files
from dormouse_core.tasks.task import Pool, Task, VerifierKind

SLACK = 2
"""Commands allowed beyond the shortest plan."""
_KNOB = ((1, 2, False), (1, 3, False), (2, 3, False), (3, 3, False), (3, 3, True), (4, 4, True))
"""(steps of the shortest plan, files at the start, folders) by difficulty."""
_LONGEST = 12
"""Bytes of the longest listing shown."""


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    steps, count, folders = _KNOB[difficulty]
    while True:
        first = random_files(count, folders and bool(rng.integers(2)), rng)
        goal = first
        for _ in range(steps):
            goal = _random_change(goal, folders, rng)
        commands = plan(first, goal)
        if len(commands) == steps and goal.contents and max(len(first.listing()), len(goal.listing())) <= _LONGEST:
            return _draft(first, goal, commands)


def _random_change(state: Files, folders: bool, rng: np.random.Generator) -> Files:
    missing = sorted(set(FOLDERS) - state.folders)
    if folders and missing and rng.random() < 0.4:
        return state.apply(f"k{rng.choice(missing)}")[0]
    return state.apply(random_command(state, rng))[0]


def _draft(first: Files, goal: Files, commands: list[str]) -> Draft:
    marks = [{key: value} for key, value in predicates(first, goal)]
    longest = max(map(len, commands), default=1)
    return Draft(
        canonical=f"{first.listing()}>{goal.listing()}", prompt=f"Y{first.listing()}>{goal.listing()}".encode(),
        verifier=VerifierKind.ENV_STEP, trusted={"target": {"listing": goal.listing()}, "milestones": marks}, environment="file_system",
        reference=tuple(c.encode() for c in commands), reference_steps=len(commands),
        start={"listing": first.listing(), "goal": goal.listing()}, byte_budget=(longest + 1) * (len(commands) + SLACK),
        max_steps=len(commands) + SLACK)


def wrong(task: Task, rng: np.random.Generator) -> bytes:
    """A well-formed first command that the plan does not hold."""
    state = Files.read(task.start["listing"])
    while True:
        command = random_command(state, rng)
        if command.encode() not in task.reference:
            return command.encode()


FAMILIES = (Family("file_system", Pool.AGENT, "change the listing by commands: Ya1b2>b2c1", make, wrong),)
