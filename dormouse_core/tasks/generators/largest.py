"""The largest of several numbers: `B48,84,31` -> 84. Working: the running maximum, `48=84=84`."""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._exact import exact
from dormouse_core.tasks.task import Pool, Task

_KNOB = ((2, 10, 99), (3, 10, 99), (4, 10, 99), (5, 10, 99), (5, 100, 999), (6, 100, 999))
"""(numbers, smallest, largest) by difficulty."""


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    count, low, high = _KNOB[difficulty]
    numbers = [int(v) + low for v in rng.choice(high - low + 1, count, replace=False)]
    shown = ",".join(map(str, numbers))
    return exact(",".join(map(str, sorted(numbers))), f"B{shown}", str(max(numbers)), "number", numbers=numbers)


def worked(task: Task) -> bytes:
    numbers = task.params["numbers"]
    return "=".join(str(max(numbers[: i + 1])) for i in range(len(numbers))).encode()


def wrong(task: Task, rng: np.random.Generator) -> bytes:
    return str(rng.choice([n for n in task.params["numbers"] if n != max(task.params["numbers"])])).encode()


FAMILIES = (Family("largest", Pool.MATH, "the largest number: B48,84,31", make, wrong, worked),)
