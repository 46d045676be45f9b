"""Guess bounds: how often the best constant answer of a cell is right, as measured and committed.

`guess_bounds.json` holds {cell: rate}; `benchmarks/guess_bounds.py` measures it again, a test compares. A cell missing from the
table (a new family, a public set) has bound 1.0: what was not measured may not be trusted.
"""

import json
from functools import cache
from importlib.resources import files


@cache
def _table() -> dict[str, float]:
    return json.loads((files("dormouse_core.tasks") / "guess_bounds.json").read_text())


def guess_bound(family: str, difficulty: int) -> float:
    """Success rate of the best constant answer over the cell, in [0, 1]."""
    return _table().get(f"{family}/d{difficulty}", 1.0)
