"""Chains of cuts on a string: `T>2<3>1` drops 2 from the left, 3 from the right, 1 from the left: `s[3:-3]`.

The short body sums the cuts of each side; the longer one, `s[2:][:-3][1:]`, makes them one after the other.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._program import BUDGET, CASES, cases_rng, program
from dormouse_core.tasks.task import Pool, Task

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    cuts = [("<>"[int(rng.integers(2))], int(rng.integers(1, 10 if difficulty else 40))) for _ in range(difficulty + 1)]
    left, right = (sum(n for side, n in cuts if side == s) for s in "><")
    shown = "".join(f"{side}{n}" for side, n in cuts)
    canonical = "".join(sorted(f"{side}{n}" for side, n in cuts))
    body = f"s[{left or ''}:{-right or ''}]"
    return program("slice_function", canonical, f"T{shown}", "s", body, _strings(cases_rng("slice_function", canonical), left + right),
                   byte_budget=BUDGET + 8, left=left, right=right, cuts=[list(c) for c in cuts])


def _strings(rng: np.random.Generator, cut: int) -> list[tuple[str]]:
    """Distinct strings: one shorter than the cuts, the rest longer, so that both ends show."""
    found = dict.fromkeys([("".join(rng.choice(list(_LETTERS), max(cut - 1, 1))),)])
    while len(found) < CASES:
        found[("".join(rng.choice(list(_LETTERS), cut + int(rng.integers(1, 9)))),)] = None
    return list(found)


def worked(task: Task) -> bytes:
    return ("s" + "".join(f"[{n}:]" if side == ">" else f"[:-{n}]" for side, n in task.params["cuts"])).encode()


def wrong(task: Task, rng: np.random.Generator) -> bytes:
    left, right = task.params["left"], task.params["right"]
    if rng.random() < 0.5:
        left += int(rng.integers(1, 3))
    else:
        right += int(rng.integers(1, 3))
    return f"s[{left or ''}:{-right or ''}]".encode()


FAMILIES = (Family("slice_function", Pool.CODE, "cut s left (>) and right (<): T>2<3>1", make, wrong, worked),)
