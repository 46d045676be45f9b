"""Namespaces and roots: where a jailed process stands, what it can see from there, and whom it may become.

Not here: the calls themselves (kernel.py), limits and filter (child.py, seccomp.py), the proof (probes.py).
"""

import glob
import os
import signal
import sys
from collections.abc import Callable

from dormouse_core.sandbox import child, kernel

_HIDDEN = ("site-packages", "dist-packages")
_READ_ONLY = kernel.NOSUID | kernel.NODEV | kernel.RDONLY


def libraries() -> list[str]:
    """The folders the standard library is imported from."""
    return [path for path in dict.fromkeys((os.path.dirname(os.__file__), *sys.path)) if os.path.isdir(path)]


def stdlib_root(room: str) -> None:
    """On `room`, in a mount namespace of its own: a read-only root that holds the standard library at its own path, an
    empty folder to stand in, and the probes' canary."""
    start_root(room, "256k")
    os.mkdir(f"{room}/empty", 0o555)
    for path in libraries():
        show(room, path)
    kernel.mount("none", room, flags=kernel.BIND | kernel.REMOUNT | _READ_ONLY)


def start_root(room: str, size: str) -> None:
    """A small file system on `room`, with a file in it that is for nobody (the probes')."""
    kernel.mount("none", "/", flags=kernel.REC | kernel.PRIVATE)
    kernel.mount("tmpfs", room, "tmpfs", kernel.NOSUID | kernel.NODEV, f"size={size},mode=755")
    with open(f"{room}/canary", "wb") as canary:
        canary.write(b"not for candidates")


def show(room: str, path: str) -> None:
    """The folder `path` of the old root, read-only, at its own path in the new one, without the packages installed beneath it."""
    real = os.path.realpath(path)
    target = room + real
    if not os.path.lexists(target):
        os.makedirs(target, 0o755)
        kernel.bind_read_only(real, target)
        beneath = (f"{glob.escape(target)}/{place}/python3*" for place in ("lib*", "local/lib*"))
        for folder in (target, *(found for pattern in beneath for found in glob.glob(pattern))):
            for hidden in _HIDDEN:
                if os.path.isdir(f"{folder}/{hidden}"):
                    kernel.mount("tmpfs", f"{folder}/{hidden}", "tmpfs", _READ_ONLY, "size=4k,mode=555")
    if path != real and not os.path.lexists(room + path):
        os.makedirs(os.path.dirname(room + path), 0o755, exist_ok=True)
        os.symlink(real, room + path)


def enter(room: str, build: Callable[[str], None]) -> int:
    """The stem moves into every namespace but the process one. Root first becomes a user nobody else is, after mounting what only
    root may read. Returns the user id. Raises OSError where one of them is refused."""
    own = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)
    try:
        if root := os.getuid() == 0:
            kernel.unshare(kernel.NEWNS)
            build(room)
            kernel.pivot_into(room)  # before becoming somebody who may not walk to `room`
            kernel.become_nobody()
            kernel.prctl(kernel.DUMPABLE, 1)  # else /proc/self belongs to root
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(kernel.NEWUSER | kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS)
        kernel.map_self(own, uid, gid)
    finally:
        os.close(own)
    if not root:
        build(room)
        kernel.pivot_into(room)
    return uid


def stdlib_rules(here: str, hidden: bool) -> list[tuple[str, int]]:
    """Landlock: read the standard library, list the folder one stands in. Where the mount namespace does not hide the packages
    installed in it, entry by entry without them: every rule is copied for every child."""
    rules, reading = [(here, kernel.READ_DIR)], kernel.READ_FILE | kernel.READ_DIR
    for path in libraries():
        if hidden:
            rules.append((path, reading))
            continue
        rules.append((path, kernel.READ_DIR))
        rules += [(entry.path, reading) for entry in os.scandir(path)
                  if entry.name not in _HIDDEN and (entry.is_dir() or entry.name.endswith((".py", ".so", ".pyc")))]
    return rules


def own_processes(let_go: Callable[[], None] = lambda: None) -> None:
    """Become process 1 of a process namespace: this returns there only. The stem lets go of what it held, waits, and goes when the
    zygote goes; the zygote dies with the stem."""
    kernel.unshare(kernel.NEWPID)
    pid = os.fork()
    if pid:
        let_go()
        os.closerange(0, 1024)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)


def drop_root() -> str:
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


def fork_apart(jail: child.Jail, own: int) -> int:
    """Fork into a new process namespace where the jail has them. `own`: a pidfd of this process, by which it stays in its own."""
    if not jail.pidns:
        return os.fork()
    kernel.unshare(kernel.NEWPID)
    pid = os.fork()
    if pid:
        kernel.setns(own, kernel.NEWPID)
    return pid
