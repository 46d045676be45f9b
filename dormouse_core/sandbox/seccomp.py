"""Which system calls a candidate may make, and the BPF program that says so to the kernel.

An allow-list: what is not named gets EPERM, so an honest program on a newer libc sees an exception, not a death. KILL is for
calls no judged program has a use for (tracing, namespaces, io_uring, bpf): the parent sees SIGSYS. The program is a binary
tree over ranges of numbers: the kernel runs it for every number when it is installed, and a chain would cost five times as much.
Not here: installing it (kernel.py), proving it (probes.py); tests run it in an interpreter over every number.
"""

import struct
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from dormouse_core.sandbox.syscalls import ARCHES, X32_BIT, Arch

EPERM, EACCES, ENOTTY, ENOSYS = 1, 13, 25, 38
ALLOW, KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
DENY = _ERRNO | EPERM
_LD, _JEQ, _JGE, _JA, _AND, _RET = 0x20, 0x15, 0x35, 0x05, 0x54, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets into struct seccomp_data


class Profile(StrEnum):
    """What kind of program the filter is for."""

    SINGLE = "single"  # one process, no threads, files read only
    NO_FILES = "no_files"  # as single, and no file may be opened at all: where nothing else limits paths
    MULTI = "multi"  # fork, exec, pipes, writing: behind namespaces and Landlock


class Test(NamedTuple):
    """One question about an argument word (word 2n is argument n's low half, 2n+1 its high half) and the action of a yes: is it one
    of `values`, or has it any bit of `mask`."""

    word: int
    action: int
    values: tuple[int, ...] = ()
    mask: int = 0


class Check(NamedTuple):
    """A call decided by its arguments: the first test that says yes decides, else `default`."""

    tests: tuple[Test, ...]
    default: int


Rule = int | Check

_HARMLESS = """
read readv pread64 preadv write writev close lseek fstat mmap mprotect munmap mremap madvise brk dup dup2 dup3
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending sigaltstack futex getrandom exit exit_group restart_syscall
clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times alarm getitimer setitimer
poll ppoll select pselect6 sched_yield sched_getaffinity getcpu uname getrusage getrlimit
getpid gettid getppid getpgrp getpgid getsid getuid geteuid getgid getegid getgroups getresuid getresgid
"""
_LOOKING = "stat lstat newfstatat statx access faccessat readlink readlinkat getcwd getdents getdents64"
_NEVER = """
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_open pidfd_getfd pidfd_send_signal kcmp
io_uring_setup io_uring_enter io_uring_register userfaultfd perf_event_open bpf seccomp modify_ldt personality
unshare setns mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr
statmount listmount name_to_handle_at open_by_handle_at fanotify_init fanotify_mark lookup_dcookie
keyctl add_key request_key kexec_load kexec_file_load create_module init_module finit_module delete_module iopl ioperm
swapon swapoff reboot acct quotactl quotactl_fd settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname
vhangup syslog nfsservctl _sysctl uselib uretprobe uprobe
"""
_ABSENT = "clone3 openat2 faccessat2 fchmodat2 epoll_pwait2"
"""Answered ENOSYS, upon which libc takes the older call."""
_MULTI = """
fork vfork execve execveat wait4 waitid kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend rt_sigtimedwait pause
pipe pipe2 socketpair bind listen accept accept4 connect sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown
getsockname getpeername setsockopt getsockopt open openat creat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2
link linkat symlink symlinkat chmod fchmod fchmodat chown fchown lchown fchownat truncate ftruncate fallocate fsync fdatasync
sync_file_range flock fcntl umask chdir fchdir statfs fstatfs utime utimes futimesat utimensat sendfile splice tee
copy_file_range pwrite64 pwritev preadv2 pwritev2 fadvise64 readahead getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime
signalfd signalfd4 inotify_init inotify_init1 inotify_add_watch inotify_rm_watch memfd_create
timer_create timer_settime timer_gettime timer_getoverrun timer_delete
setpgid setsid getpriority setpriority sched_setaffinity sched_getscheduler sched_getparam sched_get_priority_max
sched_get_priority_min sched_rr_get_interval sched_getattr prlimit64 setrlimit sysinfo prctl arch_prctl capget
set_tid_address set_robust_list get_robust_list rseq membarrier close_range msync mincore mlock munlock mlock2
get_mempolicy shmget shmat shmctl shmdt semget semop semctl semtimedop
"""
_ZYGOTE = """
clone unshare setns pidfd_open sendto sendmsg recvmsg wait4 kill capset prctl prlimit64 landlock_restrict_self setsid close_range
"""
"""What a zygote needs beyond what its children may: to fork them, seal them, end them and report."""
_WRITE_FLAGS = 0o3 | 0o100 | 0o1000 | 0o2000 | 0o20000000  # access mode, CREAT, TRUNC, APPEND, TMPFILE: the same on both
_NEW_NAMESPACES = 0x7E020080
_TTY_QUESTIONS = (0x5401, 0x5413)  # TCGETS, TIOCGWINSZ: ENOTTY is what a file answers
_CLOEXEC_IOCTLS, _FD_COMMANDS = (0x5450, 0x5451), (0, 1, 2, 3, 1030)  # FIONCLEX FIOCLEX; DUPFD GETFD SETFD GETFL DUPFD_CLOEXEC
_TTY_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_AF_UNIX, _WORD = 1, 0xFFFFFFFF


