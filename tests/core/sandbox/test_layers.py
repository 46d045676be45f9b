"""Layers: what a missing one means, that a probe sees one that does not hold, and that nothing is judged without proof."""

import errno
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox import child, kernel, limits, namespaces, probes, runner, wire
from dormouse_core.sandbox.limits import BASE_LAYERS, NAMESPACES, Isolation, JailMode, isolation_of, stand
from dormouse_core.sandbox.runner import End, Job, Runners
from dormouse_core.sandbox.seccomp import Profile, stages
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import VerdictClass
from tests.adversarial.made import RIGHT, attempt

CONFIG = VerifyConfig(cpu_seconds=1, wall_seconds=20, workers=1)
ALL = ("rlimits", "rlimit_nproc", "no_caps", "seccomp", "landlock", *NAMESPACES, "honest")
NONE = frozenset[str]()
ALLOW_ALL = struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000)


def told(*without: str, failed: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"proven": dict.fromkeys((n for n in ALL if n not in without), "") | (failed or {}), "missing": {"landlock": "ENOSYS"}, "abi": 7,
            "root": "", **more}


TABLE = [
    # report, mode, why no namespaces -> level, refused?, a word of the loud line
    (told(), "best", "", Isolation.JAIL, False, ""),
    (told(*NAMESPACES), "best", "EPERM", Isolation.NO_NAMESPACES, False, "no namespaces here (EPERM)"),
    (told(*NAMESPACES, abi=5), "best", "EPERM", Isolation.NO_NAMESPACES, False, "ABI 5 cannot stop signals"),
    (told("landlock"), "best", "", Isolation.NO_LANDLOCK, False, "no Landlock here (ENOSYS)"),
    (told("landlock", *NAMESPACES), "best", "EPERM", Isolation.WEAKENED, True, ""),
    (told("landlock", *NAMESPACES), "no_files", "EPERM", Isolation.NO_FILES, False, "may open no file at all"),
    (told("seccomp"), "best", "", Isolation.WEAKENED, True, ""),
    (told(*NAMESPACES), "full", "EPERM", Isolation.NO_NAMESPACES, True, ""),
    (told("landlock"), "full", "", Isolation.NO_LANDLOCK, True, ""),
    (told(), "full", "", Isolation.JAIL, False, ""),
    (told(*NAMESPACES, root="kept"), "best", "EPERM", Isolation.NO_NAMESPACES, True, ""),
    (told(failed={"rlimit_nproc": "acts denied: 0 of 1"}), "best", "", Isolation.JAIL, False, "RLIMIT_NPROC has no effect"),
    *((told(failed={name: "it was let through"}), "best", "", None, True, "") for name in ALL if name != "rlimit_nproc"),
]


@pytest.mark.parametrize(("report", "mode", "why", "level", "refused", "said"), TABLE)
def test_a_missing_layer_is_said_aloud_or_refused(report: dict[str, Any], mode: str, why: str, level: Isolation | None, refused: bool,
                                                  said: str) -> None:
    got = stand(report, JailMode(mode), NONE, why)
    assert bool(got.refusal) is refused
    assert level is None or got.isolation is level
    if not refused:
        assert any(said in line for line in got.lines) if said else not got.lines
    failed = {name for name, seen in report["proven"].items() if seen}
    assert not failed & set(got.layers) and set(BASE_LAYERS) < set(got.layers)


def test_a_refusal_names_the_layer_and_what_was_seen() -> None:
    assert "seccomp: it was let through" in stand(told(failed={"seccomp": "it was let through"}), JailMode.BEST, NONE, "").refusal


def test_layers_switched_off_by_hand_are_said_aloud_and_weaken() -> None:
    got = stand(told("seccomp", "landlock"), JailMode.BEST, frozenset({"seccomp", "landlock"}), "")
    assert not got.refusal and got.isolation is Isolation.WEAKENED and "switched off by hand" in got.lines[0]
    assert isolation_of(()) is Isolation.WEAKENED


# a probe sees a layer that does not hold


