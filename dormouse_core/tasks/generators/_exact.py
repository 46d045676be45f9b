"""What the single-answer families share: the draft of an exactly graded task, and near-miss wrong answers."""

from typing import Any

import numpy as np

from dormouse_core.tasks.family import Draft
from dormouse_core.tasks.task import Task, VerifierKind

BUDGET = 48
"""New bytes of a single-turn task: room for a longer working, END included."""


def exact(canonical: str, prompt: str, answer: str, form: str, environment: str = "answer", byte_budget: int = BUDGET,
          start: dict[str, Any] | None = None, **params: Any) -> Draft:
    """A draft whose answer is compared exactly (numbers by value, strings byte for byte)."""
    return Draft(canonical=canonical, prompt=prompt.encode(), verifier=VerifierKind.EXACT, trusted={"answer": answer, "form": form},
                 reference=(answer.encode(),), environment=environment, params=params, start=start or {}, byte_budget=byte_budget)


def wrong_number(task: Task, rng: np.random.Generator) -> bytes:
    """A number near the right one, never equal to it."""
    right = int(task.trusted["answer"])
    step = int(rng.choice([1, 2, 3, 10]))
    return str(right - step if right >= step and rng.random() < 0.5 else right + step).encode()


def wrong_string(task: Task, rng: np.random.Generator) -> bytes:
    """The right string with one character replaced or dropped, or a neighbour pair swapped; never equal to it."""
    right = str(task.trusted["answer"])
    at = int(rng.integers(len(right)))
    swapped = right[: at - 1] + right[at] + right[at - 1] + right[at + 1 :] if at else right
    for candidate in (swapped, right[:at] + right[at + 1 :]):
        if candidate not in (right, "") and rng.random() < 0.6:
            return candidate.encode()
    other = chr((ord(right[at]) - 97 + 1) % 26 + 97) if right[at].isalpha() else str((ord(right[at]) - 47) % 10)
    return (right[:at] + other + right[at + 1 :]).encode()