def rules(profile: Profile) -> dict[str, Rule]:
    """What each named call gets; every other call gets EPERM."""
    chosen: dict[str, Rule] = _each(_NEVER, KILL) | _each(_ABSENT, _ERRNO | ENOSYS) | _each(_HARMLESS, ALLOW)
    if profile is Profile.MULTI:
        chosen |= _each(_LOOKING + _MULTI, ALLOW)
        return chosen | {
            "ioctl": Check((Test(2, DENY, _TTY_INJECTION),), ALLOW),
            "clone": Check((Test(0, DENY, mask=_NEW_NAMESPACES),), ALLOW),
            "socket": Check((Test(0, ALLOW, (_AF_UNIX,)),), DENY),
        }
    chosen |= {
        "fcntl": Check((Test(2, ALLOW, _FD_COMMANDS),), DENY),
        "ioctl": Check((Test(2, ALLOW, _CLOEXEC_IOCTLS), Test(2, _ERRNO | ENOTTY, _TTY_QUESTIONS)), DENY),
        # reading one's own limits: pid 0, no new limit
        "prlimit64": Check((Test(0, DENY, mask=_WORD), Test(4, DENY, mask=_WORD), Test(5, DENY, mask=_WORD)), ALLOW),
    }
    if profile is Profile.SINGLE:
        refused = _ERRNO | EACCES
        chosen |= _each(_LOOKING, ALLOW)
        chosen |= {name: Check((Test(word, refused, mask=_WRITE_FLAGS),), ALLOW) for name, word in (("open", 2), ("openat", 4))}
    return chosen


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


@cache
def program(machine: str, profile: Profile) -> bytes:
    """The filter as `struct sock_filter` records of 8 bytes. Raises KeyError for an unknown machine."""
    return _assemble(machine, rules(profile), DENY)


@cache
def stages(machine: str, profile: Profile) -> tuple[bytes, bytes]:
    """The same filter in two: one that the zygote lives under and its children inherit, and the short rest that each child adds. The
    stricter answer counts, so both together are `program`. The kernel compiles a filter when it is installed; this way it
    compiles forty instructions a candidate, not three hundred."""
    chosen = rules(profile)
    needed = _ZYGOTE.split()
    return (_assemble(machine, chosen | dict.fromkeys(needed, ALLOW), DENY),
            _assemble(machine, {name: chosen.get(name, DENY) for name in needed}, ALLOW))


def _assemble(machine: str, chosen: Mapping[str, Rule], default: int) -> bytes:
    arch = ARCHES[machine]
    head = [_op(_LD, _ARCH), _op(_JEQ, arch.audit, 1, 0), _op(_RET, KILL), _op(_LD, _NR)]
    if machine == "x86_64":
        head += [_op(_JGE, X32_BIT, 0, 1), _op(_RET, KILL)]
    return b"".join(head + _tree(_ranges(arch, chosen, default)))


def _ranges(arch: Arch, chosen: Mapping[str, Rule], default: int) -> list[tuple[int, Rule]]:
    """(first number, rule) of every run of numbers with one rule, from 0 up; the last run is open and gets the default."""
    by_number = {arch.number[name]: rule for name, rule in chosen.items() if name in arch.number}
    runs: list[tuple[int, Rule]] = []
    for number in range(max(arch.number.values()) + 2):
        rule = by_number.get(number, default)
        if not runs or runs[-1][1] != rule:
            runs.append((number, rule))
    return runs


def _tree(runs: list[tuple[int, Rule]]) -> list[bytes]:
    """Instructions that find the run of the number in the accumulator, and return its action."""
    if len(runs) == 1:
        return _leaf(runs[0][1])
    middle = len(runs) // 2
    below, above = _tree(runs[:middle]), _tree(runs[middle:])
    if len(below) <= 255:
        return [_op(_JGE, runs[middle][0], len(below), 0), *below, *above]
    return [_op(_JGE, runs[middle][0], 0, 1), _op(_JA, len(below)), *below, *above]  # a conditional jump reaches 255 instructions


def _leaf(rule: Rule) -> list[bytes]:
    if isinstance(rule, int):
        return [_op(_RET, rule)]
    code: list[bytes] = []
    for test in rule.tests:
        code.append(_op(_LD, _ARGS + 4 * test.word))
        if test.mask:
            code += [_op(_AND, test.mask), _op(_JEQ, 0, 1, 0), _op(_RET, test.action)]
        for value in test.values:
            code += [_op(_JEQ, value, 0, 1), _op(_RET, test.action)]
    return [*code, _op(_RET, rule.default)]


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, k)
