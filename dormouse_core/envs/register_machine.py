"""The register machine: actions a, b, c, d change one number; the observation is the new number.

`?` answers an action that is no operation, `!` one that would leave 0..99. Both leave the number as it was.
"""

import json
from typing import Any, Self

from dormouse_core.envs.answer import read_snapshot, readable
from dormouse_core.envs.environment import Environment, StepResult, StopReason
from dormouse_core.tasks.register import LETTERS, MACHINES, apply, milestones, show
from dormouse_core.tasks.task import Task

MALFORMED, REFUSED = b"?", b"!"


class RegisterMachine(Environment):
    """State: the number, the steps taken, the marks earned, and whether it has stopped."""

    def __init__(self, task: Task, value: int, steps: int = 0, earned: int = 0, last: bytes = b"", stop: StopReason | None = None) -> None:
        self.task, self.value, self.steps, self.earned, self.last, self.stop = task, value, steps, earned, last, stop
        self.operations = MACHINES[task.start["machine"]]
        self.goal = task.start["goal"]
        self.marks = [frozenset(m["value"]) for m in milestones(task.start["machine"], task.start["value"], self.goal)]

    @classmethod
    def start(cls, task: Task, seed: int) -> Self:
        return cls(task, task.start["value"])

    def observe(self) -> bytes:
        return self.last

    def facts(self) -> dict[str, Any]:
        return {"value": self.value}

    def step(self, action: bytes) -> StepResult:
        if self.stop is not None:
            return StepResult(self.last, self.stop)
        text = readable(action[:8]).lower()
        letter = text if len(text) == 1 and text in LETTERS and len(action) <= 8 else ""
        after = apply(self.operations[LETTERS.index(letter)], self.value) if letter else None
        before = self.earned
        if after is not None:
            self.value = after
            while self.earned < len(self.marks) and after in self.marks[self.earned]:
                self.earned += 1
        if after == self.goal:
            self.stop, self.earned = StopReason.SOLVED, len(self.marks) + 1
        self.steps += 1
        if self.stop is None and self.steps >= self.task.max_steps:
            self.stop = StopReason.MAX_STEPS
        self.last = show(self.value).encode() if after is not None else REFUSED if letter else MALFORMED
        return StepResult(self.last, self.stop, tool=letter, tool_ok=after is not None, parsed=letter,
                          reward=(self.earned - before) / (len(self.marks) + 1))

    def snapshot(self) -> bytes:
        return json.dumps({"task": self.task.id, "value": self.value, "steps": self.steps, "earned": self.earned,
                           "last": self.last.decode(), "stop": self.stop}, sort_keys=True).encode()

    @classmethod
    def restore(cls, task: Task, blob: bytes) -> Self:
        state = read_snapshot(task, blob, {"task", "value", "steps", "earned", "last", "stop"})
        stop = StopReason(state["stop"]) if state["stop"] else None
        return cls(task, state["value"], state["steps"], state["earned"], state["last"].encode(), stop)
