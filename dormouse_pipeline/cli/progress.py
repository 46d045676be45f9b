"""Progress for a person: a live bar on a terminal, plain lines in a log. Rate and time left are computed here, once."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dormouse_core.ledger import Ledger

BAR = 16
SHOWN_ALREADY = {"rate", "cycle"}
"""Facts that stand in the line anyway."""


def clock(seconds: float) -> str:
    """Seconds -> `m:ss` or `h:mm:ss`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"


def rate_text(rate: float) -> str:
    """A rate with at most three figures, `12.3k/s`."""
    for limit, divisor, suffix in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if rate >= limit:
            return f"{rate / divisor:.1f}{suffix}/s"
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


class Meter:
    """Rate and time left of one stage, over the last reports, so a slow start does not spoil the estimate. A count that falls is the
    next pass of the stage, which began when the last report came."""

    def __init__(self, now: Callable[[], float] = time.monotonic, window: int = 50) -> None:
        self._now = now
        self._seen: deque[tuple[float, int]] = deque(maxlen=window)
        self.started = now()

    def update(self, done: int) -> float | None:
        """Units a second, or None before two reports differ."""
        if self._seen and done < self._seen[-1][1]:
            self.started = self._seen[-1][0]
            self._seen.clear()
            self._seen.append((self.started, 0))
        self._seen.append((self._now(), done))
        (t0, n0), (t1, n1) = self._seen[0], self._seen[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 and n1 > n0 else None

    @property
    def elapsed(self) -> float:
        return self._now() - self.started


def line_of(label: str, done: int, total: int, unit: str, rate: float | None, facts: dict[str, Any], bar: bool = False) -> str:
    """`rollouts main.c0002  768/1024 trajectories  412/s  lanes 98 %  ~0:01 left`."""
    filled = BAR * done // total if total else 0
    parts = [label] + (["█" * filled + "░" * (BAR - filled)] if bar else [])
    parts.append(f"{done}/{total} {unit}" if total else f"{done} {unit}")
    if rate:
        parts.append(rate_text(rate))
    parts += [f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in facts.items()
              if name not in SHOWN_ALREADY]
    if rate and total > done:
        parts.append(f"~{clock((total - done) / rate)} left")
    return "  ".join(parts)


class Throttled:
    """A Progress that passes on a line at most every `every` seconds, and the last one of a stage always."""

    def __init__(self, say: Callable[[str], None], every: float, prefix: str = "", now: Callable[[], float] = time.monotonic) -> None:
        self._say, self._every, self._prefix, self._now = say, every, prefix, now
        self._meters: dict[str, Meter] = {}
        self._said: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, unit: str, **facts: Any) -> None:
        meter = self._meters.setdefault(stage, Meter(self._now))
        self._said.setdefault(stage, meter.started)
        rate = meter.update(done)
        now = self._now()
        due = now - self._said[stage] >= self._every
        finished = bool(total) and done >= total and meter.elapsed >= 2.0
        if due or finished:
            self._said[stage] = now
            self._say(line_of(f"{self._prefix}{stage}", done, total, unit, rate, facts))


class Reporter:
    """What a command shows while its stages run. A context manager; `ledger(label)` makes the ledger of one stage.

    On a terminal one live line stands below what has been said; elsewhere a plain line every few seconds. With `quiet` nothing
    is shown but loud lines (they go to standard error, so `--json` output stays clean). The terminal is written to through a
    descriptor of its own: inside a step Dagster points standard error at a log file, where a live line is not drawn.
    """

    def __init__(self, console: Console | None = None, quiet: bool = False, every: float = 5.0) -> None:
        self.console = console or _standard_error()
        self.quiet, self._every = quiet, every
        self._live: Live | None = None
        self._loud: set[str] = set()

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.quiet:
            self._live = Live(Text(""), console=self.console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(line, markup=False)

    def loud(self, line: str) -> None:
        """Said once a command, however many stages say it."""
        if line not in self._loud:
            self._loud.add(line)
            self.console.print(f"! {line}", markup=False)

    def ledger(self, label: str = "", stage: str = "") -> Ledger:
        """The ledger of a stage that starts now; `stage` stands on the live line until it reports something."""
        prefix = f"{label}  " if label else ""
        if self.quiet:
            return Ledger(on_line=self.loud)
        if self._live is None:
            return Ledger(progress=Throttled(self.say, self._every, prefix), on_line=self.loud)
        meters: dict[str, Meter] = {}
        self._live.update(Text(f"{prefix}{stage}  ..." if stage else ""))

        def show(stage: str, done: int, total: int, unit: str, **facts: Any) -> None:
            rate = meters.setdefault(stage, Meter()).update(done)
            if self._live:
                self._live.update(Text(line_of(f"{prefix}{stage}", done, total, unit, rate, facts, bar=True)))

        return Ledger(progress=show, on_line=self.loud)


def _standard_error() -> Console:
    """Standard error as it is now; where it is a terminal, whatever is put in its place later."""
    terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w") if sys.stderr.isatty() else None
    return Console(file=terminal, stderr=True, highlight=False, soft_wrap=True)
