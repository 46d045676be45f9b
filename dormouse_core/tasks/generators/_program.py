"""What the one-expression code families share: the draft of `def f(...): return <action>`, its hidden cases, wrong bodies.

Hidden cases are a function of the specification alone, so equal problems carry equal cases. Bodies here are our own
generators' output and are evaluated in process; a policy's never are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dormouse_core.seeding import generator
from dormouse_core.tasks.family import Draft
from dormouse_core.tasks.task import VerifierKind

CASES = 8
BUDGET = 40
"""New bytes of a function body, END included: room for a longer program than the shortest."""


def program(family: str, canonical: str, prompt: str, arguments: str, body: str, inputs: Sequence[tuple[Any, ...]],
            byte_budget: int = BUDGET, **params: Any) -> Draft:
    """A draft whose candidate is `def f(arguments): return <action>`, judged on hidden typed cases.

    inputs: argument tuples; cases are what `body` returns on them. Raises ValueError where fewer than 8 differ.
    """
    shown = list(dict.fromkeys(repr(i) for i in inputs))
    if len(shown) < CASES:
        raise ValueError(f"{family}: {len(shown)} distinct hidden cases, at least {CASES} are needed")
    function = compile_body(arguments, body)
    cases = [{"args": repr(i), "expected": repr(function(*i))} for i in inputs]
    return Draft(canonical=canonical, prompt=prompt.encode(), verifier=VerifierKind.EXEC, trusted={"entry_point": "f", "cases": cases},
                 reference=(body.encode(),), start={"program_prefix": f"def f({arguments}):\n return ", "program_suffix": "\n"},
                 params={**params, "arguments": arguments}, byte_budget=byte_budget)


def compile_body(arguments: str, body: str) -> Callable[..., Any]:
    """The function of one of our own bodies, with no names but its arguments."""
    return eval(f"lambda {arguments}: {body}", {"__builtins__": {}})


def cases_rng(family: str, canonical: str) -> np.random.Generator:
    return generator("hidden cases", family, canonical)


def integers(rng: np.random.Generator, arity: int = 1) -> list[tuple[int, ...]]:
    """Eight argument tuples: small, zero, negative and large integers, no two alike."""
    anchors = [(0,) * arity, (1,) * arity, tuple(range(-7, -7 + arity))]
    found = dict.fromkeys(anchors)
    while len(found) < CASES:
        high = 20 if len(found) < 6 else 1000
        found[tuple(int(v) for v in rng.integers(-high, high, arity))] = None
    return list(found)


def signed(value: int) -> str:
    """`+3` or `-2`."""
    return f"{value:+d}"


def with_offset(head: str, offset: int) -> str:
    """`x` and 3 -> `x+3`; nothing is added for 0."""
    return head if offset == 0 else f"{head}{signed(offset)}"
