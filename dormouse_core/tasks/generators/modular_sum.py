"""Sums of digits modulo m over named places: `Ma7b5c9%10` -> 1. Working: the running residue at each place, `a7b2c1=1`.

A direct answer needs every addition at once; the working needs one small addition a step, each over a table of a hundred.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._exact import exact
from dormouse_core.tasks.task import Pool, Task

_KNOB = ((2, 10), (3, 10), (4, 10), (5, 10), (6, 10), (7, 7))
"""(terms, smallest modulus) by difficulty; the modulus is at most 10."""
_PLACES = "abcdefg"


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    terms, smallest = _KNOB[difficulty]
    modulus = int(rng.integers(smallest, 11))
    drawn = [int(v) for v in rng.integers(0, 10, terms)]
    shown = "".join(f"{p}{v}" for p, v in zip(_PLACES, drawn, strict=False))
    tail = "" if modulus == 10 else f"%{modulus}"
    return exact(f"{sorted(drawn)}%{modulus}", f"M{shown}{tail}", str(sum(drawn) % modulus), "number", terms=drawn, modulus=modulus)


def worked(task: Task) -> bytes:
    modulus, total, out = task.params["modulus"], 0, ""
    for place, value in zip(_PLACES, task.params["terms"], strict=False):
        total = (total + value) % modulus
        out += f"{place}{total}"
    return f"{out}={total}".encode()


def wrong(task: Task, rng: np.random.Generator) -> bytes:
    return str((int(task.trusted["answer"]) + int(rng.integers(1, task.params["modulus"]))) % task.params["modulus"]).encode()


FAMILIES = (Family("modular_sum", Pool.MATH, "add digits modulo 10 (or %m): Ma7b5c9", make, wrong, worked),)
