"""Chains of integer steps: `F+3+5-2` asks for the function that adds 3, adds 5, takes 2: `x+6`.

The short body folds the constants, which takes arithmetic; the longer one, `x+3+5-2`, only copies the steps.
"""

import numpy as np

from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._program import cases_rng, integers, program, signed, with_offset
from dormouse_core.tasks.task import Pool, Task

_KNOB = ("+", "++", "+++", "++++", "*+++", "*+*++")
"""Kinds of the steps by difficulty: + adds or takes 1-9 (a single one 1-99), * multiplies by 2-4."""


def make(difficulty: int, rng: np.random.Generator) -> Draft:
    steps = [_step(kind, 9 if difficulty else 99, rng) for kind in _KNOB[difficulty]]
    factor, offset = 1, 0
    for step in steps:
        if step[0] == "*":
            factor, offset = factor * int(step[1:]), offset * int(step[1:])
        else:
            offset += int(step)
    canonical = "".join(steps if factor > 1 else sorted(steps))
    body = with_offset("x" if factor == 1 else f"x*{factor}", offset)
    inputs = integers(cases_rng("affine_function", canonical))
    return program("affine_function", canonical, f"F{''.join(steps)}", "x", body, inputs, steps=steps, factor=factor, offset=offset)


def _step(kind: str, largest: int, rng: np.random.Generator) -> str:
    if kind == "*":
        return f"*{rng.integers(2, 5)}"
    return signed(int(rng.integers(1, largest + 1)) * (1 if rng.random() < 0.6 else -1))


def worked(task: Task) -> bytes:
    body = "x"
    for i, step in enumerate(task.params["steps"]):
        body = f"({body}){step}" if step[0] == "*" and i else f"{body}{step}"
    return body.encode()


def wrong(task: Task, rng: np.random.Generator) -> bytes:
    head = "x" if task.params["factor"] == 1 else f"x*{task.params['factor']}"
    return with_offset(head, task.params["offset"] + int(rng.choice([-10, -2, -1, 1, 2, 10]))).encode()


FAMILIES = (Family("affine_function", Pool.CODE, "apply the steps to x: F+3+5-2", make, wrong, worked),)
