"""The small file system with tools: actions are commands (`tasks/files.py`), the observation is the new listing.

`?` answers an action that is no command, `!` one that was refused; `l` answers with the content it looked at. None of these
changes the state.
"""

import json
from typing import Any, Self

from dormouse_core.envs.answer import read_snapshot, readable
from dormouse_core.envs.environment import Environment, StepResult, StopReason
from dormouse_core.tasks.files import Files, parse, predicates
from dormouse_core.tasks.task import Task

MALFORMED, REFUSED = b"?", b"!"
_LONGEST = 16
"""Bytes of an action that are read; no command is longer."""
TOOLS = {"w": "write", "m": "move", "c": "copy", "r": "remove", "k": "folder", "l": "look"}


class FileSystem(Environment):
    """State: the files and folders, the steps taken, the goal's predicates earned so far, and whether it has stopped."""

    def __init__(self, task: Task, files: Files, steps: int = 0, earned: frozenset[int] = frozenset(), last: bytes = b"",
                 stop: StopReason | None = None) -> None:
        self.task, self.files, self.steps, self.earned, self.last, self.stop = task, files, steps, earned, last, stop
        self.goal = task.start["goal"]
        self.marks = predicates(Files.read(task.start["listing"]), Files.read(self.goal))

    @classmethod
    def start(cls, task: Task, seed: int) -> Self:
        return cls(task, Files.read(task.start["listing"]))

    def observe(self) -> bytes:
        return self.last

    def facts(self) -> dict[str, Any]:
        """Each path with its content, each folder with "", and the whole `listing`."""
        return {**self.files.contents, **dict.fromkeys(sorted(self.files.folders), ""), "listing": self.files.listing()}

    def step(self, action: bytes) -> StepResult:
        if self.stop is not None:
            return StepResult(self.last, self.stop)
        text = readable(action) if len(action) <= _LONGEST else ""
        parts = parse(text)
        said, before = None, len(self.earned)
        if parts is not None:
            self.files, said = self.files.apply(text)
            facts = self.facts()
            self.earned |= {i for i, (key, value) in enumerate(self.marks) if facts.get(key) == value}
        self.steps += 1
        if self.files.listing() == self.goal:
            self.stop = StopReason.SOLVED
        elif self.steps >= self.task.max_steps:
            self.stop = StopReason.MAX_STEPS
        self.last = said.encode() if said is not None else REFUSED if parts else MALFORMED
        return StepResult(self.last, self.stop, tool=TOOLS[parts[0]] if parts else "", tool_ok=said is not None,
                          parsed=text if parts else "", reward=(len(self.earned) - before) / max(len(self.marks), 1))

    def snapshot(self) -> bytes:
        return json.dumps({"task": self.task.id, "files": self.files.listing(), "steps": self.steps, "earned": sorted(self.earned),
                           "last": self.last.decode(), "stop": self.stop}, sort_keys=True).encode()

    @classmethod
    def restore(cls, task: Task, blob: bytes) -> Self:
        state = read_snapshot(task, blob, {"task", "files", "steps", "earned", "last", "stop"})
        stop = StopReason(state["stop"]) if state["stop"] else None
        return cls(task, Files.read(state["files"]), state["steps"], frozenset(state["earned"]), state["last"].encode(), stop)
