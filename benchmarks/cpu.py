"""CPU-seconds of a tree of processes, the ones that ended included. Linux: /proc and child subreapers.

A process that dies hands its CPU time to whoever waits for it. Worker pools live under a fork server that nobody waits for, so
their time would be lost when a command ends: inside `adopting` such orphans become children of this process, which waits for them.
"""

import ctypes
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SET_CHILD_SUBREAPER, _SET_PARENT_DEATH_SIGNAL = 36, 1
_TICK = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES = 1, slice(11, 15)  # fields of /proc/PID/stat behind the name: utime, stime and those of waited-for children
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def adopting() -> Iterator[None]:
    """Orphaned descendants become children of this process, and are waited for at the end."""
    _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _LIBC.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def die_with_parent(signal_number: int) -> None:
    """For a child before it starts its program: it gets this signal when its parent dies, however that dies."""
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal_number, 0, 0, 0)


def children_seconds() -> float:
    """CPU-seconds of all descendants of this process, alive or waited for. Only differences mean something."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    offspring, ticks = defaultdict(list), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        offspring[int(fields[_PARENT])].append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[_TIMES]))
    total, pending = 0, list(offspring[os.getpid()])
    while pending:
        pid = pending.pop()
        total += ticks[pid]
        pending += offspring[pid]
    return ended.ru_utime + ended.ru_stime + total / _TICK


def seconds() -> float:
    """CPU-seconds of this process and all its descendants. Only differences mean something."""
    return time.process_time() + children_seconds()


def reap(known: frozenset[int], patience: float = 10.0) -> None:
    """Wait for adopted orphans: children that are not `known`. Those that outlive the patience are left alone."""
    deadline = time.monotonic() + patience
    while (strangers := children() - known) and time.monotonic() < deadline:
        for pid in strangers:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
        time.sleep(0.02)


def children() -> frozenset[int]:
    """Process ids of this process's children."""
    return frozenset(int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split())
