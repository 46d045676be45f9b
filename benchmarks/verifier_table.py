"""The verifier's truth table: `dormouse bench verifier`, which prints it and exits with its result.

    python benchmarks/verifier_table.py [--tasks-dir DIR] [--sample N] [--json]
"""

import sys

from dormouse_pipeline.cli.main import app

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "verifier"]
    app()
