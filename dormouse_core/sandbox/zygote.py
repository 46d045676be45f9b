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
GRAIN = 0.002
"""Seconds between two looks at a child that is about to reach its limit."""
_HIDDEN = ("site-packages", "dist-packages")


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


def libraries() -> list[str]:
    """The folders the standard library is imported from."""
    return [path for path in dict.fromkeys((os.path.dirname(os.__file__), *sys.path)) if os.path.isdir(path)]


def build_root(room: str, kernel: Any) -> None:
    """On `room`, in a mount namespace of its own: a read-only root that holds the standard library at its own path, an
    empty folder to stand in, and the probes' canary."""
    kernel.mount("none", "/", flags=kernel.REC | kernel.PRIVATE)
    kernel.mount("tmpfs", room, "tmpfs", kernel.NOSUID | kernel.NODEV, "size=256k,mode=755")
    os.mkdir(f"{room}/empty", 0o555)
    with open(f"{room}/canary", "wb") as canary:
        canary.write(b"not for candidates")
    flags = kernel.NOSUID | kernel.NODEV | kernel.RDONLY
    for path in libraries():
        target = room + os.path.realpath(path)
        if os.path.isdir(target):
            continue  # within a folder that is there already
        os.makedirs(target, 0o755)
        kernel.mount(path, target, flags=kernel.BIND)
        kernel.mount("none", target, flags=kernel.BIND | kernel.REMOUNT | flags)
        for hidden in _HIDDEN:
            if os.path.isdir(f"{target}/{hidden}"):
                kernel.mount("tmpfs", f"{target}/{hidden}", "tmpfs", flags, "size=4k,mode=555")
    kernel.mount("none", room, flags=kernel.BIND | kernel.REMOUNT | flags)


def enter_namespaces(room: str, kernel: Any) -> int:
    """The stem moves into every namespace but the process one. Root first becomes a user nobody else is, after mounting what only
    root may read. Returns the user id. Raises OSError where one of them is refused."""
    if root := os.getuid() == 0:
        kernel.unshare(kernel.NEWNS)
        build_root(room, kernel)
        kernel.become_nobody()
        kernel.prctl(kernel.DUMPABLE, 1)  # else /proc/self belongs to root
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.NEWUSER | kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS)
    kernel.map_self(uid, gid)
    if root:
        kernel.mount(room, room, flags=kernel.BIND | kernel.REC)  # a mount of one's own: those of the old namespace are locked in place
    else:
        build_root(room, kernel)
    kernel.pivot_into(room)
    os.chdir("/empty")
    return uid


def stdlib_rules(kernel: Any, here: str) -> list[tuple[str, int]]:
    """Landlock: read the standard library entry by entry, without the folders other packages live in; list where one stands."""
    rules = [(here, kernel.READ_DIR)]
    for path in libraries():
        rules.append((path, kernel.READ_DIR))
        rules += [(entry.path, kernel.READ_FILE | kernel.READ_DIR) for entry in os.scandir(path)
                  if entry.name not in _HIDDEN and (entry.is_dir() or entry.name.endswith((".py", ".so", ".pyc")))]
    return rules


def own_processes(kernel: Any) -> None:
    """Become process 1 of a process namespace: this returns there only. The stem waits, and goes when the zygote goes; the
    zygote dies with the stem."""
    kernel.unshare(kernel.NEWPID)
    pid = os.fork()
    if pid:
        os.closerange(0, 1024)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)


def drop_root(kernel: Any) -> str:
    """Root without namespaces becomes a user nobody else is. Returns the layer this gives: `setuid`, or `setuid_read` where the
    standard library lies in a closed home and the capability to read it stays; '' where root cannot be dropped."""
    for layer, keep in (("setuid", 0), ("setuid_read", kernel.DAC_READ_SEARCH)):
        pid = os.fork()
        if pid == 0:
            try:
                kernel.become_nobody(keep)
                with open(os.__file__, "rb"):
                    os._exit(0)
            except BaseException:  # noqa: BLE001 - a forked trial must end here
                os._exit(1)
        if os.waitpid(pid, 0)[1] == 0:
            kernel.become_nobody(keep)
            return layer
    return ""


def put_up(order: dict[str, Any]) -> "tuple[child.Jail, dict[str, Any]]":
    """Every layer this machine has, proven; and what to tell the client: `proven` layer -> '' or what was seen instead, `missing`
    layer -> why. Raises OSError where the namespaces asked for are refused."""
    from dormouse_core.sandbox import child, kernel, probes

    with open("/proc/self/statm", "rb") as statm:
        size = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    jail = child.Jail(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), size, filter=bytes.fromhex(order["filter"]))
    told: dict[str, Any] = {"proven": {}, "missing": {}, "abi": 0, "root": "", "kept": 0}
    canary, here = f"{order['room']}/canary", f"{order['room']}/empty"
    if order["namespaces"]:
        seen = probes.Outside(canary)
        before = seen.reach()
        uid = enter_namespaces(order["room"], kernel)
        own_processes(kernel)
        told["proven"] |= probes.namespaces(before, seen.reach(), uid)
        seen.close()
        canary, here, jail.pidns = "/canary", "/empty", True
    try:
        jail.landlock = kernel.Landlock(stdlib_rules(kernel, here)) if order["landlock"] else None
        told["abi"] = jail.landlock.abi if jail.landlock else 0
    except OSError as error:
        told["missing"]["landlock"] = str(error)
    if not order["namespaces"] and os.getuid() == 0:
        told["root"] = drop_root(kernel) or "kept"
        jail.keep_caps = kernel.caps()
    jail.parent = os.getpid()
    kernel.prctl(kernel.DUMPABLE, 0)
    told["proven"] |= probes.prove(jail, canary, lambda: fork_apart(jail, kernel, os.pidfd_open(os.getpid())))
    return jail, told


def fork_apart(jail: Any, kernel: Any, own: int) -> int:
    """Fork into a new process namespace where the jail has them. `own`: a pidfd of this process, by which it stays in its own."""
    if not jail.pidns:
        return os.fork()
    kernel.unshare(kernel.NEWPID)
    pid = os.fork()
    if pid:
        kernel.setns(own, kernel.NEWPID)
    return pid


class Zygote:
    """Fork a child for every order; report how each ended; leave when the other side is gone."""

    def __init__(self, control: socket.socket, jail: Any, room: Any) -> None:
        self.control, self.jail, self.kernel, self.child = control, jail, room.kernel, room.child
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
        pid = fork_apart(self.jail, self.kernel, self.own)
        if pid == 0:
            try:
                self.child.live(self.jail, fds[0], fds[1], cpu, memory)
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
    room = types.SimpleNamespace(**{name: importlib.import_module(f"dormouse_core.sandbox.{name}") for name in ("kernel", "child")})
    for name in PRELOAD:
        __import__(name)
    sys.argv[:] = [""]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        jail, told = put_up(json.loads(control.recv(1 << 16)))
    except OSError as error:
        control.send(b"F" + str(error).encode())
        return
    os.environ.clear()
    forget_packages()
    gc.collect()
    gc.freeze()
    control.send(b"H" + json.dumps(told).encode())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Zygote(control, jail, room).serve()


if __name__ == "__main__":
    main()
