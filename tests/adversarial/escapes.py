"""Programs that try to leave the jail: each returns the right sum exactly when it reached what it must not reach, so a pass is a breach.

`escapes(around)` fills in what stands around the jail while they run (`Surroundings`): files, listeners, a process of the same user.
The class and decider are those of the full jail on this architecture; with layers missing others may refuse, and no program may
pass, change a file, reach a listener or touch a process.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dormouse_core.sandbox.syscalls import ARCHES
from dormouse_core.verifiers.verdict import VerdictClass as V
from tests.adversarial.hostile import Hostile

REFUSED, DEADLY, GONE, WRONG = (V.VIOLATION, "exec.permission"), (V.VIOLATION, "exec.seccomp"), (V.FAIL, "exec.exception"), (
    V.FAIL, "exec.compare")

_CALL = """import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *args):
    got = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(x) if isinstance(x, int) else x for x in args])
    if got < 0:
        raise OSError(ctypes.get_errno(), 'refused')
    return got
"""


@dataclass(frozen=True)
class Surroundings:
    """What a program might reach from a jail that leaks."""

    folder: Path
    tcp: socket.socket
    udp: socket.socket
    abstract: socket.socket
    path: socket.socket
    victim: int

    def harm(self) -> list[str]:
        """What was touched; empty when nothing was."""
        harmed = [name for name, want in (("canary", "untouched"), ("secret", "s3cret")) if (self.folder / name).read_text() != want]
        harmed += [f"new file {p.name}" for p in self.folder.iterdir() if p.name not in ("canary", "secret", "socket")]
        for name in ("tcp", "abstract", "path"):
            with contextlib.suppress(BlockingIOError):
                getattr(self, name).accept()
                harmed.append(f"a connection on {name}")
        with contextlib.suppress(BlockingIOError):
            self.udp.recv(100)
            harmed.append("a datagram")
        try:
            os.kill(self.victim, 0)
            state = Path(f"/proc/{self.victim}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "gone"
        return harmed + ([f"the other process is {state}"] if state not in "SR" else [])


@contextmanager
def surroundings() -> Iterator[Surroundings]:
    """Files anybody may write, listeners, and a process of this user, for as long as the context is open."""
    with tempfile.TemporaryDirectory(prefix="around-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o777)
        for file, text in (("canary", "untouched"), ("secret", "s3cret")):
            (folder / file).write_text(text)
            (folder / file).chmod(0o666)
        places: dict[str, tuple[int, int, object]] = {
            "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)), "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0around-{os.getpid()}"),
            "path": (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket"))}
        listeners = {}
        for kind, (family, style, address) in places.items():
            listeners[kind] = stack.enter_context(socket.socket(family, style))
            listeners[kind].bind(address)  # type: ignore[arg-type]
            listeners[kind].setblocking(False)
            if kind != "udp":
                listeners[kind].listen(8)
        (folder / "socket").chmod(0o777)
        victim = subprocess.Popen(["sleep", "3600"])
        try:
            yield Surroundings(folder, victim=victim.pid, **listeners)
        finally:
            victim.kill()
            victim.wait()


def attempt(body: str, want: tuple[V, str], prelude: str = "") -> Hostile:
    """A program that answers rightly if `body` runs through."""
    return Hostile(prelude + "def f(a, b):\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "    return a + b\n", *want)


def inner(program: Hostile) -> Hostile:
    """For what the filter forbids and what would do no harm inside namespaces: the same program with a wrong answer at its end."""
    return program._replace(source=program.source.removesuffix("    return a + b\n") + "    return 'reached'\n")


_INNER = frozenset((
    "read_memory_of_parent", "write_memory_of_victim", "call_by_the_old_gate", "raise_limits",
    "raw_netlink", "socket_pair", "canary_of_the_probes", "kill_parent", "kill_group", "ptrace_me", "priority_of_everyone",
    "pipe_to_itself", "user_namespace", "io_uring", "perf", "userfault", "keyring", "personality", "another_landlock",
    "process_control", "shared_memory_segment", "message_queue", "semaphores", "posix_queue", "watch_files"))


def escapes(around: Surroundings) -> dict[str, Hostile]:
    machine = os.uname().machine
    call = ARCHES[machine].number
    folder, port = str(around.folder), around.tcp.getsockname()[1]

    def raw(name: str, *args: object, want: tuple[V, str] = REFUSED) -> Hostile:
        return attempt(f"call({call[name]}, {', '.join(map(str, args))})", want, _CALL)

    found = {
        # network
        "tcp": attempt(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)", REFUSED),
        "udp": attempt(f"import socket\nsocket.socket(2, 2).sendto(b'x', ('127.0.0.1', {around.udp.getsockname()[1]}))", REFUSED),
        "abstract_socket": attempt(f"import socket\nsocket.socket(1).connect({around.abstract.getsockname()!r})", REFUSED),
        "path_socket": attempt(f"import socket\nsocket.socket(1).connect({folder + '/socket'!r})", REFUSED),
        "socket_pair": attempt("import socket\nsocket.socketpair()", REFUSED),
        "raw_netlink": raw("socket", 16, 3, 0),
        # files: reading
        "read_secret": attempt(f"open({folder + '/secret'!r}).read()", GONE),
        "read_passwd": attempt("open('/etc/passwd').read()", GONE),
        "read_environment_of_parent": attempt("import os\nopen(f'/proc/{os.getppid()}/environ', 'rb').read()", GONE),
        "read_own_memory_map": attempt("open('/proc/self/maps').read()", GONE),
        "scan_process_table": attempt("import os\nos.listdir('/proc')", GONE),
        "read_home": attempt("import os\nhome = os.path.expanduser('~root')\nos.listdir(home)\nopen(home + '/.bashrc').read()", GONE),
        "read_installed_packages": attempt(
            "import os\nroom = os.path.dirname(os.__file__) + '/site-packages'\nopen(room + '/pip/__init__.py').read()", GONE),
        "import_the_verifier": attempt("import dormouse_core.verifiers.exec", GONE),
        "import_numpy": attempt("import numpy", GONE),
        "path_with_dots": attempt(
            f"import os\nopen(os.path.dirname(os.__file__) + '/../../../../../../../..{folder}/secret').read()", GONE),
        "open_by_handle": raw("open_by_handle_at", -100, "ctypes.create_string_buffer(64)", 0, want=DEADLY),
        "canary_of_the_probes": attempt("import os\nopen('/canary').read() or open('../canary').read()", REFUSED),
        "every_descriptor_read": attempt(
            "import os\ngot = b''\nfor fd in range(256):\n    try:\n        got += os.pread(fd, 9, 0)\n    except OSError:\n        pass\n"
            "if not got:\n    raise KeyError", GONE),
        # files: writing
        "overwrite_canary": attempt(f"open({folder + '/canary'!r}, 'w').write('x')", REFUSED),
        "append_canary": attempt(f"open({folder + '/canary'!r}, 'a').write('x')", REFUSED),
        "truncate_canary": attempt(f"import os\nos.truncate({folder + '/canary'!r}, 0)", REFUSED),
        "new_file": attempt(f"open({folder + '/new'!r}, 'w')", REFUSED),
        "unlink": attempt(f"import os\nos.unlink({folder + '/canary'!r})", REFUSED),
        "rename": attempt(f"import os\nos.rename({folder + '/canary'!r}, {folder + '/moved'!r})", REFUSED),
        "hard_link": attempt(f"import os\nos.link({folder + '/secret'!r}, 'x')", REFUSED),
        "symbolic_link": attempt(f"import os\nos.symlink({folder + '/secret'!r}, 'x')\nopen('x').read()", REFUSED),
        "make_folder": attempt(f"import os\nos.mkdir({folder + '/made'!r})", REFUSED),
        "chmod": attempt(f"import os\nos.chmod({folder + '/secret'!r}, 0o600)", REFUSED),
        "poison_bytecode": attempt(
            "import os\nwith open(os.path.dirname(os.__file__) + '/__pycache__/evil.pyc', 'wb') as out:\n    out.write(b'x')", REFUSED),
        "shared_memory_file": attempt("open('/dev/shm/x', 'w')", REFUSED),
        "temporary_file": attempt("import tempfile\ntempfile.NamedTemporaryFile().write(b'x')", (V.FAIL, "exec.exception")),
        "unnamed_file": attempt("import os\nos.open('/tmp', os.O_TMPFILE | os.O_RDWR)", REFUSED),
        "device": attempt("open('/dev/vda', 'rb').read(10)", GONE),
        "memory_file": attempt("import os\nos.write(os.memfd_create('x'), b'x' * 100)", REFUSED),
        # other processes
        "kill_victim": attempt(f"import os\nos.kill({around.victim}, 9)", REFUSED),
        "kill_everyone": attempt("import os\nos.kill(-1, 9)", REFUSED),
        "kill_parent": attempt("import os\nos.kill(os.getppid() or 1, 15)", REFUSED),
        "kill_group": attempt("import os\nos.killpg(0, 9)", REFUSED),
        "queue_signal": raw("rt_sigqueueinfo", around.victim, 9, 0),
        "signal_by_descriptor_owner": attempt(f"import fcntl\nfcntl.fcntl(4, fcntl.F_SETOWN, {around.victim})", REFUSED),
        "ptrace_victim": raw("ptrace", 16, around.victim, 0, 0, want=DEADLY),
        "ptrace_me": raw("ptrace", 0, 0, 0, 0, want=DEADLY),
        "read_memory_of_parent": raw("process_vm_readv", 1, 0, 0, 0, 0, 0, want=DEADLY),
        "write_memory_of_victim": raw("process_vm_writev", around.victim, 0, 0, 0, 0, 0, want=DEADLY),
        "descriptor_of_another": attempt(f"call({call['pidfd_open']}, {around.victim}, 0)", DEADLY, _CALL),
        "limits_of_another": raw("prlimit64", around.victim, 0, 0, "ctypes.create_string_buffer(16)"),
        "priority_of_everyone": raw("setpriority", 2, os.getuid(), 19),
        "affinity_of_victim": raw("sched_setaffinity", around.victim, 8, "ctypes.create_string_buffer(b'\\1' * 8)"),
        # more of itself
        "fork_raw": raw("clone", 17, 0, 0, 0, 0),
        "clone3": attempt(f"call({call['clone3']}, ctypes.create_string_buffer(88), 88)", GONE, _CALL),
        "thread_raw": raw("clone", 0x3D0F00, 0, 0, 0, 0),
        "daemon": attempt("import os\nif os.fork() == 0:\n    os.setsid()\n    os._exit(0)", REFUSED),
        "exec_shell": attempt("import os\nos.execv('/bin/sh', ['sh'])", REFUSED),
        "exec_itself": attempt("import os, sys\nos.execv(sys.executable or '/proc/self/exe', ['x'])", REFUSED),
        "spawn": attempt("import os\nos.posix_spawn('/bin/sh', ['sh'], {})", REFUSED),
        "system": attempt("import os\nif os.system('true') != 0:\n    raise PermissionError", REFUSED),
        "pipe_to_itself": attempt("import os\nos.pipe()", REFUSED),
        # the kernel
        "user_namespace": raw("unshare", 0x10000000, want=DEADLY),
        "process_namespace": raw("unshare", 0x20000000, want=DEADLY),
        "enter_namespace": raw("setns", 4, 0, want=DEADLY),
        "mount": raw("mount", "b'none'", "b'/'", "b'tmpfs'", 0, 0, want=DEADLY),
        "chroot": raw("chroot", "b'.'", want=DEADLY),
        "io_uring": raw("io_uring_setup", 4, "ctypes.create_string_buffer(120)", want=DEADLY),
        "bpf": raw("bpf", 0, 0, 0, want=DEADLY),
        "perf": raw("perf_event_open", 0, 0, 0, 0, 0, want=DEADLY),
        "userfault": raw("userfaultfd", 0, want=DEADLY),
        "keyring": raw("keyctl", 0, -3, 0, 0, 0, want=DEADLY),
        "new_filter": raw("seccomp", 0, 0, 0, want=DEADLY),
        "kernel_module": raw("init_module", 0, 0, 0, want=DEADLY),
        "kernel_log": raw("syslog", 3, 0, 0, want=DEADLY),
        "set_clock": raw("clock_settime", 0, "ctypes.create_string_buffer(16)", want=DEADLY),
        "host_name": raw("sethostname", "b'x'", 1, want=DEADLY),
        "personality": raw("personality", 0x0040000, want=DEADLY),
        "another_landlock": raw("landlock_create_ruleset", 0, 0, 1),
        "process_control": raw("prctl", 4, 1, 0, 0, 0),
        "become_root": raw("setuid", 0),
        "capabilities": raw("capset", 0, 0),
        "raise_limits": raw("prlimit64", 0, 0, "ctypes.create_string_buffer(16)", 0),
        "lock_memory": raw("mlock", 0, 4096),
        "shared_memory_segment": raw("shmget", 0, 4096, 0o1600),
        "message_queue": raw("msgget", 0, 0o1600),
        "semaphores": raw("semget", 0, 1, 0o1600),
        "posix_queue": raw("mq_open", "b'x'", 0o100, 0o600, 0),
        "watch_files": raw("inotify_init1", 0),
        "type_into_terminal": attempt("import fcntl\nfor fd in (0, 1, 2):\n    fcntl.ioctl(fd, 0x5412, b'x')", REFUSED),
        "unknown_call": attempt("call(999)", REFUSED, _CALL),
        # the clock and the end
        "alarm_cancelled": attempt(
            "import signal\nsignal.alarm(0)\nsignal.setitimer(0, 0)\nwhile True: pass", (V.TIMEOUT, "exec.rlimit_cpu")),
        "waiting_in_select": attempt("import select\nselect.select([], [], [], 60)", (V.TIMEOUT, "exec.wall_backstop")),
        "swallowed_memory_errors": attempt(
            "x = []\nwhile True:\n    try:\n        x.append(bytearray(1 << 22))\n    except MemoryError:\n        pass",
            (V.TIMEOUT, "exec.rlimit_cpu")),
        "product_bomb": attempt(
            "import itertools\nif a > 2:\n    return 0\nlist(itertools.product(range(100), repeat=6))", (V.FAIL, "exec.rlimit_as")),
        "colliding_keys": attempt("{i * (2 ** 61 - 1): 0 for i in range(40_000)}", (V.TIMEOUT, "exec.rlimit_cpu")),
    }
    if machine == "x86_64":
        found["call_of_the_x32_table"] = attempt("call(0x40000000 + 41, 1, 1, 0)", DEADLY, _CALL)
        found["call_by_the_old_gate"] = attempt(_OLD_GATE, DEADLY, _CALL)
    return {name: inner(program) if name in _INNER else program for name, program in found.items()}


_OLD_GATE = """import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes([0xB8, 0x14, 0, 0, 0, 0xCD, 0x80, 0xC3]))
run = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
if run() <= 0:
    raise PermissionError"""
"""mov eax, 20 (getpid); int 0x80; ret"""

if sys.platform != "linux":
    raise ImportError("the jail is Linux only")