def test_the_filter_probe_sees_a_filter_that_allows_everything() -> None:
    good = stages(os.uname().machine, Profile.SINGLE)
    assert probes.seccomp(*good) == ""
    assert "acts denied" in probes.seccomp(ALLOW_ALL) and probes.seccomp(good[1])


def test_the_filter_probe_sees_a_deadly_call_that_is_only_denied() -> None:
    from dormouse_core.sandbox.seccomp import DENY, KILL, _assemble, rules

    mild = {name: DENY if rule == KILL else rule for name, rule in rules(Profile.SINGLE).items()}
    assert "SIGSYS" in probes.seccomp(_assemble(os.uname().machine, mild, DENY))


def test_the_landlock_probe_sees_rules_that_are_too_wide(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("x")
    narrow = kernel.Landlock(namespaces.stdlib_rules(str(tmp_path / "none"), True)[1:])
    wide = kernel.Landlock([("/", kernel.READ_FILE | kernel.READ_DIR)])
    try:
        assert probes.landlock(narrow, str(canary), os.getpid()) == ""
        assert "acts denied" in probes.landlock(wide, str(canary), os.getpid())
    finally:
        os.close(narrow.fd)
        os.close(wide.fd)


def test_the_limits_probe_sees_limits_that_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    jail = child.Jail(null=-1, address_space=size)
    assert probes.limits(jail) == ""
    monkeypatch.setattr(child, "limit", lambda *_: None)
    assert "acts denied as they must be: 0 of" in probes.limits(jail)


@pytest.mark.parametrize("cpu", [0.25, 1.0, 2.0, 2.5])
def test_the_kernels_cpu_limit_lies_above_the_one_the_clock_decides(cpu: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts ticks: at the same limit it kills an honest program early, and its death looks like a crash."""
    put: dict[int, int] = {}
    monkeypatch.setattr(kernel, "limit", lambda rows: put.update(rows))
    child.limit(child.Jail(null=0, address_space=0), cpu, 16)
    assert cpu < put[resource.RLIMIT_CPU] <= cpu + 1


def test_the_process_probe_sees_a_plain_fork() -> None:
    assert "a process outside answered" in probes.process_namespace(os.fork)


def test_the_namespace_probes_see_what_is_still_in_reach() -> None:
    assert set(probes.namespaces((0, 0, 0), (0, 0, 0), os.getuid())) == {"mountns", "netns", "ipcns", "userns"}
    assert all(probes.namespaces((0, 0, 0), (0, 0, 0), os.getuid()).values())
    gone = probes.namespaces((0, 0, 0), (errno.ENOENT, errno.ECONNREFUSED, errno.EINVAL), os.getuid())
    assert (gone["netns"], gone["ipcns"]) == ("", "")
    before = probes.Outside(__file__)
    try:
        assert before.reach() == (0, 0, 0)
    finally:
        before.close()


def test_an_act_nobody_can_do_proves_nothing() -> None:
    assert probes.denied([probes.Act(lambda: os.stat("/no/such/file"), errno.ENOENT)], lambda: None) == "nothing to prove it by"


# nothing is judged without proof


def broken_filter(*_: object) -> tuple[bytes, bytes]:
    return ALLOW_ALL, ALLOW_ALL


def test_a_filter_that_lets_everything_through_is_refused_though_other_layers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "stages", broken_filter)
    with Runners(CONFIG, Ledger()) as runners, pytest.raises(DormouseError, match="seccomp"):
        runners.run([Job(RIGHT.encode(), "f", (wire.encode((1, 2)),))])


def test_without_a_jail_an_answer_has_no_verdict_and_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "stages", broken_filter)
    ledger = Ledger()
    (got,) = judge([attempt(RIGHT)], CONFIG, ledger)
    assert (got.verdict, got.decided_by, got.score, got.isolation) == (VerdictClass.VERIFIER_ERROR, "exec.runner", 0.0, "none")
    assert any("judges nothing here" in line for line in ledger.lines)


def test_an_unknown_machine_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = list(os.uname())
    shape[4] = "riscv64"
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(shape))
    with pytest.raises(DormouseError, match="riscv64"):
        Runners(CONFIG, Ledger())


def test_asking_for_the_full_jail_where_there_is_less_gives_no_verdict() -> None:
    with Runners(CONFIG.model_copy(update={"jail": "full"}), Ledger()) as runners:
        runners._no_namespaces = "EPERM"
        with pytest.raises(DormouseError, match="full jail was asked for"):
            runners.run([Job(RIGHT.encode(), "f", (wire.encode((1, 2)),))])


def test_without_files_an_honest_program_runs_and_opens_nothing() -> None:
    source = b"def f(a, b):\n    import calendar\n    return a + b\n"
    with Runners(CONFIG.model_copy(update={"jail": "no_files"}), Ledger()) as runners:
        (plain, imports), _ = runners.run([Job(RIGHT.encode(), "f", (wire.encode((1, 2)),)), Job(source, "f", (wire.encode((1, 2)),))])
        assert "no_files" in runners.layers
    assert plain.end is End.CLEAN and plain.claims[0].payload == wire.encode(3)
    assert imports.claims[0].kind == b"X"


COMPUTING = """
abc argparse array ast base64 binascii bisect bz2 calendar cmath codecs collections colorsys configparser contextlib copy csv
dataclasses datetime decimal difflib dis enum fnmatch fractions functools gettext glob graphlib hashlib heapq hmac html inspect io
itertools json keyword linecache locale logging lzma math numbers operator opcode os.path pathlib pickle platform pprint queue
quopri random re reprlib sched secrets shlex statistics string stringprep struct symtable tempfile textwrap threading time timeit
token tokenize traceback types typing unicodedata unittest urllib.parse uuid warnings weakref xml.etree.ElementTree zipfile zlib
zoneinfo
"""


def test_every_module_of_the_standard_library_that_computes_can_be_imported_inside() -> None:
    """Also those that link shared libraries the jail does not hold: an honest answer may import base64."""
    program = b"import importlib\ndef f(name):\n    importlib.import_module(name)\n    return name\n"
    names = COMPUTING.split()
    inputs = tuple(wire.encode((name,)) for name in names)
    with Runners(CONFIG, Ledger()) as runners:
        (outcome,), _ = runners.run([Job(program, "f", inputs)])
    assert [n for n, claim in zip(names, outcome.claims, strict=True) if claim.payload != wire.encode(n)] == []


def test_every_layer_of_this_machine_is_in_the_verdict() -> None:
    (got,) = judge([attempt(RIGHT)], CONFIG, Ledger())
    assert got.isolation == limits.isolation_of(got.layers) and "seccomp" in got.layers and set(BASE_LAYERS) < set(got.layers)


# lifetimes


CLIENT = """
import sys, threading, time
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox import wire
from dormouse_core.sandbox.runner import Job, Runners
source = b"import time\\ndef f(a):\\n    time.sleep(300)\\n"
off = frozenset(sys.argv[1:])
with Runners(VerifyConfig(wall_seconds=300, workers=2), Ledger(), off) as runners:
    threading.Timer(2.0, lambda: print(*runners.pids, flush=True)).start()
    runners.run([Job(source + b"#%d" % i, "f", (wire.encode((1,)),)) for i in range(30)])
"""


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for one in map(int, task.read_text().split()):
            found += [one, *descendants(one)]
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("off", [[], ["namespaces"]])
@pytest.mark.parametrize("who", ["client", "runners"])
def test_every_jailed_process_dies_with_its_runner_and_with_its_client(who: str, off: list[str]) -> None:
    started = subprocess.Popen([sys.executable, "-c", CLIENT, *off], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert started.stdout
        runners = list(map(int, started.stdout.readline().split()))
        below = descendants(started.pid)
        assert len(runners) == 2 and len(below) >= 2 + 2 * runner.IN_FLIGHT and all(map(alive, below))
        targets = [started.pid] if who == "client" else runners
        for pid in targets:
            os.kill(pid, signal.SIGKILL)
        watched = below if who == "client" else [p for p in below if p not in runners]
        deadline = time.monotonic() + 20
        while (left := [p for p in watched if alive(p)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left
    finally:
        started.kill()
        started.wait()
