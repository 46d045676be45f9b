"""What an update really takes of a process on a CPU, beside the plan.

    python -m benchmarks.memory_peak                                                  the table, a process a row (about 5 CPU-minutes)
    python -m benchmarks.memory_peak --preset b1 --rows 1 --length 256                one row (b1: 3 CPU-minutes, 18 GiB)

A row is a process that imports everything, trains a small policy of the same kind for one step, notes what it takes, and then makes
`--steps` SFT updates of two micro-batches of ROWS x LENGTH bytes. From the second update on masters and moments stand beside
gradients. Columns in MiB: the process before; the plan for it; the largest resident size the kernel saw. Last: plan over measured.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.learning.batches import text_batch
from dormouse_core.learning.memory import Stage, plan, process_bytes
from dormouse_core.learning.sft import copied
from dormouse_core.learning.update import TextWork, update
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.workers import WorkerPool

BF16, AGAIN, TORCH = "policy.dtype=bfloat16", "policy.recompute=true", "policy.compute=torch"


class Case(NamedTuple):
    """An update: preset, settings, and the rows and bytes of a micro-batch."""

    preset: str
    sets: Sequence[str]
    rows: int
    length: int


CASES = [
    Case("nano", [], 128, 256), Case("nano", [TORCH], 32, 256), Case("nano", [TORCH, AGAIN], 128, 256), Case("small", [], 4, 512),
    Case("small", [TORCH], 4, 512), Case("small", [BF16], 4, 512), Case("small", [AGAIN], 8, 512), Case("small", [BF16, AGAIN], 4, 128),
    Case("small", [BF16, AGAIN], 8, 512),
]  # fmt: skip


class Peak(NamedTuple):
    """Bytes: the process before anything of the run was there, the plan, and what the process came to."""

    process: int
    plan: int
    measured: int


def works(config: RunConfig, rows: int, length: int) -> list[TextWork]:
    """Two micro-batches of `rows` rows, all of whose bytes but the first are targets."""
    at = np.arange(2 * rows * length).reshape(2 * rows, length)
    streams, masks = list((at * 7919 % 200 + 20).astype(np.uint8)), [np.arange(length) > 0] * (2 * rows)
    batches = text_batch(streams, masks, [~mask & mask for mask in masks], 0.0, 2)
    return [TextWork(batch, config.policy.deep_loss, count_load=True) for batch in batches]


def filled(policy: Policy) -> Policy:
    with torch.no_grad():
        for i, p in enumerate(policy.parameters()):
            p.normal_(std=0.02, generator=torch.Generator().manual_seed(i))
    return policy


def peak_bytes() -> int:
    """The most this process has held. Not getrusage's ru_maxrss: a process started by a large one inherits that one's."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024


def measured(case: Case, steps: int) -> Peak:
    """In this process, which should not have done anything before."""
    config = resolve(case.preset, case.sets)
    torch.set_num_threads(config.runtime.threads)
    kind = [f"policy.{name}={getattr(config.policy, name)}".lower() for name in ("dtype", "recompute", "compute")]
    small = filled(Policy(resolve("tiny", kind).policy))
    with WorkerPool(1, config.runtime.threads) as pool:  # everything is imported and started before what is there is measured
        pool.set_weights(small)
        update(small, build_optimizer(small, config.sft.optimizer, 2), pool, works(config, 2, 32))
        process = process_bytes()
        expected = plan(config, Stage.SFT, process, case.rows * case.length)
        policy = filled(Policy(config.policy))
        best, optimizer = copied(policy), build_optimizer(policy, config.sft.optimizer, 10)
        pool.set_weights(policy)
        for _ in range(steps):
            if not update(policy, optimizer, pool, works(config, case.rows, case.length)).applied:
                raise SystemExit("the update was not finite: nothing was measured")
    assert best, "kept to the end, as SFT keeps it"
    return Peak(process, expected.peak, peak_bytes())


def in_own_process(case: Case, steps: int = 2) -> Peak:
    """A row of the table, in a fresh process. Raises RuntimeError with its words where it fails."""
    sets = [part for s in case.sets for part in ("--set", s)]
    command = [sys.executable, "-m", "benchmarks.memory_peak", "--preset", case.preset, *sets, "--rows", str(case.rows), "--length",
               str(case.length), "--steps", str(steps), "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Peak(**json.loads(done.stdout))


def line(case: Case, peak: Peak) -> str:
    shape = f"{case.preset} {' '.join(case.sets)} {case.rows} x {case.length}"
    return f"{shape:76s} {peak.process >> 20:8d} {peak.plan >> 20:8d} {peak.measured >> 20:8d} {peak.plan / peak.measured:6.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.preset is None:
        print(f"{'update':76s} {'process':>8s} {'plan':>8s} {'measured':>8s} {'ratio':>6s}")
        for case in CASES:
            print(line(case, in_own_process(case, options.steps)), flush=True)
        return
    case = Case(options.preset, options.sets, options.rows, options.length)
    peak = measured(case, options.steps)
    print(json.dumps(peak._asdict()) if options.json else line(case, peak))


if __name__ == "__main__":
    main()
