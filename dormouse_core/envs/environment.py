"""The Environment protocol: what acts back on the policy. Single use: made for one task and one seed, then thrown away.

Any bytes are a legal action: a malformed one is an observation and a counted tool failure, never an exception.
A snapshot is complete and canonical, so a fork at any step replays to the same digests and verdict.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from dormouse_core.tasks.task import Task


class StopReason(StrEnum):
    """Every way an episode can end."""

    SOLVED = "solved"  # the environment reached its goal
    SUBMITTED = "submitted"  # the policy declared an answer; the verifier decides
    BYTE_BUDGET = "byte_budget"  # the policy wrote all the bytes the task allows
    MAX_STEPS = "max_steps"  # the task's step limit
    INFRA = "infra"  # the environment or the machine failed: no verdict, not the policy's fault


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action did."""

    observation: bytes
    stop: StopReason | None = None
    tool: str = ""  # name of the tool called; "" where the action named none
    tool_ok: bool = True  # False: malformed, unknown or refused
    parsed: str = ""  # the canonical action (case, spaces, argument order normalised); "" where malformed
    reward: float = 0.0  # share of milestones this step reached for the first time, in [0, 1]


class Environment(ABC):
    """Subclasses are registered by name in `dormouse_core.envs.registry`."""

    @classmethod
    @abstractmethod
    def start(cls, task: Task, seed: int) -> Self:
        """A fresh environment at the task's start state."""

    @abstractmethod
    def observe(self) -> bytes:
        """What the policy would be shown now (equal to the last observation; empty at the start of most tasks)."""

    @abstractmethod
    def step(self, action: bytes) -> StepResult:
        """Apply one action of any bytes. Total. After a stop the state no longer changes."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state, canonical: equal states have equal snapshots."""

    @classmethod
    @abstractmethod
    def restore(cls, task: Task, blob: bytes) -> Self:
        """Inverse of `snapshot`. Raises ValueError on a blob of another task or format."""

    def facts(self) -> dict[str, Any]:
        """The state as flat facts, the terms in which a task's trusted target and milestones are stated: a fact equals a
        value, is one of a list, or is absent (None). Empty where a verifier needs no state."""
        return {}

    @classmethod
    def leaves(cls, task: Task, actions: Sequence[bytes]) -> bytes | None:
        """What a sequence of actions leaves to be judged, where that is not the last action itself: the program of a repair, say. None
        where it leaves nothing. A function of its arguments alone."""
        return actions[-1] if actions else None

    def digest(self) -> str:
        """sha256 of the canonical state."""
        return hashlib.sha256(self.snapshot()).hexdigest()
