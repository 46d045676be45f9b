"""The repair environment: read, edit, run the visible tests, submit (tasks/repair.py lists the commands).

Visible tests run in the jail, beside the program as it stands; what they say is shown to the policy and decides nothing. The hidden
tests decide, on the program that was submitted. `?` answers an action that is no command, `!` one that was refused.
State: the program's text, the steps, the last observation, whether it stopped. A test's outcome is a function of the program, and equal
programs are run once a process, so a replay shows what was shown.
"""

import atexit
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Self

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.answer import read_snapshot
from dormouse_core.envs.environment import Environment, StepResult, StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox import wire
from dormouse_core.sandbox.runner import End, Job, Outcome, Runners
from dormouse_core.tasks import repair
from dormouse_core.tasks.task import Task

MALFORMED, REFUSED = b"?", b"!"
LONGEST = 4096
"""Bytes of an observation; a longer one is cut."""
_REMEMBERED = 2048


class Repair(Environment):
    """One faulty program on its way to being submitted."""

    def __init__(self, task: Task, source: str, steps: int = 0, last: bytes = b"", stop: StopReason | None = None) -> None:
        self.task, self.source, self.steps, self.last, self.stop = task, source, steps, last, stop

    @classmethod
    def start(cls, task: Task, seed: int) -> Self:
        return cls(task, task.start["source"])

    def observe(self) -> bytes:
        return self.last

    def facts(self) -> dict[str, Any]:
        return {"source": self.source, "submitted": self.stop is StopReason.SUBMITTED}

    def step(self, action: bytes) -> StepResult:
        if self.stop is not None:
            return StepResult(self.last, self.stop)
        command = repair.parse(action)
        after = repair.apply(self.source, command) if command else None
        self.steps += 1
        if command is None or after is None:
            self.last = MALFORMED if command is None else REFUSED
        else:
            self.source = after
            self.last = self._shown(command)[:LONGEST].decode("utf-8", "ignore").encode()
            self.stop = StopReason.SUBMITTED if command.letter == "s" else None
        if self.stop is None and self.steps >= self.task.max_steps:
            self.stop = StopReason.MAX_STEPS
        parsed = "" if command is None else action.decode().strip()
        return StepResult(self.last, self.stop, tool=repair.COMMANDS[command.letter] if command else "", tool_ok=after is not None,
                          parsed=parsed)

    def _shown(self, command: repair.Command) -> bytes:
        match command.letter:
            case "r":
                return repair.numbered(self.source, command.first, command.last).encode()
            case "t":
                return run_visible(self.source, self.task.start["visible"])
            case "s":
                return b"submitted"
        return f"{len(repair.lines_of(self.source))} lines".encode()

    @classmethod
    def leaves(cls, task: Task, actions: Sequence[bytes]) -> bytes | None:
        """The submitted program, None where nothing was submitted within the step limit. Runs no test."""
        source = task.start["source"]
        for action in actions[: task.max_steps]:
            command = repair.parse(action)
            if command is not None and command.letter == "s":
                return source.encode()
            after = repair.apply(source, command) if command else None
            source = source if after is None else after
        return None

    def snapshot(self) -> bytes:
        return json.dumps({"task": self.task.id, "source": self.source, "steps": self.steps, "last": self.last.decode(),
                           "stop": self.stop}, sort_keys=True).encode()

    @classmethod
    def restore(cls, task: Task, blob: bytes) -> Self:
        state = read_snapshot(task, blob, {"task", "source", "steps", "last", "stop"})
        stop = StopReason(state["stop"]) if state["stop"] else None
        return cls(task, state["source"], state["steps"], state["last"].encode(), stop)


def run_visible(source: str, tests: Sequence[str]) -> bytes:
    """What the visible tests say of a program: `passed/all`, then one line for each that does not pass."""
    if not tests:
        return b"no visible tests"
    outcome = _JAIL.run(_program(source, tests), len(tests))
    if outcome.load_error:
        return f"0/{len(tests)}\nthe program does not load: {outcome.load_error.partition(':')[2]}".encode()
    said = [_said(kind, payload) for kind, payload in ((c.kind, c.payload) for c in outcome.claims)]
    if len(said) < len(tests):
        said += [{End.CPU: "took too long", End.WALL: "took too long"}.get(outcome.end, f"ended the program ({outcome.end})")]
        said += ["did not run"] * (len(tests) - len(said))
    lines = [f"{text}: {why}" for text, why in zip(tests, said, strict=True) if why]
    return "\n".join([f"{len(tests) - len(lines)}/{len(tests)}", *lines]).encode()


def _said(kind: bytes, payload: bytes) -> str:
    """"" where the test passed."""
    if kind == b"V" and payload == wire.encode(True):
        return ""
    return "wrong" if kind == b"V" else f"raises {payload.decode('utf-8', 'replace')}"


def _program(source: str, tests: Sequence[str]) -> bytes:
    body = "".join(f"    if number == {i}:\n        return bool({text})\n" for i, text in enumerate(tests))
    return f"{source}\n\ndef __visible__(number):\n{body}".encode()


class _Jail:
    """One runner a process, started when the first test runs; equal programs run once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runners: Runners | None = None
        self._known: OrderedDict[bytes, Outcome] = OrderedDict()

    def run(self, program: bytes, tests: int) -> Outcome:
        """Raises DormouseError where the machine gives no outcome: the episode then ends as nobody's fault."""
        with self._lock:
            if program not in self._known:
                if self._runners is None:
                    self._runners = Runners(VerifyConfig(workers=1), Ledger())
                    atexit.register(self.close)  # now, so that it comes before what the runners themselves clean up at exit
                job = Job(program, "__visible__", tuple(wire.encode((i,)) for i in range(tests)))
                outcome = self._runners.run([job])[0][0]
                if outcome.end is End.INFRA:
                    raise DormouseError(f"the visible tests could not be run: {outcome.detail}. See docs/verifier.md, what to look at.")
                self._known[program] = outcome
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
            return self._known[program]

    def close(self) -> None:
        """End the runner; the next test starts one again."""
        with self._lock:
            if self._runners is not None:
                atexit.unregister(self.close)
                self._runners.close()
                self._runners = None


_JAIL = _Jail()
