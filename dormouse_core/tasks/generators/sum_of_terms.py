"""Sums: `S7+5+9` -> 21. Working: running totals, `7+5=12+9=21`."""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._exact import exact, wrong_number
from dormouse_core.tasks.task import Pool, Task

_KNOB = ((2, 9), (3, 9), (4, 9), (5, 9), (4, 99), (5, 99))
"""(terms, largest term) by difficulty."""


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    terms, largest = _KNOB[difficulty]
    drawn = [int(v) for v in rng.integers(1 if largest < 10 else 10, largest + 1, terms)]
    shown = "+".join(map(str, drawn))
    return exact("+".join(map(str, sorted(drawn))), f"S{shown}", str(sum(drawn)), "number", terms=drawn)


def worked(task: Task) -> bytes:
    terms = task.params["terms"]
    total, out = terms[0], str(terms[0])
    for term in terms[1:]:
        total += term
        out += f"+{term}={total}"
    return out.encode()


FAMILIES = (Family("sum_of_terms", Pool.MATH, "add terms: S7+5+9", make, wrong_number, worked),)
