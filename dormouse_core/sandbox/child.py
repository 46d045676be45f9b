"""The runner's own program: one bare interpreter that forks one sealed child a candidate. Started by `runner.Runners`.

It is executed by path (`python -s -S -P -B child.py SOCKET_FD WIRE_PY`) and loads nothing of dormouse but the wire format; the runner
reads its message layouts from here. Messages and file descriptors arrive on a SEQPACKET socket; the program to judge arrives in a
memfd that only the sealed child reads, so the runner holds no candidate's source and no child can find another's.
Frames a child writes: `G` sealed, ready to read the job; `V` index, payload; `X` index, exception name; `U` index, why it
has no wire form; `L` phase, exception name (the program did not load); `E` end. Anything after `E` is a breach.
"""

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import types
from typing import Any

RUN, KILL = b"R", b"K"
ORDER = struct.Struct("<cIddI")  # op, id, cpu seconds, wall seconds, memory MiB
DONE = struct.Struct("<IiddB")  # id, wait status, cpu seconds, wall seconds, why (0 nobody, 1 cpu, 2 wall, 3 asked) killed it
HEAD = struct.Struct("<cII")  # frame kind, index, payload length
POLL_SECONDS = 0.02
PRELOAD = ("math", "re", "typing", "collections", "itertools", "functools", "heapq", "string", "operator", "bisect", "copy")
_PDEATHSIG, _KEEPCAPS, _NO_NEW_PRIVS, _DUMPABLE = 1, 8, 38, 4
_DAC_READ_SEARCH = 1 << 2
_libc = ctypes.CDLL(None, use_errno=True)


def load_wire(path: str) -> Any:
    module = types.ModuleType("wire")
    with open(path, "rb") as source:
        exec(compile(source.read(), "wire", "exec"), module.__dict__)
    return module


def _set_caps(mask: int) -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    if _libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def drop_user(keep_read: bool) -> None:
    """Root only: become a user id nobody else has, so that no process may be forked and none signalled. `keep_read` keeps
    the one capability that reads a standard library inside a closed home."""
    uid = 20000 + os.getpid() % 40000
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    if keep_read:
        _libc.prctl(_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(uid, uid, uid)
    if keep_read:
        _set_caps(_DAC_READ_SEARCH)


def seal(parent: int, cpu: float, memory_mib: int, root: str) -> None:
    """Every limit a plain process can put on itself. Order matters: changing user clears the death signal."""
    hard = int(cpu) + (int(cpu) < cpu)
    limits = resource.setrlimit
    with open("/proc/self/statm", "rb") as statm:
        base = int(statm.read().split()[0]) * resource.getpagesize()
    if root:
        drop_user(root == "keep_read")
    limits(resource.RLIMIT_CPU, (hard, hard))
    limits(resource.RLIMIT_AS, (base + (memory_mib << 20),) * 2)
    limits(resource.RLIMIT_FSIZE, (0, 0))
    limits(resource.RLIMIT_NOFILE, (16, 16))
    limits(resource.RLIMIT_NPROC, (0, 0))
    limits(resource.RLIMIT_CORE, (0, 0))
    _libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    if _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0) or _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError("prctl refused")
    if os.getppid() != parent:
        os._exit(1)


def child(parent: int, job: int, out: int, cpu: float, memory_mib: int, root: str, wire: Any) -> None:
    """The candidate's whole life. Never returns. A death before `G` is the machine's fault, after it the candidate's."""
    os.dup2(job, 200)
    os.dup2(out, 201)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(200, 3)
    os.dup2(201, 4)
    os.closerange(5, 4096)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    seal(parent, cpu, memory_mib, root)
    write, pack = os.write, HEAD.pack

    def frame(kind: bytes, index: int = 0, payload: bytes = b"") -> None:
        data = pack(kind, index, len(payload)) + payload
        while data:
            data = data[write(4, data):]

    frame(b"G")
    data = os.pread(3, os.fstat(3).st_size, 0)
    os.close(3)
    entry, program, inputs = wire.decode(data)
    run(entry, program, inputs, frame, wire)
    frame(b"E")
    os._exit(0)


