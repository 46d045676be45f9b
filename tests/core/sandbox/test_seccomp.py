"""The filter, run in an interpreter of its language over every system call number of both architectures."""

import ctypes
import ctypes.util
import os
import struct
import subprocess
import sys

import pytest

from dormouse_core.sandbox.seccomp import ALLOW, DENY, KILL, Check, Profile, program, rules, stages
from dormouse_core.sandbox.syscalls import ARCHES, X32_BIT

ERRNO = 0x00050000
EPERM, EACCES, ENOTTY, ENOSYS = (ERRNO | n for n in (1, 13, 25, 38))
EVERY = [*range(1024), 2**31 - 1, 2**31, 2**32 - 1, *(X32_BIT + n for n in range(600)), 10_000]


def interpret(code: bytes, arch: int, number: int, args: tuple[int, ...] = ()) -> int:
    """What the kernel would answer: classic BPF over struct seccomp_data, no instruction beyond those that seccomp permits."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *(args + (0,) * 6)[:6])
    accumulator, at = 0, 0
    for _ in range(10_000):
        op, if_true, if_false, k = struct.unpack_from("<HBBI", code, 8 * at)
        at += 1
        if op == 0x20:
            assert k % 4 == 0 and k + 4 <= len(data)
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif op in (0x15, 0x35, 0x25, 0x45):
            yes = {0x15: accumulator == k, 0x35: accumulator >= k, 0x25: accumulator > k, 0x45: accumulator & k != 0}[op]
            at += if_true if yes else if_false
        elif op == 0x05:
            at += k
        elif op == 0x54:
            accumulator &= k
        elif op == 0x06:
            return k
        else:
            raise AssertionError(f"instruction {op:#x}")
    raise AssertionError("the program does not end")


def answer(machine: str, profile: Profile, number: int, *args: int, audit: int | None = None) -> int:
    arch = ARCHES[machine].audit if audit is None else audit
    return interpret(program(machine, profile), arch, number, args)


@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("profile", Profile)
def test_every_number_gets_what_its_name_says_and_unknown_ones_are_denied(machine: str, profile: Profile) -> None:
    names = {number: name for name, number in ARCHES[machine].number.items()}
    chosen = rules(profile)
    code = program(machine, profile)
    assert len(code) // 8 < 4096
    for number in EVERY:
        got = interpret(code, ARCHES[machine].audit, number)
        if machine == "x86_64" and number >= X32_BIT:
            assert got == KILL
            continue
        rule = chosen.get(names.get(number, ""), DENY)
        if not isinstance(rule, Check):
            assert got == rule, names.get(number, number)
        else:
            assert got in {rule.default, *(test.action for test in rule.tests)}, names[number]


@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("profile", Profile)
def test_every_number_of_any_other_architecture_is_deadly(machine: str, profile: Profile) -> None:
    others = {0x40000003, 0x40000028, 0, 0xFFFFFFFF, *(arch.audit for arch in ARCHES.values())} - {ARCHES[machine].audit}
    for audit in others:
        assert {answer(machine, profile, number, audit=audit) for number in range(0, 600, 7)} == {KILL}


@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("profile", [Profile.SINGLE, Profile.NO_FILES])
@pytest.mark.parametrize("args", [(), (1, 1, 1, 1, 1, 1), (0, 0x5401, 0o100), (0, 3, 0, 1)])
def test_the_two_stages_together_are_the_filter(machine: str, profile: Profile, args: tuple[int, ...]) -> None:
    base, rest = stages(machine, profile)
    assert len(rest) < len(base) / 3
    for number in EVERY:
        answers = [interpret(code, ARCHES[machine].audit, number, args) for code in (base, rest)]
        strictest = min(answers, key=lambda action: action - (1 << 32) if action >> 31 else action)  # as the kernel orders them: signed
        assert strictest == answer(machine, profile, number, *args), number
    for needed in ("clone", "setns", "wait4", "capset"):
        assert interpret(base, ARCHES[machine].audit, ARCHES[machine].number[needed]) == ALLOW


ALLOWED_SINGLE = [
    "read", "write", "close", "exit_group", "mmap", "munmap", "brk", "futex", "getrandom", "clock_gettime", "rt_sigreturn", "lseek",
    "pread64", "getpid", "getdents64", "newfstatat", "readlinkat"]
DENIED_SINGLE = [
    "socket", "connect", "bind", "sendto", "clone", "execve", "kill", "tkill", "tgkill", "memfd_create", "pipe2", "setrlimit", "chdir",
    "unlinkat", "mkdirat", "renameat", "linkat", "symlinkat", "fchmodat", "fchownat", "truncate", "ftruncate", "fallocate", "shmget",
    "msgget", "semget", "mq_open", "inotify_init1", "setsid", "prctl", "landlock_restrict_self", "sched_setaffinity", "setpriority",
    "capset", "setuid", "mlock"]
DEADLY = [
    "ptrace", "process_vm_readv", "io_uring_setup", "unshare", "setns", "mount", "bpf", "userfaultfd", "perf_event_open", "keyctl",
    "init_module", "open_by_handle_at"]


@pytest.mark.parametrize("machine", ARCHES)
def test_named_calls_of_a_candidate(machine: str) -> None:
    number = ARCHES[machine].number
    for profile in (Profile.SINGLE, Profile.NO_FILES):
        looks = () if profile is Profile.SINGLE else ("newfstatat", "readlinkat", "getdents64")
        assert {n: answer(machine, profile, number[n]) for n in ALLOWED_SINGLE if n not in looks} == dict.fromkeys(
            (n for n in ALLOWED_SINGLE if n not in looks), ALLOW)
        assert {n: answer(machine, profile, number[n]) for n in (*DENIED_SINGLE, *looks)} == dict.fromkeys((*DENIED_SINGLE, *looks), EPERM)
        assert {n: answer(machine, profile, number[n]) for n in DEADLY} == dict.fromkeys(DEADLY, KILL)
        assert answer(machine, profile, number["clone3"]) == ENOSYS
    if machine == "x86_64":
        assert {answer(machine, Profile.SINGLE, number[n]) for n in ("fork", "vfork", "creat", "mkdir", "unlink", "rename")} == {EPERM}


@pytest.mark.parametrize("machine", ARCHES)
def test_arguments_decide_where_a_call_can_be_used_both_ways(machine: str) -> None:
    number = ARCHES[machine].number

    def single(name: str, *args: int) -> int:
        return answer(machine, Profile.SINGLE, number[name], *args)

    read_only = (os.O_RDONLY, os.O_RDONLY | os.O_CLOEXEC, os.O_RDONLY | os.O_NONBLOCK, os.O_PATH)
    writing = (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_CREAT, os.O_RDONLY | os.O_TRUNC, os.O_APPEND, 0o20200000 | os.O_RDWR, 3)
    assert {single("openat", 0, 0, flags) for flags in read_only} == {ALLOW}
    assert {single("openat", 0, 0, flags) for flags in writing} == {EACCES}
    assert answer(machine, Profile.NO_FILES, number["openat"], 0, 0, os.O_RDONLY) == EPERM
    assert {single("fcntl", 0, cmd) for cmd in (0, 1, 2, 3, 1030)} == {ALLOW}
    assert {single("fcntl", 0, cmd) for cmd in (4, 5, 6, 7, 8, 9, 10, 1024, 1031, 1033, 2**31)} == {EPERM}
    assert single("ioctl", 0, 0x5451) == ALLOW and single("ioctl", 0, 0x5401) == ENOTTY and single("ioctl", 0, 0x5412) == EPERM
    assert single("prlimit64", 0, 7, 0, 1) == ALLOW
    assert {single("prlimit64", 1, 7, 0, 1), single("prlimit64", 0, 7, 1, 1), single("prlimit64", 0, 7, 1 << 32, 1)} == {EPERM}


@pytest.mark.parametrize("machine", ARCHES)
def test_several_processes_may_fork_and_exec_and_nothing_of_the_deadly_kind(machine: str) -> None:
    number = ARCHES[machine].number

    def multi(name: str, *args: int) -> int:
        return answer(machine, Profile.MULTI, number[name], *args)

    assert {multi(n) for n in ("execve", "wait4", "pipe2", "kill", "unlinkat", "renameat", "mkdirat")} == {ALLOW}
    assert multi("clone", 0x11) == ALLOW and multi("clone", 0x3D0F00) == ALLOW and multi("openat", 0, 0, os.O_RDWR | os.O_CREAT) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
        assert multi("clone", 0x11 | flag) == EPERM
    assert multi("socket", 1) == ALLOW and {multi("socket", family) for family in (0, 2, 10, 16, 17)} == {EPERM}
    assert multi("ioctl", 0, 0x5412) == EPERM and multi("ioctl", 0, 0x541C) == EPERM and multi("ioctl", 0, 0x5401) == ALLOW
    assert {multi(n) for n in DEADLY} == {KILL}


def test_a_boundary_that_is_off_by_one_is_seen() -> None:
    """The interpreter is no rubber stamp: moving any boundary of the tree by one number changes that number's answer."""
    code = program("x86_64", Profile.SINGLE)
    arch = ARCHES["x86_64"].audit
    seen = 0
    for at in range(6 * 8, len(code), 8):
        op, if_true, if_false, k = struct.unpack_from("<HBBI", code, at)
        if op == 0x35 and interpret(code, arch, k) != interpret(code, arch, k - 1):
            broken = code[:at] + struct.pack("<HBBI", op, if_true, if_false, k + 1) + code[at + 8 :]
            assert interpret(broken, arch, k) != interpret(code, arch, k), f"instruction {at // 8}"
            seen += 1
    assert seen > 40


AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


@pytest.mark.skipif(ctypes.util.find_library("seccomp") is None, reason="libseccomp is not installed: no second opinion on the numbers")
@pytest.mark.parametrize("machine", ARCHES)
def test_numbers_agree_with_libseccomp(machine: str) -> None:
    lib = ctypes.CDLL(ctypes.util.find_library("seccomp"))
    resolve = lib.seccomp_syscall_resolve_name_arch
    known = {name: resolve(ctypes.c_uint32(AUDIT[machine]), name.encode()) for name in ARCHES[machine].number}
    assert sum(number >= 0 for number in known.values()) > 300
    assert not {name: number for name, number in known.items() if number >= 0 and number != ARCHES[machine].number[name]}
    assert ARCHES[machine].audit == AUDIT[machine]


def test_every_name_in_the_rules_is_a_system_call_of_some_architecture() -> None:
    named = set().union(*(arch.number for arch in ARCHES.values()))
    for profile in Profile:
        assert not set(rules(profile)) - named


@pytest.mark.skipif(os.uname().machine not in ARCHES, reason="no table for this machine")
def test_the_kernel_answers_as_the_interpreter_does() -> None:
    """A sealed process makes harmless calls of every kind and prints the errno of each."""
    machine = os.uname().machine
    number = ARCHES[machine].number
    names = [n for n in ("socket", "memfd_create", "clone3", "getpid", "setsid", "sched_yield", "pipe2", "mlock", "landlock_create_ruleset")
             if n in number]
    script = f"""
import ctypes, sys
sys.path.insert(0, {os.getcwd()!r})
from dormouse_core.sandbox import kernel
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
kernel.prctl(kernel.NO_NEW_PRIVS, 1)
kernel.install_filter(bytes.fromhex({program(machine, Profile.SINGLE).hex()!r}))
print([(libc.syscall(n, 0, 0, 0, 0, 0, 0) < 0) * ctypes.get_errno() for n in {[number[n] for n in names]!r}])
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == str([0 if (got := answer(machine, Profile.SINGLE, number[n])) == ALLOW else got & 0xFFFF for n in names])
