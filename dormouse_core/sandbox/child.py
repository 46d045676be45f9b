"""The candidate's own process: it seals itself, says so, reads its job, runs every case, and claims a value for each.

Forked by the zygote, which never reads a job: program and inputs arrive in a sealed memfd that only this process opens.
Frames it writes: `G` sealed, ready to read the job; `V` index, payload; `X` index, exception name; `U` index, why it
has no wire form; `L` phase, exception name (the program did not load); `E` end. Anything after `E` is a breach.
Not here: what the kernel calls do (kernel.py), which of them hold on this machine (probes.py), what a claim is worth
(verifiers/exec.py).
"""

import builtins
import os
import resource
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dormouse_core.sandbox import kernel, wire

HEAD = struct.Struct("<cII")  # frame kind, index, payload length
OUT = 4
"""The descriptor a candidate's claims go to. 0, 1, 2 are the null device, and there are no others."""
NOFILE = 16


@dataclass(slots=True)
class Jail:
    """What a child puts in force on itself, made once by the zygote."""

    null: int
    address_space: int
    """Bytes of address space the zygote itself maps."""
    landlock: kernel.Landlock | None = None
    filter: bytes = b""
    pidns: bool = False
    files: bool = True
    """Whether the filter lets files be opened at all."""
    keep_caps: int = 0
    parent: int = 0


def limit(jail: Jail, cpu: float, memory_mib: int) -> None:
    """Resource limits, soft and hard alike: a soft CPU limit is a signal, and the first process of a namespace ignores signals.

    The kernel enforces CPU seconds by counting timer ticks, which runs ahead of the time a process has really used; at the limit itself it
    killed one runaway in four too early and without a word. So its limit lies above the zygote's, which reads the clock."""
    hard = int(cpu) + 1
    kernel.limit((
        (resource.RLIMIT_CPU, hard), (resource.RLIMIT_AS, jail.address_space + (memory_mib << 20)), (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, NOFILE), (resource.RLIMIT_NPROC, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0)))


def restrict(jail: Jail) -> None:
    """Everything but descriptors, limits and filter, each layer that this machine has. What a fork inherits (no_new_privs, not
    dumpable) the zygote has set on itself."""
    if not jail.pidns:
        kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)
        if os.getppid() != jail.parent:
            os._exit(1)  # the zygote died before the line above: nobody would end this process
    kernel.set_caps(jail.keep_caps)
    if jail.landlock:
        jail.landlock.enforce()


def live(jail: Jail, job: int, out: int, cpu: float, memory_mib: int) -> None:
    """The candidate's whole life. Never returns. A death before `G` is the machine's fault, after it the candidate's."""
    os.setsid()
    restrict(jail)
    os.dup2(job, 200)
    os.dup2(out, 201)
    for fd in (0, 1, 2):
        os.dup2(jail.null, fd)
    os.dup2(200, 3)
    os.dup2(201, OUT)
    kernel.close_all_but(OUT)
    limit(jail, cpu, memory_mib)
    if jail.filter:
        kernel.install_filter(jail.filter)
    write, pack = os.write, HEAD.pack

    def frame(kind: bytes, index: int = 0, payload: bytes = b"") -> None:
        data = pack(kind, index, len(payload)) + payload
        while data:
            data = data[write(OUT, data):]

    frame(b"G")
    data = os.pread(3, os.lseek(3, 0, os.SEEK_END), 0)
    os.close(3)
    entry, program, inputs = wire.decode(data)  # type: ignore[misc]
    run(entry, program, inputs, frame)  # type: ignore[has-type]
    frame(b"E")
    os._exit(0)


def warm_up() -> None:
    """Run the path of a candidate in the zygote a few times: what the interpreter learns of this code, no child has to learn again,
    and a page that is not written is a page that is not copied."""
    inputs = tuple(wire.encode((i, [float(i)], {"a": (True, None)})) for i in range(5))
    job = wire.encode(("f", b"def f(a, b, c):\n    return [a, b, c, {a}, str(a)]\n", inputs))
    for _ in range(20):
        entry, program, cases = wire.decode(job)  # type: ignore[misc]
        run(entry, program, cases, lambda *_: None)  # type: ignore[has-type]


def run(entry: str, program: bytes, inputs: tuple[bytes, ...], frame: Callable[..., None]) -> None:
    """Load the program and claim a value for every input."""
    encode, decode, wire_error, name_of = wire.encode, wire.decode, wire.WireError, type.__dict__["__name__"].__get__
    space: dict[str, Any] = {"__name__": "candidate", "__builtins__": builtins}
    phase = b"compile:"
    try:
        if b"random" in program:  # an answer that draws is the same in every run
            __import__("random").seed(0)
        code = compile(program, "<candidate>", "exec", dont_inherit=True)
        phase = b"load:"
        exec(code, space)
        phase = b"missing:"
        function = space[entry]
    except BaseException as error:  # noqa: BLE001 - a candidate may raise anything
        return frame(b"L", 0, phase + name_of(type(error)).encode("utf-8", "replace")[:80])
    for index, blob in enumerate(inputs):
        try:
            value = function(*decode(blob))  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001
            frame(b"X", index, name_of(type(error)).encode("utf-8", "replace")[:80])
            continue
        try:
            claim = encode(value)
        except BaseException as error:  # noqa: BLE001
            why = str(error) if type(error) is wire_error else name_of(type(error))
            frame(b"U", index, why.encode("utf-8", "replace")[:80])
            continue
        frame(b"V", index, claim)
