"""Runners: zygotes that judge nothing. They turn (program, inputs) into claims, one forked and sealed child a candidate.

The parent (here, trusted) holds the expected values and never sends them. A candidate's program and inputs travel in a
sealed memfd that its own child reads; its claims come back on a pipe of its own. Several candidates are in flight on each
runner; one thread serves them all. A runner that dies takes down only what it was running: those outcomes are INFRA,
a new runner is started, the rest goes on.
Not here: the layers (zygote.py and child.py put them up, limits.py says what a missing one means), verdicts (verifiers/exec.py
compares and decides).
"""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox import limits, probes, wire  # noqa: F401 - probes: its bytecode is written here, zygotes write none
from dormouse_core.sandbox.child import HEAD
from dormouse_core.sandbox.limits import JailMode
from dormouse_core.sandbox.seccomp import Profile, stages
from dormouse_core.sandbox.syscalls import ARCHES
from dormouse_core.sandbox.zygote import DONE, KILL, ORDER, RUN

IN_FLIGHT = 2
"""Candidates running at once on one runner."""
JOBS_A_RUNNER = 12
"""A batch smaller than this many jobs a runner starts fewer runners."""
MAX_RESTARTS = 3
_START_SECONDS = 20.0
_LOOK_SECONDS = 0.01
"""Between two looks at the pipes of children that run: a pipe holds 64 KiB, so a flood is slowed to 6 MiB a second at least."""
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class End(StrEnum):
    """How a candidate's process ended."""

    CLEAN = "clean"  # every frame in order, END last, exit 0
    EARLY_EXIT = "early_exit"  # it left before END, or with an exit code
    CPU = "cpu"  # CPU limit
    WALL = "wall"  # wall backstop
    OUTPUT = "output"  # claimed more bytes than allowed
    CRASH = "crash"  # a signal nobody here sent
    BREACH = "breach"  # frames no honest child writes
    FORBIDDEN = "forbidden"  # ended by the filter: a system call no judged program has a use for
    MEMORY = "memory"  # all processes of a command together, past their limit (run_multi)
    INFRA = "infra"  # the runner or the machine failed: no verdict


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate: program source, the name to call, one encoded argument tuple a case."""

    program: bytes
    entry_point: str
    inputs: tuple[bytes, ...]
    output_limit: int = limits.MAX_OUTPUT
    cpu_seconds: float = 0.0
    """CPU limit of this candidate; 0 takes the configured one."""

    def payload(self) -> bytes:
        return wire.encode((self.entry_point, self.program, self.inputs))


@dataclass(frozen=True, slots=True)
class Claim:
    """What the child said of one case: kind `V` payload = encoded value, `X` exception name, `U` why it has no wire form."""

    kind: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    end: End
    detail: str = ""
    load_error: str = ""
    """`phase:ExceptionName` when the program gave no function to call."""
    claims: tuple[Claim, ...] = ()
    cpu_ms: float = 0.0
    wall_ms: float = 0.0


PHASES = ("compile", "load", "missing")
"""Where a program can end before it gives a function; the decider of such a verdict is called after it."""


def read_frames(data: bytes, cases: int) -> tuple[bool, str, str, tuple[Claim, ...], bool]:
    """A child's bytes -> (sealed, breach, load_error, claims, ended). Total: hostile bytes give a breach, never a raise."""
    sealed = ended = False
    load_error, i = "", 0
    claims: list[Claim] = []
    while i + HEAD.size <= len(data):
        kind, index, size = HEAD.unpack_from(data, i)
        payload = data[i + HEAD.size : i + HEAD.size + size]
        if kind not in b"GVXULE" or (kind in b"GE" and size):
            return sealed, "unknown frame", load_error, tuple(claims), False
        if len(payload) < size:
            break  # the process ended inside a frame
        if ended or (kind == b"G") == sealed:
            return sealed, "frame after the end" if ended else "frame out of order", load_error, tuple(claims), False
        if kind == b"G":
            sealed = True
        elif kind == b"E":
            if not load_error and len(claims) != cases:
                return sealed, "end before the last case", load_error, tuple(claims), False
            ended = True
        elif kind == b"L":
            if claims or load_error:
                return sealed, "frame out of order", load_error, tuple(claims), False
            load_error = payload[:100].decode("utf-8", "replace")
            if load_error.partition(":")[0] not in PHASES:
                return sealed, "unknown frame", "", tuple(claims), False
        elif load_error or index != len(claims) or index >= cases:
            return sealed, "case out of order", load_error, tuple(claims), False
        else:
            claims.append(Claim(kind, payload))
        i += HEAD.size + size
    if ended and i != len(data):
        return sealed, "bytes after the end", load_error, tuple(claims), False
    return sealed, "", load_error, tuple(claims), ended


