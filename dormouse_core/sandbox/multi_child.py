"""The multi-process jail from inside: build a root with a workspace, seal one process and everything it starts, report how it ended.

Started by multi.py through zygote.py. The keeper is process 1 (under bwrap: the first process bwrap starts): it writes the
files, forks the sealed process that becomes the command, reaps what is left behind, kills the rest, reads back the files
asked for, and says how it went. When the keeper goes, the kernel ends every process in here.
Not here: the CPU and memory of all processes together (multi.py watches from outside).
"""

import json
import os
import resource
import signal
import socket
import struct
from typing import Any

from dormouse_core.sandbox import child, kernel, namespaces

WORK = "/work"
OWN = "/room"
"""Where these sources stand under bwrap; the command may not read them."""
SHARES = (WORK, "/tmp", "/dev/shm")
DEVICES = ("null", "zero", "full", "random", "urandom")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
ENDED = struct.Struct("<id")
"""Wait status of the command, CPU seconds of everything that was waited for."""
LENGTH = struct.Struct("<Q")


def build(order: dict[str, Any]) -> None:
    """The root of a multi-process job: the system's programs and the interpreter read-only, devices, and places to mount on."""
    room = order["room"]
    namespaces.start_root(room, "256k")
    for path in order["visible"]:
        if os.path.exists(path):
            namespaces.show(room, path)
    os.mkdir(f"{room}/dev")
    for name in DEVICES:
        with open(f"{room}/dev/{name}", "wb"):
            pass
        kernel.mount(f"/dev/{name}", f"{room}/dev/{name}", flags=kernel.BIND)
    for name in (*SHARES, "/disk"):
        os.mkdir(room + name, 0o755)
    os.mkdir(f"{room}/etc")
    with open(f"{room}/etc/passwd", "w") as users:
        users.write(f"nobody:x:{os.getuid()}:{os.getgid()}::{WORK}:/bin/sh\n")
    for name in ("ld.so.cache", "alternatives"):
        if os.path.isdir(f"/etc/{name}"):
            namespaces.show(room, f"/etc/{name}")
        elif os.path.exists(f"/etc/{name}"):
            with open(f"/etc/{name}", "rb") as old, open(f"{room}/etc/{name}", "wb") as new:
                new.write(old.read())
    kernel.mount("none", room, flags=kernel.BIND | kernel.REMOUNT | kernel.RDONLY | kernel.NOSUID)


def open_workspace(disk_mib: int) -> None:
    """In the new root: one file system in memory behind every folder that may be written."""
    kernel.mount("tmpfs", "/disk", "tmpfs", kernel.NOSUID | kernel.NODEV, f"size={disk_mib}m,mode=700")
    for i, name in enumerate(SHARES):
        os.mkdir(f"/disk/{i}", 0o700)
        kernel.mount(f"/disk/{i}", name, flags=kernel.BIND)


def write_files(blob: int) -> None:
    """The job's files, from a sealed memfd: a JSON list of [path, size, executable], then their bytes."""
    size = os.fstat(blob).st_size
    (length,) = LENGTH.unpack(os.pread(blob, LENGTH.size, 0))
    at = LENGTH.size + length
    for path, count, executable in json.loads(os.pread(blob, length, LENGTH.size)):
        target = f"{WORK}/{path}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "xb") as out:
            while count:
                part = os.pread(blob, min(count, 1 << 20), at)
                out.write(part)
                at, count = at + len(part), count - len(part)
        os.chmod(target, 0o755 if executable else 0o644)
    if at != size:
        raise OSError(0, "the job's files do not fill their memfd")


def rules() -> list[tuple[str, int]]:
    """Landlock: read and execute the system and the interpreter, write in /work and /tmp and to the devices."""
    read = kernel.READ_FILE | kernel.READ_DIR | kernel.EXECUTE
    anything = read | kernel.WRITE_ALL
    visible = [f"/{name}" for name in os.listdir("/") if name not in ("canary", "dev", "disk", "proc", "work", "tmp", "room")]
    return ([("/", kernel.READ_DIR)] + [(path, read) for path in visible] + [(path, anything) for path in SHARES]
            + [(f"/dev/{name}", kernel.READ_FILE | kernel.WRITE_FILE) for name in DEVICES])


def seal(order: dict[str, Any], landlock: kernel.Landlock, out: int) -> None:
    """The command's own process, from here on hostile."""
    os.setsid()
    kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)
    kernel.set_caps(0)
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    landlock.enforce()
    null = os.open("/dev/null", os.O_RDONLY)
    for old, new in ((null, 0), (out, 1), (out, 2)):
        os.dup2(old, new)
    kernel.close_all_but(2)
    os.chdir(WORK)
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    hard = int(order["cpu"]) + (int(order["cpu"]) < order["cpu"])
    kernel.limit((
        (resource.RLIMIT_CPU, hard), (resource.RLIMIT_AS, order["memory_mib"] << 20), (resource.RLIMIT_FSIZE, order["disk_mib"] << 20),
        (resource.RLIMIT_NOFILE, 256), (resource.RLIMIT_NPROC, order["processes"]), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0), (resource.RLIMIT_MSGQUEUE, 0)))
    kernel.install_filter(bytes.fromhex(order["filter"]))


def read_back(paths: list[str], limit: int) -> dict[str, bytes]:
    """Regular files of the workspace, no links followed; whatever is no such file, or past the limit, is left out."""
    found: dict[str, bytes] = {}
    for path in paths:
        try:
            at = os.open(WORK, os.O_PATH | os.O_DIRECTORY)
            *folders, name = path.split("/")
            for folder in folders:
                at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
            with open(fd, "rb") as file:
                content = file.read(limit + 1)
        except (OSError, ValueError):
            continue
        if len(content) <= limit:
            found[path], limit = content, limit - len(content)
    return found


def main(control: socket.socket, order: dict[str, Any]) -> None:
    """Set up, say `H` or `F why`, run, report. Returns when all is done."""
    try:
        _, fds, _, _ = socket.recv_fds(control, 16, 3)
        blob, out, answers = fds
        if not order["bwrap"]:
            namespaces.enter(order["room"], lambda room: build(order))
            namespaces.own_processes()
            open_workspace(order["disk_mib"])
        write_files(blob)
        landlock = kernel.Landlock(rules())
        kernel.prctl(kernel.DUMPABLE, 0)
    except OSError as error:
        control.send(b"F" + str(error).encode())
        return
    control.send(b"H" + json.dumps({"abi": landlock.abi}).encode())
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            seal(order, landlock, out)
            os.write(1, child.HEAD.pack(b"G", 0, 0))
            os.execve(order["argv"][0], order["argv"], order["env"])
        except OSError:
            code = 127
        finally:
            os._exit(code)
    os.close(out)
    status = _wait(pid)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    back = read_back(order["keep"], order["keep_bytes"])
    payload = json.dumps([[path, len(content)] for path, content in back.items()]).encode()
    with open(answers, "wb") as answer:
        answer.write(ENDED.pack(status, used.ru_utime + used.ru_stime) + LENGTH.pack(len(payload)) + payload + b"".join(back.values()))


def _wait(pid: int) -> int:
    """Reap until the command ends; then end and reap whatever it left."""
    status = None
    while True:
        try:
            gone, how = os.waitpid(-1, 0)
        except ChildProcessError:
            return status or 0
        if gone == pid:
            status = how
            try:
                os.kill(-1, signal.SIGKILL)  # every process in here but this one
            except ProcessLookupError:
                return how
