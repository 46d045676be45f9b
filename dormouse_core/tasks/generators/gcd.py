"""Greatest common divisors above 1: `D12,18` -> 6. Working: Euclid's remainders, `18,12=12,6=6`."""

from math import gcd

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._exact import exact, wrong_number
from dormouse_core.tasks.task import Pool, Task

_KNOB = ((9, 3), (9, 5), (9, 9), (15, 12), (25, 20), (50, 40))
"""(largest divisor, largest cofactor) by difficulty."""


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    divisors, cofactors = _KNOB[difficulty]
    m, n = 0, 0
    while gcd(m, n) != 1 or m == n:
        m, n = (int(v) for v in rng.integers(1, cofactors + 1, 2))
    d = int(rng.integers(2, divisors + 1))
    a, b = d * m, d * n
    return exact(f"{min(a, b)},{max(a, b)}", f"D{a},{b}", str(d), "number", byte_budget=64, numbers=[a, b])


def worked(task: Task) -> bytes:
    a, b = sorted(task.params["numbers"], reverse=True)
    out = ""
    while b:
        out += f"{a},{b}="
        a, b = b, a % b
    return f"{out}{a}".encode()


FAMILIES = (Family("gcd", Pool.MATH, "greatest common divisor: D12,18", make, wrong_number, worked),)
