"""TaskSource: where the rounds of a cycle get their tasks from, and where pass rates go back to.

The protocol stands here so that learning can use what evolution implements (the curriculum) without importing it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dormouse_core.seeding import generator
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split, Task

Outcome = tuple[str, int, int]
"""(cell, passed, tried): one group's verdicts that count."""


class TaskSource(Protocol):
    """Tasks for one round after another. A function of its state and the round alone, so a resumed stage draws what it would have."""

    def draw(self, round: int, n: int) -> list[Task]: ...

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Tell the source how cells went."""

    def state(self) -> dict[str, Any]:
        """Everything `draw` depends on, as JSON."""

    def load(self, state: Mapping[str, Any]) -> None: ...


class EvenSource:
    """Draws the given cells evenly, in a rotation: the source of a run without a curriculum."""

    def __init__(self, cells: Sequence[tuple[str, int]], root: str) -> None:
        """cells: (family, difficulty). root: seed root of the train split."""
        if not cells:
            raise ValueError("a task source needs at least one cell")
        self._cells, self._root = tuple(cells), root

    def draw(self, round: int, n: int) -> list[Task]:
        numbers = range(round * n, round * n + n)
        return [draw(*self._cells[i % len(self._cells)], Split.TRAIN, i, self._root) for i in numbers]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Draws do not depend on outcomes."""

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"an even source holds no state, but was given {sorted(state)}")


class ListedSource:
    """Draws from given tasks again and again: the source of rounds on public sets and one's own files, which nothing generates. A round
    holds no task twice, and all of them where there are fewer than it asks for."""

    def __init__(self, tasks: Sequence[Task], root: str) -> None:
        if not tasks:
            raise ValueError("a task source needs at least one task")
        self._tasks, self._root = tuple(tasks), root

    def draw(self, round: int, n: int) -> list[Task]:
        return [self._tasks[i] for i in generator("listed source", self._root, round).permutation(len(self._tasks))[:n]]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Draws do not depend on outcomes."""

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"a listed source holds no state, but was given {sorted(state)}")
