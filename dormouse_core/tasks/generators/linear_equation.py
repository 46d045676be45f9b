"""Linear equations in one unknown: `L3x+4=19` -> 5. Working: isolate, then divide, `19-4=15/3=5`."""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._exact import exact, wrong_number
from dormouse_core.tasks.task import Pool, Task

_KNOB = ((1, 9, 9), (2, 9, 9), (4, 9, 9), (9, 9, 20), (9, 20, 50), (19, 50, 99))
"""(largest factor, largest solution, largest offset) by difficulty."""


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    factors, solutions, offsets = _KNOB[difficulty]
    a = int(rng.integers(min(2, factors), factors + 1))
    x, b = int(rng.integers(1, solutions + 1)), int(rng.integers(1, offsets + 1))
    left = f"{a if a > 1 else ''}x+{b}"
    return exact(f"{left}={a * x + b}", f"L{left}={a * x + b}", str(x), "number", factor=a, offset=b, right=a * x + b)


def worked(task: Task) -> bytes:
    a, rest = task.params["factor"], task.params["right"] - task.params["offset"]
    shown = f"{task.params['right']}-{task.params['offset']}={rest}"
    return (f"{shown}/{a}={rest // a}" if a > 1 else shown).encode()


FAMILIES = (Family("linear_equation", Pool.MATH, "solve for x: L3x+4=19", make, wrong_number, worked),)
