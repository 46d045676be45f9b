"""A constant shift seen on one example: `N27>61` asks for the function that maps 27 to 61 by adding: `x+34`.

The short body takes a subtraction; the longer one, `x+61-27`, copies the example.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._program import cases_rng, integers, program, with_offset
from dormouse_core.tasks.task import Pool, Task

_KNOB = (9, 20, 50, 99, 300, 999)
"""Largest number shown, by difficulty."""


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    before = after = 0
    while before == after:
        before, after = (int(v) for v in rng.integers(_KNOB[difficulty] // 10, _KNOB[difficulty] + 1, 2))
    shown = f"{before}>{after}"
    inputs = [i for i in integers(cases_rng("shift_function", shown)) if i[0] != before]
    inputs += [(1000 + k,) for k in range(8 - len(inputs))]
    return program("shift_function", shown, f"N{shown}", "x", with_offset("x", after - before), inputs, before=before, after=after)


def worked(task: Task) -> bytes:
    return f"x+{task.params['after']}-{task.params['before']}".encode()


def wrong(task: Task, rng: np.random.Generator) -> bytes:
    right = task.params["after"] - task.params["before"]
    return with_offset("x", int(rng.choice([-right, right + 1, right - 1, right + 10, right - 10]))).encode()


FAMILIES = (Family("shift_function", Pool.CODE, "add the shift the example shows: N27>61", make, wrong, worked),)
