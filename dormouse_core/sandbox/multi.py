"""run_multi: a command of several processes (a test runner, a shell) in a jail of its own, made for it and gone with it.

User, mount, process, net, ipc and host-name namespaces, Landlock, a filter that allows fork and exec, no capabilities, limits a
process; a workspace in memory; the system and the interpreter read-only; no network. CPU and memory of all processes together
are watched from outside. About 0.1 CPU-seconds a call: for tasks that are judged by running a project, not for single functions.
What comes back is what the command said and left. It is the candidate's word: a command that runs a candidate's code in
the same process as its tests can be lied to (docs/verifier.md, multi-process).
Not here: what an outcome is worth (verifiers/).
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dormouse_core.ledger import DormouseError
from dormouse_core.sandbox import multi_child
from dormouse_core.sandbox.child import HEAD
from dormouse_core.sandbox.limits import FORK_BAN, MULTI_LAYERS, Isolation
from dormouse_core.sandbox.runner import SEALS, End
from dormouse_core.sandbox.seccomp import Profile, program
from dormouse_core.sandbox.syscalls import ARCHES

PYTHON = "python"
"""As first word of a command: the interpreter dormouse's own environment was made from, with its standard library alone."""
MAX_FILES_BYTES = 64 << 20
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": multi_child.WORK, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC",
               "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
_LOOK_SECONDS = 0.05
_START_SECONDS = 20.0
_GO = HEAD.pack(b"G", 0, 0)
_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class MultiLimits:
    """What a command and all it starts may use."""

    cpu_seconds: float = 20.0
    """Of all its processes together, watched from outside twenty times a second; and of each alone, by the kernel."""
    wall_seconds: float = 0.0
    """Backstop; 0 takes five times the CPU limit."""
    memory_mib: int = 1024
    """Resident memory of all its processes together; and address space of each."""
    processes: int = 32
    disk_mib: int = 64
    """The workspace and /tmp together; they are memory."""
    output_bytes: int = 1 << 20
    """Standard output and error together."""
    keep_bytes: int = 1 << 20
    """Files read back, together."""


@dataclass(frozen=True, slots=True)
class MultiOutcome:
    """How a command ended and what it said. `end` is CLEAN whatever its exit code was."""

    end: End
    detail: str = ""
    exit_code: int | None = None
    """None where it did not exit by itself."""
    output: bytes = b""
    """Standard output and error as they were written, together."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Of the files asked for, those that are regular files within the limit."""
    cpu_ms: float = 0.0
    wall_ms: float = 0.0
    isolation: str = Isolation.JAIL.value
    layers: tuple[str, ...] = ()


def run_multi(files: Mapping[str, bytes], argv: Sequence[str], limits: MultiLimits | None = None, *, keep: Sequence[str] = (),
              env: Mapping[str, str] | None = None, read: Sequence[str] = (), executable: Sequence[str] = (),
              runner: Literal["native", "bwrap"] = "native") -> MultiOutcome:
    """Write `files` into an empty workspace, run `argv` there, return how it went.

    files: path in the workspace (/work) -> content. argv: the command; a first word of `python` is this interpreter. keep: files
    of the workspace to read back. env: added to `ENVIRONMENT`. read: folders of this machine to show read-only at their own
    path. executable: which of the files get the executable bit. runner: who makes the namespaces, dormouse or bubblewrap.
    Never raises because of what the command does. Raises ValueError for a path outside the workspace or an empty command,
    DormouseError where this machine has no jail for several processes.
    """
    limits = limits or MultiLimits()
    order = _order(argv, limits, keep, env, read, runner)
    blob = _pack(files, executable)
    try:
        with tempfile.TemporaryDirectory(prefix="dormouse-room-") as room:
            os.chmod(room, 0o755)
            return _Run(order | {"room": room}, limits, blob).outcome()
    finally:
        os.close(blob)


