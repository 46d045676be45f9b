"""All hostile programs under one configuration of the machine, in a process made to look like it. Prints one JSON object.

    python -m tests.adversarial.configurations NAME

root                this process as it is
user                an ordinary user: id 1000, no capabilities, no_new_privs
user_no_namespaces  the same behind a filter that refuses unshare, setns and mount, as containers have by default
root_no_namespaces  root without CAP_SYS_ADMIN behind that filter
namespaces_only     neither filter nor Landlock, to show what the namespaces hold by themselves
"""

import json
import os
import struct
import sys
import tempfile
from pathlib import Path

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox import kernel, limits
from dormouse_core.sandbox.runner import Runners
from dormouse_core.sandbox.syscalls import ARCHES
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.adversarial.escapes import escapes, surroundings
from tests.adversarial.hostile import HOSTILE
from tests.adversarial.made import RIGHT, attempt

CONFIGURATIONS = ("root", "user", "user_no_namespaces", "root_no_namespaces", "namespaces_only")
NEED_ROOT = ("root", "user", "user_no_namespaces", "root_no_namespaces")
CONFIG = VerifyConfig(cpu_seconds=0.3, wall_seconds=15, memory_mib=64, workers=2)
_SYS_ADMIN = 1 << 21


def refuse_namespaces() -> None:
    """A filter as container runtimes install it: unshare, setns and mount answer EPERM."""
    numbers = [ARCHES[os.uname().machine].number[name] for name in ("unshare", "setns", "mount", "pivot_root")]
    code = [struct.pack("<HBBI", 0x20, 0, 0, 0)]
    for number in numbers:
        code += [struct.pack("<HBBI", 0x15, 0, 1, number), struct.pack("<HBBI", 0x06, 0, 0, 0x00050001)]
    code.append(struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000))
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    kernel.install_filter(b"".join(code))


def show_interpreter() -> None:
    """Root, before it becomes an ordinary user: an interpreter inside a closed home becomes readable, for this process alone."""
    prefix = Path(sys.base_prefix)
    closed = [p for p in reversed(prefix.parents) if not p.stat().st_mode & 0o001]
    if not closed:
        return
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", flags=kernel.REC | kernel.PRIVATE)
    with tempfile.TemporaryDirectory() as aside:
        kernel.mount(str(prefix), aside, flags=kernel.BIND)
        kernel.mount("tmpfs", str(closed[0]), "tmpfs", data="mode=755")
        prefix.mkdir(parents=True)
        kernel.mount(aside, str(prefix), flags=kernel.BIND)
        kernel.detach(aside)


def become(name: str) -> None:
    if name.startswith("user") and os.getuid() == 0:
        show_interpreter()
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
        os.environ["HOME"] = "/nonexistent"
        kernel.prctl(kernel.DUMPABLE, 1)
    if name.startswith("user"):
        kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    if name.endswith("no_namespaces"):
        if name.startswith("root"):
            kernel.set_caps(kernel.caps() & ~_SYS_ADMIN)
        refuse_namespaces()


def judged(name: str) -> dict[str, object]:
    """Verdicts of every hostile program, an honest one between any two, and what was harmed around the jail."""
    ledger = Ledger()
    off = frozenset({"seccomp", "landlock"}) if name == "namespaces_only" else frozenset[str]()
    with surroundings() as around:
        programs = HOSTILE | {f"escape.{n}": p for n, p in escapes(around).items()}
        batch = [a for i, (n, p) in enumerate(programs.items()) for a in (attempt(p.source, n), attempt(f"# {i}\n{RIGHT}", f"honest{i}"))]
        with Runners(CONFIG, ledger, off) as runners:
            verdicts = judge(batch, CONFIG, ledger, runners)
            layers = runners.layers
        harm = around.harm()
    wanted = {n: (p.verdict.value, p.decided_by) for n, p in programs.items()}
    return {"layers": layers, "isolation": limits.isolation_of(layers).value, "harm": harm, "lines": ledger.lines,
            "restarts": ledger.counts["exec.runner_restarts"], "honest_wrong": _wrong(verdicts), "programs": len(programs),
            "verdicts": {v.trajectory_id: [v.verdict.value, v.decided_by, v.reason, *wanted[v.trajectory_id]]
                         for v in verdicts if not v.trajectory_id.startswith("honest")}}


def _wrong(verdicts: list[Verdict]) -> dict[str, str]:
    return {v.trajectory_id: f"{v.verdict}: {v.reason}" for v in verdicts
            if v.trajectory_id.startswith("honest") and v.verdict is not VerdictClass.PASS}


if __name__ == "__main__":
    become(sys.argv[1])
    json.dump(judged(sys.argv[1]), sys.stdout)
