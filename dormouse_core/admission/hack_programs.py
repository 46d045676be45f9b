"""Hostile programs, each under the slug of its class (hacks.py). None computes what it is asked for.

They stand in hack_programs.txt, each behind a line `#### slug flags`. `FUNC` stands for the name that is called, `JUNK` for a value no task
expects. Flags:
  reference  the task's own reference stands ahead of it and is called `_honest`
  limits     it only burns limits, which says nothing of a task
  coverage   whether it fails depends on how well hidden cases cover the inputs
"""

from pathlib import Path
from typing import NamedTuple

JUNK = r"'\x00 junk'"


class Program(NamedTuple):
    slug: str
    flags: frozenset[str]
    source: str
    """With FUNC and JUNK as they stand."""

    def named(self, name: str) -> str:
        """The program as the definition of `name`."""
        return self.source.replace("FUNC", name).replace("JUNK", JUNK)


def _read(text: str) -> tuple[Program, ...]:
    parts = [part.partition("\n") for part in text.strip().removeprefix("#### ").split("\n#### ")]
    return tuple(Program(head.split()[0], frozenset(head.split()[1:]), body.rstrip() + "\n") for head, _, body in parts)


PROGRAMS = _read(Path(__file__).with_suffix(".txt").read_text())
