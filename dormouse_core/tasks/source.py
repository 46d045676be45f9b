"""TaskSource: where the rounds of a cycle get their tasks from, and where their outcomes go."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dormouse_core.tasks.task import Task


class TaskSource(Protocol):
    """Draws are functions of (seed, cycle, round) and of the outcomes observed before them."""

    def draw(self, round: int, n: int) -> list[Task]: ...

    def observe(self, outcomes: Sequence[tuple[str, int, int]]) -> None:
        """Outcomes of one round: (cell, passed, tried), one entry a task."""
        ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: Mapping[str, Any]) -> None: ...
