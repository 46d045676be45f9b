"""The kernel calls the jail is made of, by ctypes: nothing but the standard library, nothing decided here.

Every function raises OSError with the call's name when the kernel refuses. The zygote loads this file before it has any task.
Not here: which paths, calls and limits (zygote.py, seccomp.py), the proof that they hold (probes.py).
"""

import contextlib
import ctypes
import os
import resource
import struct
from collections.abc import Iterable, Sequence

PDEATHSIG, DUMPABLE, KEEPCAPS, SET_SECCOMP, NO_NEW_PRIVS, GET_NO_NEW_PRIVS, SUBREAPER = 1, 4, 8, 22, 38, 39, 36
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
DAC_READ_SEARCH = 1 << 2
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE, DETACH = 1, 2, 4, 32, 4096, 16384, 1 << 18, 2
_SECCOMP_MODE_FILTER = 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
READ_FILE, READ_DIR, EXECUTE, WRITE_FILE = 1 << 2, 1 << 3, 1 << 0, 1 << 1
WRITE_ALL = WRITE_FILE | sum(1 << bit for bit in range(4, 15))
"""Every Landlock right that changes files up to ABI 3: write, remove, make, refer, truncate."""

_CAP_HEADER = struct.pack("=Ii", 0x20080522, 0)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
for _name in ("capset", "prctl", "syscall", "unshare", "setns"):
    getattr(_libc, _name)  # found once, here: a fork would look each up anew and touch seventy pages for it


def _check(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int = 0) -> int:
    return _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def set_caps(mask: int) -> None:
    """Permitted and effective capabilities become `mask`, inheritable ones none."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    _check(_libc.capset(_CAP_HEADER, struct.pack("=6I", low, low, 0, high, high, 0)), "capset")


def caps() -> int:
    """Effective capabilities of this process."""
    data = ctypes.create_string_buffer(24)
    _check(_libc.capget(_CAP_HEADER, data), "capget")
    low, *_, high, _, _ = struct.unpack("=6I", data.raw)
    return int(low | high << 32)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    _check(_libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()), f"mount {kind or 'bind'}")


def bind_read_only(source: str, target: str) -> None:
    """`target` shows what `source` holds, and cannot be written through. Flags the source is mounted with stay: a user namespace may
    not drop them."""
    mount(source, target, flags=BIND)
    kept = os.statvfs(target).f_flag & (NOSUID | NODEV | 8 | 1024 | 2048)  # the same bits as NOEXEC, NOATIME, NODIRATIME have for mount
    mount("none", target, flags=BIND | REMOUNT | RDONLY | NOSUID | NODEV | kept)


def detach(target: str) -> None:
    _check(_libc.umount2(target.encode(), DETACH), "umount2")


def pivot_into(folder: str) -> None:
    """`folder` (a mount) becomes the root; what was the root is gone."""
    os.chdir(folder)
    _check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    detach(".")
    os.chdir("/")


def install_filter(program: bytes) -> None:
    """Seccomp: `program` holds struct sock_filter records. Needs no_new_privs."""
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(SET_SECCOMP, _SECCOMP_MODE_FILTER, head, 0, 0), "seccomp")


class Landlock:
    """A ruleset made once and put in force by every child, whatever this kernel's ABI can restrict of files, TCP and signals."""

    def __init__(self, rules: Iterable[tuple[str, int]]) -> None:
        """rules: (path, rights beneath it). Raises OSError where the kernel has no Landlock."""
        self.abi = _check(_libc.syscall(_CREATE_RULESET, None, 0, 1), "landlock")
        files = (1 << 13) - 1
        for abi, right in ((2, 1 << 13), (3, 1 << 14), (5, 1 << 15)):
            files |= right if self.abi >= abi else 0
        attributes = struct.pack("QQQ", files, 3 if self.abi >= 4 else 0, 3 if self.abi >= 6 else 0)
        size = 8 if self.abi < 4 else 16 if self.abi < 6 else 24
        self.fd = _check(_libc.syscall(_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
        for path, rights in rules:
            self._allow(path, rights & files)

    def _allow(self, path: str, rights: int) -> None:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= EXECUTE | READ_FILE | WRITE_FILE | 1 << 14 | 1 << 15
            _check(_libc.syscall(_ADD_RULE, self.fd, 1, struct.pack("=Qi", rights, fd), 0), "landlock_add_rule")
        finally:
            os.close(fd)

    def enforce(self) -> None:
        """Needs no_new_privs (or CAP_SYS_ADMIN)."""
        _check(_libc.syscall(_RESTRICT_SELF, self.fd, 0), "landlock_restrict_self")


def become_nobody(keep: int = 0) -> int:
    """Root only: take a user id nobody else has, keeping the capabilities in `keep`. Returns the id."""
    uid = 20000 + os.getpid() % 40000
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    if keep:
        prctl(KEEPCAPS, 1)
    os.setresuid(uid, uid, uid)
    set_caps(keep)
    return uid


def map_self(own: int, uid: int, gid: int) -> None:
    """In a new user namespace: these ids stand for themselves, and there are no others. own: this process's folder under /proc."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(os.open(name, os.O_WRONLY, dir_fd=own), "w") as out:
            out.write(text)


def limit(rows: Sequence[tuple[int, int]]) -> None:
    """(resource, value), soft and hard alike, never above what this process already has to live with."""
    for which, value in rows:
        resource.setrlimit(which, (value, value))


def close_all_but(highest: int) -> None:
    """Close every descriptor above `highest`."""
    with contextlib.suppress(OSError):
        os.closerange(highest + 1, 65536)
