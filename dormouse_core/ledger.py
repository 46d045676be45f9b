"""The instrument layer: what was asked, what ran, what degraded, and how far a stage is.

A degradation is LOUD (an error naming cause and way out), COUNTED (`ran/asked`), or a defect. The core prints nothing:
whoever starts a stage (command line, Dagster, test) hands it a `Ledger` and reads it back.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class DormouseError(Exception):
    """An error for the user: what was wrong, where, and the way out, in one paragraph."""

    facts: Mapping[str, Any] = {}
    """Plain values a caller may show beside the paragraph."""


class Progress(Protocol):
    """Where a stage reports how far it is. Rate and time left are the receiver's to compute."""

    def __call__(self, stage: str, done: int, total: int, unit: str, **facts: Any) -> None: ...


def silent(stage: str, done: int, total: int, unit: str, **facts: Any) -> None:
    """The Progress of a caller that shows none."""


@dataclass
class Ledger:
    """Counters and loud lines of one stage run."""

    progress: Progress = silent
    on_line: Callable[[str], None] | None = None
    asked: Counter[str] = field(default_factory=Counter)
    ran: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    lines: list[str] = field(default_factory=list)

    def ask(self, what: str, ran: bool, n: int = 1) -> None:
        """Record that `what` was asked for n times, and whether it ran."""
        self.asked[what] += n
        self.ran[what] += n if ran else 0

    def count(self, what: str, n: int = 1) -> None:
        self.counts[what] += n

    def loud(self, line: str) -> None:
        """A line a person must see: an arm switched off, a degradation. Said once."""
        if line not in self.lines:
            self.lines.append(line)
            if self.on_line:
                self.on_line(line)

    def arms(self) -> dict[str, str]:
        """`ran/asked` of everything asked, for reports and metadata."""
        return {name: f"{self.ran[name]}/{n}" for name, n in sorted(self.asked.items())}

    def counters(self) -> dict[str, int]:
        """Everything deterministic that was counted: part of an artifact's provenance (seconds are not)."""
        return dict(sorted(self.counts.items()))
