"""The verifier's truth table: every labelled answer of the tasks directory, judged.

    python benchmarks/verifier_table.py [--tasks-dir DIR] [--set NAME ...] [--every N]

Exit code 1 when there is any false pass, false fail or attempt without a verdict.
"""

import argparse
import os
import sys
import time
from itertools import chain
from pathlib import Path

from dormouse_core.admission.labelled import SETS, truth_table
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import DormouseError, Ledger


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks-dir", default=os.environ.get("DORMOUSE_TASKS_DIR", ""))
    parser.add_argument("--set", action="append", choices=sorted(SETS), help="only these sets")
    parser.add_argument("--every", type=int, default=1, help="judge every Nth labelled answer")
    asked = parser.parse_args()
    if not asked.tasks_dir:
        parser.error("name the folder of public task files with --tasks-dir or DORMOUSE_TASKS_DIR")
    began = time.perf_counter()
    ledger = Ledger(on_line=lambda line: print(f"! {line}", file=sys.stderr))
    try:
        labelled = list(chain.from_iterable(SETS[name](Path(asked.tasks_dir)) for name in asked.set or SETS))[:: asked.every]
        table = truth_table(labelled, VerifyConfig(), ledger)
    except DormouseError as error:
        parser.exit(2, f"verifier_table: {error}\n")
    print(f"{'labelled answers':<28}{'right':>8}{'wrong':>8}{'false pass':>12}{'false fail':>12}{'no verdict':>12}{'in child':>10}"
          f"{'seconds':>9}")
    for row in table:
        print(f"{row.source:<28}{row.right:>8,}{row.wrong:>8,}{row.false_passes:>12}{row.false_fails:>12}{row.no_verdict:>12}"
              f"{row.in_child_asserts:>10}{row.seconds:>9.2f}")
        for example in row.examples:
            print(f"    misjudged {example}")
    bad = sum(r.false_passes + r.false_fails + r.no_verdict for r in table)
    print(f"{'all':<28}{sum(r.right for r in table):>8,}{sum(r.wrong for r in table):>8,}{sum(r.false_passes for r in table):>12}"
          f"{sum(r.false_fails for r in table):>12}{sum(r.no_verdict for r in table):>12}{sum(r.in_child_asserts for r in table):>10}"
          f"{time.perf_counter() - began:>9.2f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
