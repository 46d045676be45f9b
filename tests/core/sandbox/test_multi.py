"""run_multi: a command of several processes sees its workspace and the system, reaches nothing else, and leaves nothing behind."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dormouse_core.ledger import DormouseError
from dormouse_core.sandbox.multi import PYTHON, MultiLimits, MultiOutcome, run_multi, tree
from dormouse_core.sandbox.runner import End


def python(source: str, limits: MultiLimits | None = None, **more: object) -> MultiOutcome:
    return run_multi({"main.py": source.encode()}, [PYTHON, "main.py"], limits, **more)  # type: ignore[arg-type]


def test_files_argv_output_exit_code_and_files_asked_for() -> None:
    files = {"pkg/part.py": b"VALUE = 7\n", "run.sh": b"#!/bin/sh\npwd; cat pkg/part.py; echo oops >&2; echo made > pkg/new; exit 3\n"}
    got = run_multi(files, ["./run.sh"], executable=["run.sh"], keep=["pkg/new", "pkg/part.py", "absent"])
    assert (got.end, got.exit_code, got.output) == (End.CLEAN, 3, b"/work\nVALUE = 7\noops\n")
    assert got.files == {"pkg/new": b"made\n", "pkg/part.py": b"VALUE = 7\n"}
    assert {"userns", "pidns", "seccomp_multi"} <= set(got.layers) and got.isolation == "jail"


def test_processes_threads_pipes_and_pools_work() -> None:
    got = python("import multiprocessing, subprocess, threading\n"
                 "thread = threading.Thread(target=print, args=('thread',))\nthread.start()\nthread.join()\n"
                 "print(multiprocessing.Pool(2).map(len, ['a', 'bb']))\n"
                 "print(subprocess.run('echo a | tr a b', shell=True, capture_output=True).stdout)\n")
    assert (got.end, got.exit_code, got.output) == (End.CLEAN, 0, b"thread\n[1, 2]\nb'b\\n'\n")


REACHES: dict[str, str] = {
    "a file of this machine": "open({secret!r}).read()",
    "a file written elsewhere": "open('/usr/bin/x', 'w')",
    "a new file in the root": "open('/x', 'w')",
    "the probes' file": "open('/canary').read()",
    "the network": "__import__('socket').socket()",
    "packages installed here": "__import__('pydantic')",
    "a kill of the keeper": "(os.kill(1, 9), os.kill(1, 0), open('/keeper-lives'))",
    "a new user namespace": "__import__('ctypes').CDLL(None).unshare(0x10000000) and open('/refused')",
    "a device": "open('/dev/vda')",
    "the process table": "os.listdir('/proc')",
}


@pytest.mark.parametrize("what", REACHES)
def test_the_command_does_not_reach(what: str) -> None:
    with tempfile.NamedTemporaryFile(prefix="secret-") as secret:
        os.chmod(secret.name, 0o644)
        got = python(f"import os\ntry:\n    {REACHES[what].format(secret=secret.name)}\n    print('reached')\n"
                     "except (OSError, ImportError):\n    print('refused')\n")
    assert got.output == b"refused\n" or got.end is End.FORBIDDEN


@pytest.mark.parametrize(("end", "source", "limits"), [
    (End.CPU, "while True: pass", MultiLimits(cpu_seconds=0.3, wall_seconds=60)),
    (End.CPU, "import os\nfor _ in range(3): os.fork()\nwhile True: pass", MultiLimits(cpu_seconds=0.3, wall_seconds=60)),
    (End.WALL, "import time\ntime.sleep(60)", MultiLimits(wall_seconds=1)),
    (End.MEMORY, "import os, time\nfor _ in range(2): os.fork()\nx = bytearray(80 << 20)\ntime.sleep(60)", MultiLimits(memory_mib=200)),
    (End.OUTPUT, "while True: print('x' * 1000)", MultiLimits(output_bytes=10_000)),
    (End.FORBIDDEN, "import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)", MultiLimits()),
    (End.CRASH, "import ctypes\nctypes.string_at(0)", MultiLimits()),
])
def test_a_limit_ends_the_command_and_says_which(end: End, source: str, limits: MultiLimits) -> None:
    got = python(source, limits)
    assert got.end is end and got.exit_code is None and len(got.output) <= limits.output_bytes


def test_memory_of_one_process_disk_and_processes_are_bounded() -> None:
    got = python("import os\nfor do in (lambda: bytearray(1 << 30), lambda: open('big', 'wb').write(bytes(9 << 20)),\n"
                 "           lambda: [os.fork() or os.pause() if False else os.fork() for _ in range(40)]):\n"
                 "    try:\n        do()\n        print('done')\n    except (MemoryError, OSError) as error:\n"
                 "        print(type(error).__name__, flush=True)\n",
                 MultiLimits(memory_mib=256, disk_mib=8, processes=4, cpu_seconds=5))
    assert got.output.startswith(b"MemoryError\nOSError\n") and b"BlockingIOError" in got.output


def test_links_in_the_workspace_are_not_followed_when_reading_back() -> None:
    got = python("import os\nos.symlink('/etc/passwd', 'link')\nos.symlink('/etc', 'etc')\nos.mkfifo('fifo')\nos.mkdir('folder')\n",
                 keep=["link", "etc/passwd", "fifo", "folder", "main.py"])
    assert list(got.files) == ["main.py"]


def test_daemons_die_with_the_command_and_nothing_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    got = run_multi({}, ["/bin/sh", "-c", "(setsid sleep 4242 &) ; (sleep 4242 &) ; echo on"])
    assert (got.end, got.output) == (End.CLEAN, b"on\n") and got.wall_ms < 60_000
    deadline = time.monotonic() + 5
    while (left := sleepers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left and len(os.listdir("/proc/self/fd")) == before and not list(tmp_path.iterdir())


def sleepers() -> list[str]:
    def line(pid: str) -> bytes:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""

    return [pid for pid in os.listdir("/proc") if pid.isdigit() and line(pid) == b"sleep\x004242\x00"]


@pytest.mark.parametrize("call", [
    lambda: run_multi({"../x": b""}, ["true"]), lambda: run_multi({"/x": b""}, ["true"]), lambda: run_multi({"a//b": b""}, ["true"]),
    lambda: run_multi({}, []), lambda: run_multi({}, ["true"], keep=["../x"]), lambda: run_multi({}, ["a\0b"])])
def test_a_path_outside_the_workspace_and_an_empty_command_are_refused(call: Callable[[], MultiOutcome]) -> None:
    with pytest.raises(ValueError, match=r"workspace|command"):
        call()


def test_a_command_that_does_not_exist_is_the_commands_fault() -> None:
    got = run_multi({}, ["/usr/bin/no-such-program"])
    assert (got.end, got.exit_code) == (End.CLEAN, 127)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_bubblewrap_makes_the_same_jail() -> None:
    source = ("import os\nopen('made', 'w').write('x')\nfor path in ('/x', '/usr/x', '/room/zygote.py'):\n    try:\n"
              "        open(path, 'r+')\n        print('reached')\n    except OSError:\n        print('refused')\n")
    got = python(source, runner="bwrap", keep=["made"])
    assert (got.end, got.exit_code, got.output, got.files) == (End.CLEAN, 0, b"refused\n" * 3, {"made": b"x"})
    assert "bwrap" in got.layers


def test_a_runner_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DormouseError, match="bwrap"):
        python("pass", runner="bwrap")


def test_the_tree_of_a_process_counts_its_own_cpu_and_memory() -> None:
    cpu, memory = tree(os.getpid())
    assert cpu >= 0.9 * time.process_time() - 0.1 and memory > 1 << 20
