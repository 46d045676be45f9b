"""Nines' complement, digit by digit: `K4725` -> 5274. Working: each digit beside its complement, `45722754=5274`."""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._exact import exact, wrong_string
from dormouse_core.tasks.task import Pool, Task


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    digits = "".join(str(v) for v in rng.integers(0, 10, difficulty + 2))
    return exact(digits, f"K{digits}", "".join(str(9 - int(c)) for c in digits), "string", digits=digits)


def worked(task: Task) -> bytes:
    answer = task.trusted["answer"]
    return ("".join(a + b for a, b in zip(task.params["digits"], answer, strict=True)) + f"={answer}").encode()


FAMILIES = (Family("complement", Pool.MATH, "nines' complement of each digit: K4725", make, wrong_string, worked),)
