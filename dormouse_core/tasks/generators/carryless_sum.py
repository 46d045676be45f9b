"""Column sums without carry: `A47+36` -> 73. Working: each column with its sum, then the answer, `437763=73`.

Every column is one small addition modulo 10, so the parts of a new problem have been met, and only their combination is new.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._exact import exact, wrong_string
from dormouse_core.tasks.task import Pool, Task


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    """difficulty + 1 columns; below difficulty 3 no column passes 9."""
    columns = difficulty + 1
    top = [int(v) for v in rng.integers(0, 10, columns)]
    below = [int(rng.integers(0, 10 if difficulty >= 3 else 10 - t)) for t in top]
    a, b = ("".join(map(str, side)) for side in (top, below))
    answer = "".join(str((t + u) % 10) for t, u in zip(top, below, strict=True))
    return exact("+".join(sorted((a, b))), f"A{a}+{b}", answer, "string", top=a, below=b)


def worked(task: Task) -> bytes:
    params, answer = task.params, task.trusted["answer"]
    return ("".join(t + u + s for t, u, s in zip(params["top"], params["below"], answer, strict=True)) + f"={answer}").encode()


FAMILIES = (Family("carryless_sum", Pool.MATH, "column sums without carry: A47+36", make, wrong_string, worked),)
