"""The zygote: one bare interpreter that forks one sealed child a candidate. Started by `runner.Runners`.

It is executed by path (`python -s -S -P -B zygote.py SOCKET_FD`) and loads nothing of dormouse but this room. Messages and file
descriptors arrive on a SEQPACKET socket: first what to put up (JSON), then orders. Where the machine allows it, the zygote lives
in user, mount, net, ipc and host-name namespaces with a read-only root of the standard library alone, as process 1 of a process
namespace; each child gets a process namespace of its own. The process that was started (the stem) only waits for it.
It holds no candidate's source, no task data and no expected value, so no child can find any.
Not here: how a child seals itself (child.py), what is proven at the start (probes.py), what a missing layer means (limits.py).
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dormouse_core.sandbox import child

RUN, KILL = b"R", b"K"
ORDER = struct.Struct("<cIddI")  # op, id, cpu seconds, wall seconds, memory MiB
DONE = struct.Struct("<IiddB")  # id, wait status, cpu seconds, wall seconds, why (0 nobody, 1 cpu, 2 wall, 3 asked) killed it
PRELOAD = ("math", "re", "typing", "collections", "itertools", "functools", "heapq", "string", "operator", "bisect", "copy")
LINKED = ("binascii", "zlib", "_bz2", "_lzma")
"""Parts of the standard library that may link a shared library from outside it, which no candidate can open: loaded beforehand, where
this Python has them."""
GRAIN = 0.002
"""Seconds between two looks at a child that is about to reach its limit."""


def own_packages() -> None:
    """Stand-ins for `dormouse_core` and this room, so that its modules load by name and nothing else does."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("dormouse_core", []), ("dormouse_core.sandbox", [here])):
        package = types.ModuleType(name)
        package.__path__ = path
        sys.modules[name] = package


def forget_packages() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "dormouse_core"]:
        del sys.modules[name]
    sys.path_importer_cache.clear()


def put_up(order: dict[str, Any]) -> "tuple[child.Jail, dict[str, Any]]":
    """Every layer this machine has, proven; and what to tell the client: `proven` layer -> '' or what was seen instead, `missing`
    layer -> why. Raises OSError where the namespaces asked for are refused."""
    from dormouse_core.sandbox import child, kernel, namespaces, probes

    with open("/proc/self/statm", "rb") as statm:
        size = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    jail = child.Jail(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), size, filter=bytes.fromhex(order["filters"][1]), files=order["files"])
    told: dict[str, Any] = {"proven": {}, "missing": {}, "abi": 0, "root": "", "kept": 0}
    canary, here = f"{order['room']}/canary", f"{order['room']}/empty"
    if order["namespaces"]:
        seen = probes.Outside(canary)
        before = seen.reach()
        uid = namespaces.enter(order["room"], namespaces.stdlib_root)
        os.chdir("/empty")
        namespaces.own_processes(seen.close)
        told["proven"] |= probes.namespaces(before, seen.reach(), uid)
        seen.close()
        canary, here, jail.pidns = "/canary", "/empty", True
    try:
        jail.landlock = kernel.Landlock(namespaces.stdlib_rules(here, jail.pidns)) if order["landlock"] else None
        told["abi"] = jail.landlock.abi if jail.landlock else 0
    except OSError as error:
        told["missing"]["landlock"] = str(error)
    if not order["namespaces"] and os.getuid() == 0:
        told["root"] = namespaces.drop_root() or "kept"
        jail.keep_caps = kernel.caps()
    jail.parent = os.getpid()
    kernel.prctl(kernel.DUMPABLE, 0)
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    own = os.pidfd_open(os.getpid())
    base = bytes.fromhex(order["filters"][0])
    told["proven"] |= probes.prove(jail, base, canary, lambda: namespaces.fork_apart(jail, own))
    os.close(own)
    if base:
        kernel.install_filter(base)
    return jail, told


class Zygote:
    """Fork a child for every order; report how each ended; leave when the other side is gone."""

    def __init__(self, control: socket.socket, jail: Any, room: Any) -> None:
        self.control, self.jail, self.fork_apart, self.live = control, jail, room.namespaces.fork_apart, room.child.live
        self.own = os.pidfd_open(os.getpid())
        self.alive: dict[int, list[Any]] = {}  # pidfd -> [pid, id, cpu limit, deadline, started, why]
        self.poll = select.poll()
        self.poll.register(control.fileno(), select.POLLIN)

    def serve(self) -> None:
        while True:
            wait = self._patience()
            for fd, _ in self.poll.poll(wait):
                if fd != self.control.fileno():
                    self.poll.unregister(fd)
                    os.close(fd)
                    self._report(self.alive.pop(fd))
                elif not self._order():
                    return

    def _patience(self) -> float | None:
        """End who is past a limit; milliseconds until somebody may be next. A child cannot use more CPU than time passes."""
        now = time.monotonic()
        wait = None
        for row in self.alive.values():
            if row[5]:
                continue
            left = row[2] - cpu_of(row[0])
            if left <= 0 or now > row[3]:
                row[5] = 2 if now > row[3] else 1
                os.kill(row[0], signal.SIGKILL)
                continue
            soon = max(min(left, row[3] - now), GRAIN) * 1000
            wait = soon if wait is None or soon < wait else wait
        return wait

    def _order(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self.control, 64, 2)
        if not message:
            return False
        op, number, cpu, wall, memory = ORDER.unpack(message)
        if op == KILL:
            for row in self.alive.values():
                if row[1] == number and not row[5]:
                    row[5] = 3
                    os.kill(row[0], signal.SIGKILL)
            return True
        pid = self.fork_apart(self.jail, self.own)
        if pid == 0:
            try:
                self.live(self.jail, fds[0], fds[1], cpu, memory)
            finally:
                os._exit(70)
        for passed in fds:
            os.close(passed)
        now = time.monotonic()
        pidfd = os.pidfd_open(pid)
        self.poll.register(pidfd, select.POLLIN)
        self.alive[pidfd] = [pid, number, cpu, now + wall, now, 0]
        return True

    def _report(self, row: list[Any]) -> None:
        pid, number, _, _, started, why = row
        if not self.jail.pidns:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)  # the unreaped leader keeps the group id; nothing else should be in it
        _, status, used = os.wait4(pid, 0)
        self.control.send(DONE.pack(number, status, used.ru_utime + used.ru_stime, time.monotonic() - started, why))


def cpu_of(pid: int) -> float:
    """CPU seconds a living process has used (its kernel clock)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    own_packages()
    room = types.SimpleNamespace(**{name: importlib.import_module(f"dormouse_core.sandbox.{name}") for name in ("namespaces", "child")})
    for name in PRELOAD:
        __import__(name)
    for name in LINKED:
        with contextlib.suppress(ImportError):
            __import__(name)
    sys.argv[:] = [""]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a session of its own: no terminal reaches it
    order = json.loads(control.recv(1 << 16))
    if "argv" in order:
        importlib.import_module("dormouse_core.sandbox.multi_child").main(control, order)
        return
    try:
        jail, told = put_up(order)
    except OSError as error:
        control.send(b"F" + str(error).encode())
        return
    os.environ.clear()
    room.child.warm_up()
    forget_packages()
    gc.collect()
    gc.freeze()
    control.send(b"H" + json.dumps(told).encode())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Zygote(control, jail, room).serve()


if __name__ == "__main__":
    main()
