"""The single-turn environment: one action, which is the answer; the verifier decides."""

import json
from typing import Self

from dormouse_core.envs.environment import Environment, StepResult, StopReason
from dormouse_core.tasks.task import Task


class Answer(Environment):
    """State: the submitted bytes, or none yet."""

    def __init__(self, task: Task, submitted: bytes | None = None) -> None:
        self.task = task
        self.submitted = submitted

    @classmethod
    def start(cls, task: Task, seed: int) -> Self:
        return cls(task)

    def observe(self) -> bytes:
        return b""

    def step(self, action: bytes) -> StepResult:
        """Submits the first action, whatever its bytes. Only text that says something counts as well formed."""
        if self.submitted is None:
            self.submitted = action
        parsed = readable(action)
        return StepResult(observation=self.observe(), stop=StopReason.SUBMITTED, tool_ok=bool(parsed), parsed=parsed)

    def snapshot(self) -> bytes:
        text = None if self.submitted is None else self.submitted.hex()
        return json.dumps({"submitted": text, "task": self.task.id}, sort_keys=True).encode()

    @classmethod
    def restore(cls, task: Task, blob: bytes) -> Self:
        state = read_snapshot(task, blob, {"submitted", "task"})
        text = state["submitted"]
        return cls(task, None if text is None else bytes.fromhex(text))


def readable(action: bytes) -> str:
    """The action as text without outer blanks; "" where it is empty, no UTF-8, or holds a NUL."""
    try:
        text = action.decode().strip()
    except UnicodeDecodeError:
        return ""
    return "" if "\0" in text else text


def read_snapshot(task: Task, blob: bytes, keys: set[str]) -> dict:
    """A snapshot's JSON object. Raises ValueError where it is none, lacks a key, or belongs to another task."""
    try:
        state = json.loads(blob)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not a snapshot: {error}") from error
    if not isinstance(state, dict) or set(state) != keys:
        raise ValueError(f"a snapshot holds exactly {sorted(keys)}")
    if state["task"] != task.id:
        raise ValueError(f"a snapshot of task {state['task']} cannot be restored for task {task.id}")
    return state
