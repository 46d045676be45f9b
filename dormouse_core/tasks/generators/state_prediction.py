"""Next-state prediction: the policy says what an environment would show after given actions.

`Q45ab` asks where the register machine `walk` stands after a, then b, from 45: `45`. Working: every number on the way,
`46=45`. `Vd2a1:mab` asks for the listing of a small file system after a command. No-change outcomes are left out: they
would reward predicting nothing.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.files import random_command, random_files
from dormouse_core.tasks.generators._exact import exact, wrong_number, wrong_string
from dormouse_core.tasks.register import LETTERS, SIZE, show, successors
from dormouse_core.tasks.task import Pool, Task


def make_register(difficulty: int, rng: np.random.Generator) -> Draft:
    """difficulty + 1 operations, none of which is refused or undone by the next."""
    while True:
        start = int(rng.integers(0, SIZE))
        letters = "".join(str(c) for c in rng.choice(list(LETTERS), difficulty + 1))
        path = _path(start, letters)
        if path and path[-1] != start:
            return exact(f"{show(start)}{letters}", f"Q{show(start)}{letters}", show(path[-1]), "string", environment="state_prediction",
                         start={"kind": "register", "value": start, "actions": letters}, path=[show(v) for v in path])


def _path(value: int, letters: str) -> list[int]:
    """Numbers after each operation; empty where one is refused."""
    path = []
    for letter in letters:
        after = successors("walk", value)[LETTERS.index(letter)]
        if after is None:
            return []
        path.append(value := after)
    return path


def worked_register(task: Task) -> bytes | None:
    path = task.params["path"]
    return "=".join(path).encode() if len(path) > 1 else None


def wrong_register(task: Task, rng: np.random.Generator) -> bytes:
    return show(int(wrong_number(task, rng)) % SIZE).encode()


def make_files(difficulty: int, rng: np.random.Generator) -> Draft:
    """One to three commands on 2 to 4 files, each of which changes the listing."""
    while True:
        state = first = random_files(2 + difficulty // 2, difficulty >= 2, rng)
        commands, listings = [], []
        for _ in range((1, 1, 1, 2, 2, 3)[difficulty]):
            command = random_command(state, rng)
            state, _ = state.apply(command)
            commands.append(command)
            listings.append(state.listing())
        if len({first.listing(), *listings}) == len(listings) + 1 and state.listing():
            shown = f"{first.listing()}:{','.join(commands)}"
            return exact(shown, f"V{shown}", state.listing(), "string", environment="state_prediction",
                         start={"kind": "files", "listing": first.listing(), "actions": commands}, path=listings)


def worked_files(task: Task) -> bytes | None:
    return worked_register(task)


FAMILIES = (
    Family("state_prediction", Pool.AGENT, "the number after operations: Q45ab", make_register, wrong_register, worked_register),
    Family("file_prediction", Pool.AGENT, "the listing after a command: Va1b2:mac", make_files, wrong_string, worked_files),
)
