"""How often the best constant answer of every cell is right: the table that tasks carry as `guess_bound`.

    python benchmarks/guess_bounds.py [--tasks 600] [--family NAME ...] [--write]

Prints one line a family and the largest bound; --write puts them into dormouse_core/tasks/guess_bounds.json.
"""

import argparse
import json
from pathlib import Path

import dormouse_core.tasks
from dormouse_core.admission.own_answers import measured_guess_bound
from dormouse_core.tasks.family import MAX_DIFFICULTY
from dormouse_core.tasks.registry import families


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=600, help="tasks drawn a cell")
    parser.add_argument("--family", nargs="+", default=list(families()), help="families to measure; all by default")
    parser.add_argument("--write", action="store_true", help="put what was measured into the committed table")
    options = parser.parse_args()
    table: dict[str, float] = {}
    for name in options.family:
        row = [round(measured_guess_bound(name, d, options.tasks), 4) for d in range(MAX_DIFFICULTY + 1)]
        table |= {f"{name}/d{d}": bound for d, bound in enumerate(row)}
        print(f"{name:26}" + "".join(f"{bound:8.3f}" for bound in row), flush=True)
    print(f"largest bound: {max(table.values()):.3f} ({max(table, key=lambda cell: table[cell])})")
    if options.write:
        path = Path(dormouse_core.tasks.__path__[0]) / "guess_bounds.json"
        known = {cell: bound for cell, bound in json.loads(path.read_text()).items() if cell.rpartition("/")[0] in families()}
        path.write_text(json.dumps(known | table, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
