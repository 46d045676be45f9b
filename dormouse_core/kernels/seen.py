"""What this process's kernel dispatcher was asked and ran. Imports no torch, so that whoever runs a stage can ask for free."""

from typing import NamedTuple

from dormouse_core.ledger import Ledger

SEEN = Ledger()
"""`ran/asked` of every operation whose kernel was wanted, as kernel.NAME, and the loud lines of those that could not run."""


def report(ledger: Ledger) -> None:
    """Hand what was counted to a stage's ledger, and start again from nothing. On a CPU without a request nothing was asked."""
    for name, asked in SEEN.asked.items():
        ledger.ask(name, True, SEEN.ran[name])
        ledger.ask(name, False, asked - SEEN.ran[name])
    for line in SEEN.lines:
        ledger.loud(line)
    forget_counts()


class Counts(NamedTuple):
    """What a process saw, as it travels to the process it works for."""

    asked: dict[str, int]
    ran: dict[str, int]
    lines: list[str]


def taken() -> Counts:
    """What was counted since the last time; counting starts again from nothing."""
    counts = Counts(dict(SEEN.asked), dict(SEEN.ran), list(SEEN.lines))
    forget_counts()
    return counts


def add(counts: Counts) -> None:
    """Count what another process did for this one as its own."""
    SEEN.asked.update(counts.asked)
    SEEN.ran.update(counts.ran)
    for line in counts.lines:
        SEEN.loud(line)


def forget_counts() -> None:
    SEEN.asked.clear()
    SEEN.ran.clear()
    SEEN.lines.clear()
