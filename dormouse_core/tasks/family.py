"""Family: one kind of generated problem with a difficulty knob, and everything demonstrations need to know about it.

A generator is a function of (difficulty, its own numpy generator); it says what the problem IS (`canonical`), and the
family turns that into a `Task` of a split by redrawing until the content belongs to the split.
Not here: which families exist (registry), how an answer is judged (verifiers).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dormouse_core.ledger import DormouseError
from dormouse_core.seeding import generator
from dormouse_core.tasks.guess import guess_bound
from dormouse_core.tasks.splits import admits
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind

MAX_DIFFICULTY = 5
_ATTEMPTS = 20_000


@dataclass(frozen=True, slots=True)
class Draft:
    """What a generator draws. Fields as in `Task`."""

    canonical: str  # the problem itself: equal for problems that are one problem, whatever their seeds and hidden cases
    prompt: bytes
    verifier: VerifierKind
    trusted: dict[str, Any]
    reference: tuple[bytes, ...]
    environment: str = "answer"
    params: dict[str, Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    reference_steps: int | None = 1
    byte_budget: int = 48
    max_steps: int = 1


def _no_working(task: Task) -> bytes | None:
    return None


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of problem. The difficulty knob runs from 0 (easy) to 5 (hard) and never shrinks a problem."""

    name: str
    pool: Pool
    about: str
    """One line for a person: what is asked, in the prompt's own notation."""
    make: Callable[[int, np.random.Generator], Draft]
    wrong: Callable[[Task, np.random.Generator], bytes]
    """A plausible wrong single action (an answer, or a first action that leads nowhere); never correct."""
    worked: Callable[[Task], bytes | None] = _no_working
    """The same answer with its working before it, or as a longer program; None where the family has no such form."""
    licence: str = "MIT"
    source: str = "generated"

    def generate(self, difficulty: int, seed: int, split: Split, use: Use) -> Task:
        """The task that `seed` draws. Deterministic; equal on every machine.

        Raises DormouseError for a difficulty outside the knob, a use that the split forbids, or a split whose share of
        this cell's problems is empty.
        """
        if not 0 <= difficulty <= MAX_DIFFICULTY:
            raise DormouseError(f"family {self.name} has difficulties 0 to {MAX_DIFFICULTY}, not {difficulty}; correct the suite's cell")
        if (use is Use.TRAIN) != (split is Split.TRAIN):
            raise DormouseError(f"family {self.name}: a task of split {split} cannot have use {use}; only the train split is trained on")
        for attempt in range(_ATTEMPTS):
            draft = self.make(difficulty, generator("task", self.name, difficulty, seed, attempt))
            if admits(split, self.name, draft.canonical):
                return self._task(draft, difficulty, split, use)
        raise DormouseError(f"family {self.name} at difficulty {difficulty} has no problem left for split {split} "
                            f"({_ATTEMPTS} draws); raise the difficulty or take the cell out of the suite")

    def _task(self, draft: Draft, difficulty: int, split: Split, use: Use) -> Task:
        return Task(
            pool=self.pool, family=self.name, difficulty=difficulty, params={**draft.params, "canonical": draft.canonical},
            prompt=draft.prompt, environment=draft.environment, start=draft.start, verifier=draft.verifier, trusted=draft.trusted,
            reference=draft.reference, reference_steps=draft.reference_steps, byte_budget=draft.byte_budget, max_steps=draft.max_steps,
            guess_bound=guess_bound(self.name, difficulty), split=split, use=use, licence=self.licence, source=self.source)
