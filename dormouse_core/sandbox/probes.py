"""Each layer proven alone: acts that succeed in a bare process and that one layer, with nothing else in force, denies with its own errno.

A layer that is off looks exactly like one that is on, as long as another one catches the same attack; so every zygote runs
these at its start, in forked processes, and reports what it saw. An act the bare process cannot do either proves nothing
and is left out; a layer without any act left counts as unproven.
Not here: what to do about a layer that is missing (limits.py).
"""

import ctypes
import errno
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dormouse_core.sandbox import child, kernel

_BROKEN = 255
_libc = ctypes.CDLL(None, use_errno=True)
_libc.shmat.restype = ctypes.c_void_p


class Act(NamedTuple):
    """Something a candidate might do, and the errno with which the layer under test must refuse it."""

    do: Callable[[], Any]
    want: int


def forked(run: Callable[[], int]) -> int:
    """Exit code of `run` in a forked process; negative for the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = _BROKEN
        try:
            code = run()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def errno_of(do: Callable[[], Any]) -> int:
    """0 when it could be done, else why not."""
    try:
        do()
    except OSError as error:
        return error.errno or _BROKEN
    return 0


def possible(acts: Sequence[Act]) -> list[Act]:
    """Those a bare process can do."""
    mask = forked(lambda: sum((errno_of(act.do) == 0) << i for i, act in enumerate(acts)))
    return [act for i, act in enumerate(acts) if mask >= 0 and mask >> i & 1]


def denied(acts: Sequence[Act], put_up: Callable[[], Any]) -> str:
    """'' when `put_up` alone makes every act that is otherwise possible fail with its errno; else what was wrong."""
    left = possible(acts)
    if not left:
        return "nothing to prove it by"

    def run() -> int:
        put_up()
        return sum((errno_of(act.do) == act.want) << i for i, act in enumerate(left))

    got = forked(run)
    return "" if got == (1 << len(left)) - 1 else f"acts denied as they must be: {got:b} of {(1 << len(left)) - 1:b}"


def _fork_once() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _write_a_byte() -> None:
    os.write(os.memfd_create("probe"), b"x")


def _many_descriptors() -> None:
    for _ in range(2 * child.NOFILE):
        os.dup(0)


def _map_much() -> None:
    __import__("mmap").mmap(-1, 192 << 20)  # address space, not memory: nothing is touched


def _ptrace() -> None:
    _libc.ptrace(0, 0, 0, 0)


def seccomp(*stages: bytes) -> str:
    """Only the filter, in its stages: no socket, no fork, no memfd; a call of the deadly kind ends the process with SIGSYS."""
    def put_up() -> None:
        kernel.prctl(kernel.NO_NEW_PRIVS, 1)
        for stage in stages:
            kernel.install_filter(stage)

    acts = [Act(lambda: socket.socket(socket.AF_UNIX), errno.EPERM), Act(_fork_once, errno.EPERM),
            Act(lambda: os.memfd_create("probe"), errno.EPERM)]
    trouble = denied(acts, put_up)
    if trouble:
        return trouble

    def deadly() -> int:
        put_up()
        _ptrace()
        return 0

    got = forked(deadly)
    return "" if got == -signal.SIGSYS else f"ptrace ended with {got} where SIGSYS is due"


def landlock(rules: kernel.Landlock, canary: str, zygote: int) -> str:
    """Only Landlock: no file outside the rules, no TCP port (ABI 4), no signal to the zygote (ABI 6)."""
    def put_up() -> None:
        kernel.prctl(kernel.NO_NEW_PRIVS, 1)
        rules.enforce()

    acts = [Act(lambda: os.close(os.open(canary, os.O_RDONLY)), errno.EACCES), Act(lambda: os.listdir("/"), errno.EACCES)]
    if rules.abi >= 4:
        acts.append(Act(lambda: socket.socket(socket.AF_INET).bind(("0.0.0.0", 0)), errno.EACCES))
    if rules.abi >= 6:
        acts.append(Act(lambda: os.kill(zygote, 0), errno.EPERM))
    return denied(acts, put_up)


def process_namespace(enter: Callable[[], int]) -> str:
    """Only a process namespace: a process that anyone here may signal does not exist in there. `enter` forks into a new one."""
    awake, ours = os.pipe()
    victim = os.fork()
    if victim == 0:
        os.close(ours)
        os.read(awake, 1)
        os._exit(0)
    try:
        if forked(lambda: errno_of(lambda: os.kill(victim, 0))) != 0:
            return "nothing to prove it by"
        pid = enter()
        if pid == 0:
            os._exit(errno_of(lambda: os.kill(victim, 0)) if os.getpid() == 1 else _BROKEN)
        got = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return "" if got == errno.ESRCH else f"a process outside answered {got}"
    finally:
        os.close(ours)
        os.close(awake)
        os.waitpid(victim, 0)


def capabilities(jail: child.Jail) -> str:
    """Only their absence: what this process may do as its namespace's master, it may not without. Nothing to prove where it has
    none to drop."""
    if kernel.caps() == jail.keep_caps:
        return ""
    name = socket.gethostname()
    return denied([Act(lambda: socket.sethostname(name), errno.EPERM)], lambda: kernel.set_caps(jail.keep_caps))


def limits(jail: child.Jail) -> str:
    """Only the resource limits: memory, file size, descriptors."""
    acts = [Act(_map_much, errno.ENOMEM), Act(_write_a_byte, errno.EFBIG), Act(_many_descriptors, errno.EMFILE)]
    return denied(acts, lambda: child.limit(jail, 1.0, 64))


def fork_limit(jail: child.Jail) -> str:
    """Only the limit on processes."""
    return denied([Act(_fork_once, errno.EAGAIN)], lambda: child.limit(jail, 1.0, 64))


def honest(jail: child.Jail, base: bytes) -> str:
    """All layers together leave an honest program its standard library, and no_new_privs is on."""
    def run() -> int:
        child.restrict(jail)
        child.limit(jail, 2.0, 128)
        no_new_privs = kernel.prctl(kernel.GET_NO_NEW_PRIVS)
        for stage in (base, jail.filter):
            if stage:
                kernel.install_filter(stage)
        for name in ("textwrap", "array") if jail.files else ():
            __import__(name)
        return 0 if no_new_privs == 1 else 1

    got = forked(run)
    return "" if got == 0 else f"a sealed process that imports from the standard library ended with {got}"


class Outside:
    """What a process can reach before it enters namespaces: a file, an abstract socket, a shared memory segment that ends with it."""

    def __init__(self, path: str) -> None:
        self.path, self.listener = path, socket.socket(socket.AF_UNIX)
        self.listener.bind(b"\0dormouse-probe-" + os.urandom(8).hex().encode())
        self.listener.listen(2)
        self.segment = _libc.shmget(0, 4096, 0o600)
        self.mapped = _libc.shmat(self.segment, None, 0)
        _libc.shmctl(self.segment, 0, None)  # removed once nobody has it mapped

    def reach(self) -> tuple[int, int, int]:
        """errno of each: reading the file, connecting to the socket, asking about the segment."""
        with socket.socket(socket.AF_UNIX) as caller:
            return (errno_of(lambda: os.close(os.open(self.path, os.O_RDONLY))),
                    errno_of(lambda: caller.connect(self.listener.getsockname())), errno_of(self._ask))

    def _ask(self) -> None:
        if _libc.shmctl(self.segment, 2, ctypes.create_string_buffer(256)) < 0:
            raise OSError(ctypes.get_errno(), "shmctl")

    def close(self) -> None:
        self.listener.close()
        _libc.shmdt(ctypes.c_void_p(self.mapped))


def namespaces(before: tuple[int, int, int], after: tuple[int, int, int], uid: int) -> dict[str, str]:
    """Mount, net, ipc and user namespace: what was within reach is not; an id that is not mapped cannot be taken; the root is read-only."""
    wants = (("mountns", errno.ENOENT), ("netns", errno.ECONNREFUSED), ("ipcns", errno.EINVAL))
    told = {name: "" if (was, now) == (0, want) else f"reach was {was} and is {now}"
            for (name, want), was, now in zip(wants, before, after, strict=True)}
    got = forked(lambda: errno_of(lambda: os.setresuid(uid + 1, uid + 1, uid + 1)))
    told["userns"] = "" if got == errno.EINVAL else f"taking an id outside the map gave {got}"
    got = forked(lambda: errno_of(lambda: os.mkdir("/probe")))
    told["mountns"] = told["mountns"] or ("" if got == errno.EROFS else f"writing to the root gave {got}")
    return told


def prove(jail: child.Jail, base: bytes, canary: str, enter: Callable[[], int]) -> dict[str, str]:
    """Layer -> '' proven, or what was seen instead; only layers that are up. base: the filter's first stage, which the zygote puts on
    itself afterwards."""
    told = {"rlimits": limits(replace(jail, landlock=None, filter=b"")), "rlimit_nproc": fork_limit(jail), "no_caps": capabilities(jail)}
    if jail.filter:
        told["seccomp"] = seccomp(base, jail.filter)
    if jail.landlock:
        told["landlock"] = landlock(jail.landlock, canary, os.getpid())
    if jail.pidns:
        told["pidns"] = process_namespace(enter)
    told["honest"] = honest(replace(jail, pidns=False, parent=os.getpid()), base)
    return told
