"""Closed forms that stay undecided, put to math-verify in a process that can be killed (the extra `math`; `verify.math_verify`).

What is asked is this verifier's own tree written back as LaTeX (forms.render), never a text the policy wrote, so no parser but ours reads
it. The two forms already agree to forty digits; math-verify has to find them equal too. It may pass an answer and never fail one.
The process is limited in memory and watched by its CPU clock from here: a question that uses more than `verify.cpu_seconds` stays
undecided, the process is killed and the next question starts another. Waiting holds no lock of the interpreter, so no other thread waits
with it. Not here: which answers are asked about (exact.py).
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from dormouse_core.ledger import DormouseError

_START_SECONDS = 120.0
_LOOK_SECONDS = 0.01
MEMORY_MIB = 1024


class Proof(StrEnum):
    EQUAL = "equal"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"


class Prover:
    """One process that knows math-verify, started at the first question. Safe to use from several threads: they take turns."""

    def __init__(self, cpu_seconds: float, wall_seconds: float) -> None:
        if find_spec("math_verify") is None:
            raise DormouseError("verify.math_verify is on and math-verify is not installed: pip install 'dormouse[math]', or switch it off "
                                "(--set verify.math_verify=false); closed forms this verifier cannot decide are then `undecided`")
        self.cpu_seconds, self.wall_seconds = cpu_seconds, wall_seconds
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def ask(self, claimed: str, wanted: str) -> Proof:
        """Whether two forms, as LaTeX, are proven equal within the limits. Raises DormouseError where the process does not start."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None  # both pipes were asked for
            line = json.dumps([claimed, wanted]).encode() + b"\n"
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(line)
                process.stdin.flush()
            answer = self._answer(process)
            if answer is None:
                self.restarts += 1
                self._kill()
                return Proof.TIMEOUT
            return Proof.EQUAL if answer == b"equal" else Proof.UNKNOWN

    def close(self) -> None:
        """End the process; a later question starts another."""
        with self._lock:
            self._kill()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            program = str(Path(__file__).with_name("prover_child.py"))
            self._process = subprocess.Popen([sys.executable, "-I", program, str(MEMORY_MIB)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,                                  stderr=subprocess.DEVNULL, env={"PATH": os.environ.get("PATH", "")})
            if self._line(self._process, time.monotonic() + _START_SECONDS, None) != b"ready":
                self._kill()
                raise DormouseError("the process that asks math-verify did not start: try `python -c 'import math_verify'`, or switch "
                                    "verify.math_verify off")
        return self._process

    def _answer(self, process: "subprocess.Popen[bytes]") -> bytes | None:
        return self._line(process, time.monotonic() + self.wall_seconds, _cpu(process.pid) + self.cpu_seconds)

    def _line(self, process: "subprocess.Popen[bytes]", deadline: float, cpu_limit: float | None) -> bytes | None:
        """The next line; None past a limit, or where the process ended."""
        assert process.stdout is not None  # the pipe was asked for
        said = b""
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], _LOOK_SECONDS)
            if ready:
                chunk = os.read(process.stdout.fileno(), 4096)
                if not chunk:
                    return None
                said += chunk
            elif time.monotonic() > deadline or (cpu_limit is not None and _cpu(process.pid) > cpu_limit):
                return None
        return said.strip()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _cpu(pid: int) -> float:
    """CPU seconds a living process has used (its kernel clock)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def settle(questions: Sequence[tuple[str, str]], prover: Prover) -> list[Proof]:
    """Answers in order; equal questions are asked once."""
    known: dict[tuple[str, str], Proof] = {}
    for question in questions:
        if question not in known:
            known[question] = prover.ask(*question)
    return [known[q] for q in questions]