def settle(data: bytes, cases: int, status: int, cpu: float, cpu_limit: float, why: int) -> tuple[End, str, str, tuple[Claim, ...]]:
    """How it ended, in a few words, and what was claimed. What killed it is the runner's word, not inferred from times,
    except for the kernel's CPU limit, which kills without saying so."""
    sealed, breach, load_error, claims, ended = read_frames(data, cases)
    code = os.waitstatus_to_exitcode(status)
    if not sealed and not why:
        return End.INFRA, f"the child was not sealed (exit {code})", "", ()
    if why:
        end = {1: End.CPU, 2: End.WALL, 3: End.OUTPUT}[why]
        return end, "", load_error, claims
    if code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu >= 0.9 * cpu_limit:
        return End.CPU, "", load_error, claims
    if breach:
        return End.BREACH, breach, load_error, claims
    if code == -signal.SIGSYS:
        return End.FORBIDDEN, "SIGSYS", load_error, claims
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.Signals._value2member_map_ else f"signal {-code}"
        return End.CRASH, name, load_error, claims
    if code or not ended:
        return End.EARLY_EXIT, f"exit code {code}", load_error, claims
    return End.CLEAN, "", load_error, claims


@dataclass(slots=True)
class _Running:
    number: int
    job: Job
    canary: int  # index among the canaries, -1 for a job
    pipe: int
    data: bytearray = field(default_factory=bytearray)
    killed: bool = False


@dataclass(slots=True)
class _Runner:
    process: subprocess.Popen[bytes]
    control: socket.socket
    layers: tuple[str, ...]
    waiting: deque[tuple[int, Job]]
    running: dict[int, _Running] = field(default_factory=dict)
    canaries: dict[int, Outcome] = field(default_factory=dict)


