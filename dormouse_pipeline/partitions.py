"""One partition, one cycle of one line: `main.c0000`, `main.c0001`, `group.c0000`, ...

Dynamic, so the list holds exactly the cycles that exist; zero padded, because Dagster starts a backfill's runs in the order of
the keys as strings.
"""

import re
from typing import NamedTuple, Self

import dagster as dg

from dormouse_core.ledger import DormouseError

cycles = dg.DynamicPartitionsDefinition(name="cycle")

_KEY = re.compile(r"(?P<line>[A-Za-z0-9_-]+)\.c(?P<number>\d{4})")
LAST = 9999


class CycleKey(NamedTuple):
    """A cycle of a line. `str()` is its partition key."""

    line: str
    number: int

    def __str__(self) -> str:
        return f"{self.line}.c{self.number:04d}"

    @classmethod
    def parse(cls, key: str) -> Self:
        """Raises DormouseError on a key of another form (the UI lets a person add any text)."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise DormouseError(f"partition {key!r} is not a cycle: keys are LINE.cNNNN, four digits from c0000, e.g. main.c0000. "
                                "Delete it under Partitions and add the right one, or run `dormouse loop`.")
        return cls(match["line"], int(match["number"]))

    @property
    def previous(self) -> "CycleKey | None":
        return CycleKey(self.line, self.number - 1) if self.number else None

    @property
    def next(self) -> "CycleKey":
        if self.number == LAST:
            raise DormouseError(f"line {self.line!r} has reached cycle {LAST}, the last one: continue on a new line with --line NAME.")
        return CycleKey(self.line, self.number + 1)
