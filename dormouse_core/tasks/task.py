"""Task: one problem a program can check, with everything its verifier needs kept apart from what the policy sees."""

import hashlib
import json
from enum import StrEnum
from functools import cached_property
from typing import Any

from pydantic import Field

from dormouse_core.config.base import Record


class Pool(StrEnum):
    AGENT = "agent"
    MATH = "math"
    CODE = "code"


class Split(StrEnum):
    """Which keyed seed stream a task comes from. Only TRAIN is ever trained on."""

    TRAIN = "train"
    FRESH = "fresh"  # same families and difficulty, seeds derived from the candidate's identity
    FROZEN = "frozen"  # fixed once, for trend lines
    BEYOND = "beyond"  # knobs past the training range
    UNSEEN = "unseen"  # families never trained
    PUBLIC = "public"  # loaded from a tasks directory


class Use(StrEnum):
    TRAIN = "train"
    EVALUATION = "evaluation"


class VerifierKind(StrEnum):
    EXACT = "exact"
    EXEC = "exec"
    ENV_STEP = "env_step"
    REPO = "repo"


class Task(Record):
    """One problem. `id` is the sha256 of the canonical content, so two equal problems are one task."""

    pool: Pool
    family: str
    """Generator or data set the task comes from, e.g. `register_machine`, `sum`, `mbpp`."""
    difficulty: int = 0
    """The family's knob; (family, difficulty) is the cell a curriculum reasons about."""
    params: dict[str, Any] = Field(default_factory=dict)
    """What the generator drew: enough to canonicalise, never the answer."""
    prompt: bytes
    """All the policy is shown before its first action."""
    environment: str
    """Registered environment name; `answer` for single-turn tasks."""
    start: dict[str, Any] = Field(default_factory=dict)
    """The environment's start state and rules (JSON values). Not secret from the environment, unseen by the policy."""
    verifier: VerifierKind
    trusted: dict[str, Any] = Field(default_factory=dict)
    """The verifier's data (answer, hidden cases, target state). Never in the prompt, never inside the jail."""
    reference: tuple[bytes, ...] = ()
    """Actions of a known solution, one a step; empty where none is known."""
    reference_steps: int | None = None
    """Fewest steps known to solve it (S_sol)."""
    byte_budget: int = 64
    """New bytes the policy may write over the whole episode, END bytes included."""
    max_steps: int = 1
    guess_bound: float = 0.0
    """Success rate of the best constant answer over the family."""
    split: Split
    use: Use
    licence: str = "MIT"
    source: str = "generated"

    @cached_property
    def id(self) -> str:
        content = self.model_dump(mode="json", include={
            "pool", "family", "params", "prompt", "environment", "start", "verifier", "trusted", "byte_budget", "max_steps"})
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def cell(self) -> str:
        """`family/d3`: what the curriculum keeps pass rates of."""
        return f"{self.family}/d{self.difficulty}"