def _order(argv: Sequence[str], limits: MultiLimits, keep: Sequence[str], env: Mapping[str, str] | None, read: Sequence[str],
           runner: str) -> dict[str, Any]:
    machine = os.uname().machine
    if not sys.platform.startswith("linux") or machine not in ARCHES:
        raise DormouseError(f"programs of several processes are judged on Linux ({' or '.join(ARCHES)}) only, and this is {sys.platform} "
                            f"{machine}: use tasks of other verifiers here")
    if not argv or any("\0" in word for word in argv):
        raise ValueError("the command is empty or holds a NUL")
    for path in keep:
        _inside(path)
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    words = [python if i == 0 and word == PYTHON else word for i, word in enumerate(argv)]
    prefix = os.path.dirname(os.path.dirname(python))
    visible = list(dict.fromkeys([*multi_child.SYSTEM, sys.base_prefix, prefix, *map(os.path.abspath, read)]))
    return {"argv": words, "env": ENVIRONMENT | dict(env or {}), "visible": visible, "keep": list(keep), "keep_bytes": limits.keep_bytes,
            "cpu": limits.cpu_seconds, "memory_mib": limits.memory_mib, "disk_mib": limits.disk_mib, "processes": limits.processes + 2,
            "filter": program(machine, Profile.MULTI).hex(), "bwrap": runner == "bwrap"}


def _inside(path: str) -> str:
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{path[:80]!r} is no plain path inside the workspace")
    return path


