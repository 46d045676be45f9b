"""Two arguments with constants between: `P+3y-1` asks for x, plus 3, plus y, minus 1: `x+y+2`.

The short body folds the constants; the longer one, `x+3+y-1`, copies them.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._program import cases_rng, integers, program, signed, with_offset
from dormouse_core.tasks.task import Pool, Task


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    count = difficulty // 2 + 2
    constants = [int(rng.integers(1, 10)) * (1 if rng.random() < 0.6 else -1) for _ in range(count)]
    sign = "-" if difficulty % 2 and rng.random() < 0.5 else "+"
    at = int(rng.integers(0, count + 1))
    terms = [signed(c) for c in constants]
    terms.insert(at, f"{sign}y")
    canonical = "".join(sorted(terms))
    return program("pair_function", canonical, f"P{''.join(terms)}", "x,y", with_offset(f"x{sign}y", sum(constants)),
                   integers(cases_rng("pair_function", canonical), 2), steps=terms, sign=sign, offset=sum(constants))


def worked(task: Task) -> bytes:
    return ("x" + "".join(task.params["steps"])).encode()


def wrong(task: Task, rng: np.random.Generator) -> bytes:
    return with_offset(f"x{task.params['sign']}y", task.params["offset"] + int(rng.choice([-10, -1, 1, 2, 10]))).encode()


FAMILIES = (Family("pair_function", Pool.CODE, "x, constants and y in order: P+3+y-1", make, wrong, worked),)
