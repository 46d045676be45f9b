"""An item of a list after drops: `I>2>3#1` drops 2, drops 3, then takes item 1: `l[6]`.

The short body adds up; the longer one, `l[2:][3:][1]`, follows the steps.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._program import CASES, cases_rng, program
from dormouse_core.tasks.task import Pool, Task


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    drops = [int(v) for v in rng.integers(1, 10, difficulty + 1)]
    item = int(rng.integers(0, 10))
    shown = "".join(f">{n}" for n in drops) + f"#{item}"
    canonical = "".join(f">{n}" for n in sorted(drops)) + f"#{item}"
    index = sum(drops) + item
    cases = cases_rng("index_function", canonical)
    lists = [([int(v) for v in cases.permutation(99)[: index + 1 + k]],) for k in range(CASES)]
    return program("index_function", canonical, f"I{shown}", "l", f"l[{index}]", lists, drops=drops, item=item, index=index)


def worked(task: Task) -> bytes:
    return ("l" + "".join(f"[{n}:]" for n in task.params["drops"]) + f"[{task.params['item']}]").encode()


def wrong(task: Task, rng: np.random.Generator) -> bytes:
    return f"l[{max(task.params['index'] + int(rng.choice([-2, -1, 1, 2])), 0)}]".encode()


FAMILIES = (Family("index_function", Pool.CODE, "drop (>) from l, then take item #: I>2>3#1", make, wrong, worked),)
