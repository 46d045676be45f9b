"""The process that asks math-verify whether two forms are equal: one JSON pair a line in, `equal` or `unknown` a line out.

Started by path by prover.py, which limits it and kills it; nothing of dormouse is loaded. Both forms were written by dormouse itself.
math-verify's own timeouts are off: they are alarms of the main thread, which loops in C do not hear.
"""

import json
import logging
import os
import resource
import sys


def main() -> None:
    memory = int(sys.argv[1]) << 20
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (memory + _mapped(), memory + _mapped()))
    out.write("ready\n")
    out.flush()
    for line in sys.stdin:
        claimed, wanted = json.loads(line)
        try:
            forms = [parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=0) for text in (wanted, claimed)]
            equal = all(forms) and verify(*forms, timeout_seconds=0)
        except Exception:  # noqa: BLE001 - whatever it raises proves nothing
            equal = False
        out.write("equal\n" if equal else "unknown\n")
        out.flush()


def _mapped() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