class Runners:
    """A few runner processes, kept as long as the context is open. Not shared between threads."""

    def __init__(self, config: VerifyConfig, ledger: Ledger, without: frozenset[str] = frozenset()) -> None:
        """without: layers to leave out (of `limits.SWITCHES`), for tests of the others; said aloud, and verdicts say `weakened`.
        Raises DormouseError where the machine has no jail to offer."""
        machine = os.uname().machine
        if not sys.platform.startswith("linux"):
            raise DormouseError(f"the exec verifier needs Linux (memfd, process limits), and this is {sys.platform}: use tasks of other "
                                "verifiers here")
        if machine not in ARCHES:
            raise DormouseError(f"the exec verifier knows the system calls of {' and '.join(ARCHES)}, and this is {machine}: a filter with "
                                "the wrong numbers forbids the wrong calls, so nothing is executed here. Use tasks of other verifiers.")
        self.config, self.ledger, self.without = config, ledger, without
        self.mode = JailMode(config.jail)
        self._folder = tempfile.TemporaryDirectory(prefix="dormouse-room-")
        room = Path(self._folder.name)
        room.chmod(0o755)
        (room / "empty").mkdir(mode=0o555)
        (room / "canary").write_bytes(b"not for candidates")
        self._runners: list[_Runner] = []
        self._selector = selectors.DefaultSelector()
        self._next = 0
        self._no_namespaces = "switched off" if "namespaces" in without else ""
        """Why this machine gives no namespaces; '' while they work."""
        self.layers: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End every runner, and with it every child, and reap them."""
        for runner in self._runners:
            self._drop(runner)
        self._runners.clear()
        self._selector.close()
        self._folder.cleanup()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(r.process.pid for r in self._runners)

    def run(self, jobs: Sequence[Job], canaries: Sequence[Job] = ()) -> tuple[list[Outcome], list[dict[int, Outcome]]]:
        """Outcomes of `jobs`, in order, and what each runner that took part (restarted ones too) made of the canaries,
        by their index."""
        outcomes: list[Outcome | None] = [None] * len(jobs)
        queue = deque(range(len(jobs)))
        heard: list[dict[int, Outcome]] = []
        restarts, looked = 0, time.monotonic()
        wanted = min(self.config.workers, -(-len(jobs) // JOBS_A_RUNNER)) or 1
        started = [self._launch() for _ in range(wanted - len(self._runners))]
        self._runners += [self._greet(*each) for each in started]
        for runner in self._runners:
            runner.waiting, runner.canaries = deque(enumerate(canaries)), {}
            heard.append(runner.canaries)
        slots: dict[int, int] = {}  # job number -> index in `jobs`
        while queue or any(r.waiting or r.running for r in self._runners):
            for runner in list(self._runners):
                if not self._feed(runner, jobs, queue, slots):
                    self._lost(runner, outcomes, slots)
            if len(self._runners) < wanted and (queue or not self._runners):
                restarts += 1
                if restarts > MAX_RESTARTS:
                    if not self._runners:
                        break
                    wanted = len(self._runners)
                    continue
                self.ledger.count("exec.runner_restarts")
                try:
                    fresh = self._greet(*self._launch())
                except DormouseError as error:  # one that worked before: what it judged stands, and the next may start
                    self.ledger.loud(f"restart {restarts} of {MAX_RESTARTS}: {error}")
                    continue
                fresh.waiting = deque(enumerate(canaries))
                heard.append(fresh.canaries)
                self._runners.append(fresh)
                continue
            # A pipe is read when its child has ended, and now and then before: waking for every frame costs more than the frame.
            for key, _ in self._selector.select(timeout=_LOOK_SECONDS):
                self._hear(key.data, outcomes, slots)
            if (now := time.monotonic()) - looked > _LOOK_SECONDS:
                looked = now
                for runner in self._runners:
                    for row in runner.running.values():
                        self._drain(runner, row)
        lost = Outcome(End.INFRA, "the runner kept dying")
        return [o or lost for o in outcomes], heard

    # one runner's life

    def _launch(self) -> tuple[subprocess.Popen[bytes], socket.socket, bool]:
        """A process, the line to it, and whether it was asked for namespaces."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here, python = Path(__file__).parent, getattr(sys, "_base_executable", None) or sys.executable
        # -s -S -P is -I but for one variable: a fixed hash seed, so that the order of a set is the same in every run
        command = [python, "-s", "-S", "-P", "-B", str(here / "zygote.py"), str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env={"PYTHONHASHSEED": "0"}, cwd=f"{self._folder.name}/empty", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        theirs.close()
        profile = Profile.NO_FILES if self.mode is JailMode.NO_FILES else Profile.SINGLE
        filters = (b"", b"") if "seccomp" in self.without else stages(os.uname().machine, profile)
        apart = not self._no_namespaces
        ours.send(json.dumps({"room": self._folder.name, "filters": [f.hex() for f in filters], "namespaces": apart,
                              "landlock": "landlock" not in self.without, "files": profile is Profile.SINGLE}).encode())
        return process, ours, apart

    def _greet(self, process: subprocess.Popen[bytes], control: socket.socket, apart: bool) -> _Runner:
        """Hear what the zygote could put up and prove. Where namespaces are refused it starts again without them."""
        control.settimeout(_START_SECONDS)
        try:
            hello = control.recv(1 << 16)
        except OSError:
            hello = b""
        if hello[:1] == b"F" and apart:
            process.wait()
            control.close()
            self._no_namespaces = hello[1:].decode("utf-8", "replace") or "refused"
            return self._greet(*self._launch())
        standing = None
        if hello[:1] == b"H":
            standing = limits.stand(json.loads(hello[1:]), self.mode, self.without, self._no_namespaces)
        if standing is None or standing.refusal:
            process.kill()
            process.wait()
            control.close()
            raise DormouseError("the exec verifier judges nothing here: " + (standing.refusal if standing else (
                f"its runner did not start (exit {process.returncode}); its Python needs ctypes, os.memfd_create and os.pidfd_open (Linux "
                "5.8 or later)")))
        control.setblocking(False)
        self.layers = standing.layers
        for line in standing.lines:
            self.ledger.loud(line)
        runner = _Runner(process, control, self.layers, deque())
        self._selector.register(control.fileno(), selectors.EVENT_READ, runner)
        return runner

    def _feed(self, runner: _Runner, jobs: Sequence[Job], queue: deque[int], slots: dict[int, int]) -> bool:
        """Keep IN_FLIGHT candidates running. False when the runner is gone."""
        while len(runner.running) < IN_FLIGHT and (runner.waiting or queue):
            canary, job = runner.waiting.popleft() if runner.waiting else (-1, jobs[queue[0]])
            self._next = (self._next + 1) & 0xFFFFFFFF
            read, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(read, False)
            memory = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.write(memory, job.payload())
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALS)
            cpu = self._cpu(job)
            order = ORDER.pack(RUN, self._next, cpu, max(self.config.wall_seconds, 5 * cpu), self.config.memory_mib)
            try:
                socket.send_fds(runner.control, [order], [memory, write])
            except OSError:
                os.close(read)
                return False
            finally:
                os.close(memory)
                os.close(write)
            runner.running[self._next] = _Running(self._next, job, canary, read)
            if canary < 0:
                slots[self._next] = queue.popleft()
        return True

    def _cpu(self, job: Job) -> float:
        return job.cpu_seconds or self.config.cpu_seconds

    def _hear(self, runner: _Runner, outcomes: list[Outcome | None], slots: dict[int, int]) -> None:
        if runner not in self._runners:
            return
        try:
            message = runner.control.recv(DONE.size)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if len(message) != DONE.size:
            self._lost(runner, outcomes, slots)
            return
        number, status, cpu, wall, why = DONE.unpack(message)
        row = runner.running.pop(number)
        self._drain(runner, row, last=True)
        why = 3 if row.killed else why
        end, detail, load_error, claims = settle(bytes(row.data), len(row.job.inputs), status, cpu, self._cpu(row.job), why)
        outcome = Outcome(end, detail, load_error, claims, cpu * 1e3, wall * 1e3)
        if row.canary >= 0:
            runner.canaries[row.canary] = outcome
        else:
            outcomes[slots.pop(number)] = outcome

    def _drain(self, runner: _Runner, row: _Running, last: bool = False) -> None:
        """Read what a child has written; past its limit ask for its death and read no more."""
        with contextlib.suppress(BlockingIOError):
            while len(row.data) <= row.job.output_limit and (chunk := os.read(row.pipe, 1 << 16)):
                row.data += chunk
        if len(row.data) > row.job.output_limit and not row.killed:
            row.killed = True
            if not last:
                with contextlib.suppress(OSError):  # a dead runner is noticed by its closed socket
                    runner.control.send(ORDER.pack(KILL, row.number, 0.0, 0.0, 0))
        if last:
            os.close(row.pipe)

    def _lost(self, runner: _Runner, outcomes: list[Outcome | None], slots: dict[int, int]) -> None:
        """A runner died: nothing it had in flight gets a verdict."""
        for row in runner.running.values():
            if row.canary < 0:
                outcomes[slots.pop(row.number)] = Outcome(End.INFRA, "the runner died")
                self.ledger.count("exec.lost_to_runner_death")
        self._drop(runner)
        self._runners.remove(runner)

    def _drop(self, runner: _Runner) -> None:
        for row in runner.running.values():
            os.close(row.pipe)
        runner.running.clear()
        self._selector.unregister(runner.control.fileno())
        runner.control.close()
        try:
            runner.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            runner.process.kill()
            runner.process.wait()
