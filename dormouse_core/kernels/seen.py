"""What this process's kernel dispatcher was asked and ran. Imports no torch, so that whoever runs a stage can ask for free."""

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


def forget_counts() -> None:
    SEEN.asked.clear()
    SEEN.ran.clear()
    SEEN.lines.clear()