def _pack(files: Mapping[str, bytes], executable: Sequence[str]) -> int:
    """A sealed memfd: what the keeper writes into the workspace."""
    if sum(map(len, files.values())) > MAX_FILES_BYTES:
        raise ValueError(f"the files hold more than {MAX_FILES_BYTES >> 20} MiB")
    index = json.dumps([[_inside(path), len(content), path in executable] for path, content in files.items()]).encode()
    blob = os.memfd_create("files", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(os.dup(blob), "wb") as out:
        out.write(multi_child.LENGTH.pack(len(index)) + index + b"".join(files.values()))
    fcntl.fcntl(blob, fcntl.F_ADD_SEALS, SEALS)
    return blob


class _Run:
    """One command, from start to outcome."""

    def __init__(self, order: dict[str, Any], limits: MultiLimits, blob: int) -> None:
        self.limits, self.began = limits, time.monotonic()
        self.deadline = self.began + (limits.wall_seconds or 5 * limits.cpu_seconds)
        self.why: End | None = None
        self.said, self.answer = bytearray(), bytearray()
        self.order, self.blob = order, blob

    def outcome(self) -> MultiOutcome:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, out_w = os.pipe2(os.O_CLOEXEC)
        answers, answers_w = os.pipe2(os.O_CLOEXEC)
        try:
            process = subprocess.Popen(
                _command(self.order, theirs.fileno()), pass_fds=[theirs.fileno()], env={"PYTHONHASHSEED": "0"}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            theirs.close()
            ours.settimeout(_START_SECONDS)
            layers = self._greet(ours, process, [self.blob, out_w, answers_w])
            os.close(out_w)
            os.close(answers_w)
            out_w = answers_w = -1
            try:
                self._watch(process, out, answers)
            finally:
                _end(process)
        finally:
            for fd in (out, answers, out_w, answers_w):
                if fd >= 0:
                    os.close(fd)
            theirs.close()
            ours.close()
        return self._settle(layers)

    def _greet(self, control: socket.socket, process: "subprocess.Popen[bytes]", fds: list[int]) -> tuple[str, ...]:
        try:
            control.send(json.dumps(self.order).encode())
            socket.send_fds(control, [b"fds"], fds)
            hello = control.recv(4096)
        except OSError:
            hello = b""
        if hello[:1] != b"H":
            _end(process)
            why = hello[1:].decode("utf-8", "replace") or f"it did not start, exit {process.returncode}"
            raise DormouseError(f"no jail for several processes on this machine ({why}): it needs user namespaces and Landlock. Allow user "
                                "namespaces (sysctl user.max_user_namespaces; in a container: a seccomp profile that permits unshare and "
                                "mount), or judge such tasks on another machine.")
        held = [name for name in MULTI_LAYERS if name != FORK_BAN or not (self.order["bwrap"] and os.getuid() == 0)]  # root is not counted
        return (*held, f"landlock{json.loads(hello[1:])['abi']}", *(["bwrap"] if self.order["bwrap"] else []))

    def _watch(self, process: "subprocess.Popen[bytes]", out: int, answers: int) -> None:
        """Read until the keeper is done or a limit is passed; then everything in there ends with the stem."""
        poll = select.poll()
        for fd in (out, answers):
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        opened = {out, answers}
        while opened and self.why is None:
            for fd, _ in poll.poll(_LOOK_SECONDS * 1000):
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    poll.unregister(fd)
                    opened.discard(fd)
                into = self.said if fd == out else self.answer
                into += chunk
            if answers not in opened:
                break
            cpu, memory = tree(process.pid)
            if len(self.said) > self.limits.output_bytes + len(_GO):
                self.why = End.OUTPUT
            elif cpu > self.limits.cpu_seconds:
                self.why = End.CPU
            elif memory > self.limits.memory_mib << 20:
                self.why = End.MEMORY
            elif time.monotonic() > self.deadline:
                self.why = End.WALL
            self.cpu = cpu

    def _settle(self, layers: tuple[str, ...]) -> MultiOutcome:
        wall = (time.monotonic() - self.began) * 1e3
        sealed = self.said.startswith(_GO)
        said = bytes(self.said[len(_GO):] if sealed else b"")[: self.limits.output_bytes]
        if not sealed and self.why is None:
            return MultiOutcome(End.INFRA, "the command's process was not sealed", wall_ms=wall, layers=layers)
        if self.why is not None:
            return MultiOutcome(self.why, output=said, cpu_ms=self.cpu * 1e3, wall_ms=wall, layers=layers)
        status, cpu, files = _unpack(bytes(self.answer))
        if status is None:
            return MultiOutcome(End.INFRA, "the keeper died", output=said, cpu_ms=self.cpu * 1e3, wall_ms=wall, layers=layers)
        code = os.waitstatus_to_exitcode(status)
        end, detail = End.CLEAN, ""
        if code < 0:
            killed = code in (-signal.SIGKILL, -signal.SIGXCPU) and cpu >= 0.9 * self.limits.cpu_seconds
            end = End.CPU if killed else End.FORBIDDEN if code == -signal.SIGSYS else End.CRASH
            detail = f"signal {-code}"
        return MultiOutcome(end, detail, code if code >= 0 else None, said, files, cpu * 1e3, wall, layers=layers)


def _unpack(answer: bytes) -> tuple[int | None, float, dict[str, bytes]]:
    head = multi_child.ENDED.size + multi_child.LENGTH.size
    if len(answer) < head:
        return None, 0.0, {}
    status, cpu = multi_child.ENDED.unpack_from(answer)
    (length,) = multi_child.LENGTH.unpack_from(answer, multi_child.ENDED.size)
    files, at = {}, head + length
    for path, size in json.loads(answer[head : head + length]):
        files[path] = answer[at : at + size]
        at += size
    return status, cpu, files


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


def _command(order: dict[str, Any], fd: int) -> list[str]:
    python, here = getattr(sys, "_base_executable", None) or sys.executable, Path(__file__).parent
    flags = ["-s", "-S", "-P", "-B"]
    if not order["bwrap"]:
        return [python, *flags, str(here / "zygote.py"), str(fd)]
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise DormouseError("bubblewrap was asked for and there is no `bwrap` on the PATH: install it, or take the native runner")
    shown = [word for path in order["visible"] for word in ("--ro-bind-try", path, path)]
    packages = (folder for base in dict.fromkeys((sys.base_prefix, "/usr", "/usr/local"))
                for folder in Path(base).glob("lib*/python3*/*-packages"))
    hidden = [word for folder in packages for word in ("--tmpfs", str(folder))]
    return [bwrap, "--unshare-all", "--die-with-parent", "--new-session", *shown, *hidden, "--dev", "/dev", "--tmpfs", multi_child.WORK,
            "--tmpfs", "/tmp", "--ro-bind", str(here), multi_child.OWN, "--cap-drop", "ALL", "--", python, *flags,
            f"{multi_child.OWN}/zygote.py", str(fd)]


def tree(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process and all its descendants. CPU of those that ended is in their parents' account."""
    parents: dict[int, list[int]] = {}
    rows: dict[int, tuple[float, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(name))
                rows[int(name)] = (sum(map(int, fields[11:15])) / _TICK, int(fields[21]) * _PAGE)
    cpu, memory, pending = 0.0, 0, [pid]
    while pending:
        row = rows.get(one := pending.pop(), (0.0, 0))
        cpu, memory = cpu + row[0], memory + row[1]
        pending += parents.get(one, [])
    return cpu, memory
