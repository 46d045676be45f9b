"""Digits in rising order: `O5271` -> 1257. Working: insertion, one more digit each time, `5=25=257=1257`."""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._exact import exact, wrong_string
from dormouse_core.tasks.task import Pool, Task


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    digits = "".join(map(str, rng.permutation(10)[: difficulty + 3]))
    return exact(digits, f"O{digits}", "".join(sorted(digits)), "string", digits=digits)


def worked(task: Task) -> bytes:
    digits = task.params["digits"]
    return "=".join("".join(sorted(digits[: i + 1])) for i in range(len(digits))).encode()


FAMILIES = (Family("ordering", Pool.MATH, "digits in rising order: O5271", make, wrong_string, worked),)