def run(entry: str, program: bytes, inputs: tuple[bytes, ...], frame: Any, wire: Any) -> None:
    """Load the program and claim a value for every input."""
    encode, decode, wire_error, name_of = wire.encode, wire.decode, wire.WireError, type.__dict__["__name__"].__get__
    space: dict[str, Any] = {"__name__": "candidate", "__builtins__": __builtins__}
    phase = b"compile:"
    try:
        if b"random" in program:  # an answer that draws is the same in every run
            __import__("random").seed(0)
        code = compile(program, "<candidate>", "exec", dont_inherit=True)
        phase = b"load:"
        exec(code, space)
        phase = b"missing:"
        function = space[entry]
    except BaseException as error:  # noqa: BLE001 - a candidate may raise anything
        return frame(b"L", 0, phase + name_of(type(error)).encode("utf-8", "replace")[:80])
    for index, blob in enumerate(inputs):
        try:
            value = function(*decode(blob))
        except BaseException as error:  # noqa: BLE001
            frame(b"X", index, name_of(type(error)).encode("utf-8", "replace")[:80])
            continue
        try:
            claim = encode(value)
        except BaseException as error:  # noqa: BLE001
            why = str(error) if type(error) is wire_error else name_of(type(error))
            frame(b"U", index, why.encode("utf-8", "replace")[:80])
            continue
        frame(b"V", index, claim)


def probe_root() -> tuple[str, list[str]]:
    """How far this process may drop its user, found by trying in children: ('', 'plain' or 'keep_read'), and layers."""
    if os.getuid() != 0:
        return "", []
    for mode in ("plain", "keep_read"):
        pid = os.fork()
        if pid == 0:
            try:
                drop_user(mode == "keep_read")
                with open(os.__file__, "rb"):
                    os._exit(0)
            except BaseException:  # noqa: BLE001 - a forked probe must end here
                os._exit(1)
        if os.waitpid(pid, 0)[1] == 0:
            return mode, ["setuid" if mode == "plain" else "setuid_read"]
    return "", []


def probe_fork(parent: int, root: str) -> bool:
    """True when a sealed child cannot fork."""
    pid = os.fork()
    if pid == 0:
        try:
            seal(parent, 1.0, 64, root)
        except BaseException:  # noqa: BLE001
            os._exit(2)
        try:
            if os.fork() == 0:
                os._exit(0)
        except OSError:
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def cpu_of(pid: int) -> float:
    """CPU seconds a living process has used (its kernel clock)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def serve(control: socket.socket, wire: Any) -> None:
    """Fork a child for every order; report how each ended; leave when the other side is gone."""
    me = os.getpid()
    root, layers = probe_root()
    if probe_fork(me, root):
        layers.append("rlimit_nproc")
    control.send(b"H" + ",".join(layers).encode())
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    alive: dict[int, list[Any]] = {}  # pidfd -> [pid, id, cpu limit, deadline, started, why]
    while True:
        for fd, _ in poll.poll(POLL_SECONDS * 1000 if alive else None):
            if fd == control.fileno():
                message, fds, _, _ = socket.recv_fds(control, 64, 2)
                if not message:
                    return
                op, number, cpu, wall, memory = ORDER.unpack(message)
                if op == KILL:
                    for row in alive.values():
                        if row[1] == number:
                            end(row, 3)
                    continue
                pid = os.fork()
                if pid == 0:
                    try:
                        child(me, fds[0], fds[1], cpu, memory, root, wire)
                    finally:
                        os._exit(70)
                for passed in fds:
                    os.close(passed)
                now = time.monotonic()
                pidfd = os.pidfd_open(pid)
                poll.register(pidfd, select.POLLIN)
                alive[pidfd] = [pid, number, cpu, now + wall, now, 0]
            else:
                poll.unregister(fd)
                os.close(fd)
                report(control, alive.pop(fd))
        now = time.monotonic()
        for row in alive.values():
            if row[5] == 0 and (now > row[3] or cpu_of(row[0]) > row[2]):
                end(row, 2 if now > row[3] else 1)


def end(row: list[Any], why: int) -> None:
    row[5] = row[5] or why
    os.kill(row[0], signal.SIGKILL)


def report(control: socket.socket, row: list[Any]) -> None:
    pid, number, _, _, started, why = row
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)  # the unreaped leader keeps the group id; nothing else should be in it
    _, status, used = os.wait4(pid, 0)
    control.send(DONE.pack(number, status, used.ru_utime + used.ru_stime, time.monotonic() - started, why))


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    wire = load_wire(sys.argv[2])
    for name in PRELOAD:
        __import__(name)
    sys.argv[:] = [""]
    os.environ.clear()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(control, wire)


if __name__ == "__main__":
    main()
