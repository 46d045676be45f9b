"""How many isolated checks a CPU-second buys: the exec verifier beside a fresh `python -I -S` a candidate.

    python benchmarks/verifier_rate.py [--candidates N] [--cases N]

Both judge the same distinct, right programs; CPU seconds include every child. The last line prints the ratio.
"""

import argparse
import resource
import subprocess
import sys
import time

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import Ledger
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import VerdictClass


def cpu_seconds() -> float:
    """Of this process and of every child it has reaped."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=512)
    parser.add_argument("--cases", type=int, default=8)
    asked = parser.parse_args()
    cases = [{"args": repr((i, 3)), "expected": repr(i + 3)} for i in range(asked.cases)]
    task = Task(pool=Pool.CODE, family="add", prompt=b"", environment="answer", verifier=VerifierKind.EXEC, split=Split.TRAIN,
                use=Use.TRAIN, trusted={"entry_point": "f", "cases": cases})
    programs = [f"def f(a, b):\n    return a + b + {i} - {i}\n" for i in range(asked.candidates)]
    attempts = [Attempt(str(i), task, (p.encode(),), StopReason.SUBMITTED) for i, p in enumerate(programs)]

    wall, cpu = time.perf_counter(), cpu_seconds()
    verdicts = judge(attempts, VerifyConfig(), Ledger())
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    assert all(v.verdict is VerdictClass.PASS for v in verdicts)
    times = sorted(v.wall_ms for v in verdicts)
    ours = len(attempts) / cpu
    print(f"dormouse exec      {ours:8.0f} candidates per CPU-second  {len(attempts) / wall:8.0f} a second of wall time  "
          f"p50 {times[len(times) // 2]:.1f} ms  p99 {times[int(0.99 * len(times))]:.1f} ms")

    few = programs[: max(asked.candidates // 8, 1)]
    asserts = "".join(f"assert f(*{c['args']}) == {c['expected']}\n" for c in cases)
    wall, cpu = time.perf_counter(), cpu_seconds()
    for program in few:
        subprocess.run([sys.executable, "-I", "-S", "-c", program + asserts], check=True)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    plain = len(few) / cpu
    print(f"python -I -S       {plain:8.0f} candidates per CPU-second  {len(few) / wall:8.0f} a second of wall time, verdict by exit code")
    print(f"ratio by CPU       {ours / plain:8.1f}x")


if __name__ == "__main__":
    main()
