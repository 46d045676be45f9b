"""Thousands of honest and hostile programs through runners that are kept open: every verdict right, and nothing grows.

    python -m tests.adversarial.soak [--jobs N]

One job in five is hostile. In the middle a zygote is killed: what it ran has no verdict, the rest is judged. After every batch the
descriptors, memory, processes and mounts of this process and its zygotes are counted. Exit code 1 where anything is wrong.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox.runner import IN_FLIGHT, Runners
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.adversarial.escapes import escapes, surroundings
from tests.adversarial.hostile import HOSTILE, Hostile
from tests.adversarial.made import attempt

CONFIG = VerifyConfig(cpu_seconds=0.4, wall_seconds=20, memory_mib=64, workers=2)
BATCH = 500
HONEST: dict[str, Hostile] = {
    "right": Hostile("def f(a, b):\n    return a + b\n", VerdictClass.PASS, "exec.compare"),
    "right_by_loop": Hostile("def f(a, b):\n    for _ in range(b):\n        a += 1\n    return a\n", VerdictClass.PASS, "exec.compare"),
    "right_by_library": Hostile("import functools, operator, decimal\ndef f(a, b):\n    return functools.reduce(operator.add, (a, b))\n",
                                VerdictClass.PASS, "exec.compare"),
    "wrong": Hostile("def f(a, b):\n    return a - b\n", VerdictClass.FAIL, "exec.compare"),
    "raises": Hostile("def f(a, b):\n    raise ValueError(a)\n", VerdictClass.FAIL, "exec.exception"),
    "does_not_compile": Hostile("def f(a, b)\n    return a + b\n", VerdictClass.UNPARSEABLE, "exec.compile"),
}
_SLOW = (VerdictClass.TIMEOUT,)
_DEAR = ("exec.rlimit_as", "exec.output_limit")


@dataclass(frozen=True, slots=True)
class Count:
    """What must not grow."""

    descriptors: int
    processes: int
    mounts: int
    segments: int
    temporary: int
    memory_mib: float
    zygote_descriptors: tuple[int, ...]
    zygote_mib: float


@dataclass
class Soak:
    """Counts after every batch, and every verdict that was not the one due."""

    jobs: int = 0
    hostile: int = 0
    wrong: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)

    def growth(self) -> list[str]:
        """What grew between the second batch and the last; empty when nothing did."""
        if len(self.counts) < 3:
            return ["too few batches to tell"]
        first, last = self.counts[1], self.counts[-1]
        exact = ("descriptors", "processes", "mounts", "segments", "temporary", "zygote_descriptors")
        grown = [f"{name} {getattr(first, name)} -> {getattr(last, name)}" for name in exact if getattr(first, name) != getattr(last, name)]
        grown += [f"{name} {getattr(first, name):.1f} -> {getattr(last, name):.1f}" for name, room in (("memory_mib", 8), ("zygote_mib", 1))
                  if getattr(last, name) > getattr(first, name) + room]
        return grown


def mixture(programs: dict[str, Hostile]) -> Iterator[tuple[str, Hostile]]:
    """Without end: four honest programs, then a hostile one; the slow and dear ones come round seldom."""
    honest = list(HONEST.items())
    quick = [(n, p) for n, p in programs.items() if p.verdict not in _SLOW and p.decided_by not in _DEAR]
    slow = [(n, p) for n, p in programs.items() if p.verdict in _SLOW or p.decided_by in _DEAR]
    at = turn = 0
    while True:
        for _ in range(4):
            yield honest[at % len(honest)]
            at += 1
        yield slow[turn // 25 % len(slow)] if turn % 25 == 24 else quick[turn % len(quick)]
        turn += 1


def tree_of(pid: int) -> dict[int, str]:
    """Living and dead descendants, with their state."""
    rows = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            rows[int(entry.name)] = (int(fields[1]), fields[0])
    found: dict[int, str] = {}
    pending = [pid]
    while pending:
        parent = pending.pop()
        children = [child for child, (its, _) in rows.items() if its == parent]
        found |= {child: rows[child][1] for child in children}
        pending += children
    return found


def resident_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    except OSError:
        return 0.0


def count(folder: Path) -> Count:
    below = tree_of(os.getpid())
    zygotes = []
    for pid in sorted(below):
        try:
            zygotes.append(len(os.listdir(f"/proc/{pid}/fd")))
        except OSError:  # not ours to look into: an ordinary user's zygote is not dumpable
            zygotes.append(-1)
    return Count(
        descriptors=len(os.listdir("/proc/self/fd")), processes=len(below), mounts=len(Path("/proc/self/mounts").read_text().splitlines()),
        segments=_segments({os.getpid(), *below}), temporary=len(list(folder.iterdir())),
        memory_mib=resident_mib(os.getpid()), zygote_descriptors=tuple(sorted(zygotes)), zygote_mib=sum(map(resident_mib, below)))


def _segments(pids: set[int]) -> int:
    """Shared memory segments these processes made."""
    return sum(int(line.split()[4]) in pids for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:])


def soak(jobs: int, kill: bool, told: bool = False) -> Soak:
    """Judge `jobs` programs in batches on one set of runners. kill: a zygote dies in the middle batch."""
    found, ledger = Soak(), Ledger()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    folder.chmod(0o755)
    old, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        with surroundings() as around, Runners(CONFIG, ledger) as runners:
            plain = {n: p for n, p in HOSTILE.items() if n != "blank"}  # a line that makes each program another fills it
            stream = mixture(plain | {f"escape.{n}": p for n, p in escapes(around).items()})
            batches = -(-jobs // BATCH)
            for number in range(batches):
                began = time.perf_counter()
                chosen = [next(stream) for _ in range(min(BATCH, jobs - found.jobs))]
                batch = [attempt(f"# {found.jobs + i}\n{p.source}", f"{found.jobs + i} {n}") for i, (n, p) in enumerate(chosen)]
                verdicts = _judged(batch, ledger, runners, kill and number == batches // 2)
                _check(found, chosen, verdicts, ledger)
                found.counts.append(count(folder))
                if told:
                    rate = len(batch) / (time.perf_counter() - began)
                    say(f"batch {number + 1}/{batches}  {rate:.0f} jobs/s  wrong {len(found.wrong)}  no verdict {len(found.killed)}  "
                        f"{found.counts[-1]}")
            found.wrong += [f"harm: {what}" for what in around.harm()]
    finally:
        tempfile.tempdir = old
    left = list(folder.iterdir())
    found.wrong += [f"left behind: {p.name}" for p in left]
    if not left:
        folder.rmdir()
    if (expected := int(kill)) != ledger.counts["exec.runner_restarts"]:
        found.wrong.append(f"{ledger.counts['exec.runner_restarts']} restarts where {expected} is due")
    return found


def _judged(batch: list[Attempt], ledger: Ledger, runners: Runners, kill: bool) -> list[Verdict]:
    if not kill:
        return judge(batch, CONFIG, ledger, runners)
    timer = threading.Timer(0.2, os.kill, (runners.pids[0], signal.SIGKILL))
    timer.start()
    verdicts = judge(batch, CONFIG, ledger, runners)
    timer.join()
    return verdicts


def _check(found: Soak, chosen: list[tuple[str, Hostile]], verdicts: list[Verdict], ledger: Ledger) -> None:
    for (name, program), verdict in zip(chosen, verdicts, strict=True):
        found.jobs += 1
        found.hostile += name not in HONEST
        found.classes[verdict.verdict.value] += 1
        if verdict.verdict is VerdictClass.VERIFIER_ERROR and verdict.decided_by == "exec.runner":
            found.killed.append(name)
        elif (verdict.verdict, verdict.decided_by) != (program.verdict, program.decided_by):
            found.wrong.append(f"{name}: {verdict.verdict} by {verdict.decided_by} ({verdict.reason}) where {program.verdict} by "
                               f"{program.decided_by} is due")
    if len(found.killed) != ledger.counts["exec.lost_to_runner_death"] or len(found.killed) > IN_FLIGHT:
        found.wrong.append(f"{len(found.killed)} without a verdict, {ledger.counts['exec.lost_to_runner_death']} counted as lost")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    asked = parser.parse_args()
    began = time.perf_counter()
    found = soak(asked.jobs, kill=True, told=True)
    say(f"{found.jobs} jobs, {found.hostile} hostile, {time.perf_counter() - began:.0f} s; {dict(found.classes)}")
    say(f"wrong verdicts {len(found.wrong)}; no verdict after the kill {len(found.killed)}; "
        f"grew: {'; '.join(found.growth()) or 'nothing'}")
    for line in found.wrong[:20]:
        say(f"  {line}")
    good = not found.wrong and not found.growth()
    say("HOLDS" if good else "FALLS SHORT")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
