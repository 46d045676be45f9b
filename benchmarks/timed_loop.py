"""One `dormouse loop` as a user calls it, timed from outside: wall, CPU-seconds of all its processes, and those of each stage.

While the command runs, the CPU-seconds of its process tree are sampled twice a second into a file; Dagster's event log says when
each stage began and ended. An attempt that was killed leaves its samples, so its work counts too.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from benchmarks import cpu
from dormouse_core.artifacts.atomic import write_atomic
from dormouse_core.config.base import Record
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_pipeline.instance import Project, project_instance

RL_PART = ("rollouts", "verified_trajectories", "rl_checkpoint")
"""Assets whose CPU-seconds a control may spend: sampling, judging and learning, of all cycles, promoted or not."""
EVERY = 0.5


class LoopRun(Record):
    """What one loop made and cost."""

    command: str
    config_sha256: str
    base: str
    """Identity of the SFT base."""
    promoted: str
    wall: float
    cpu: float
    cpu_rl: float
    """CPU-seconds inside RL_PART."""
    cpu_by_asset: dict[str, float]
    attempts: int
    """1 when nothing interrupted it."""
    overhead: dict[str, float]
    """Partition -> Dagster's own share of the run's wall. Empty where an interrupted claim lost it."""
    cycles: int
    promotions: int


def run_loop(preset: str, sets: Sequence[str], seed: int, root: Path, config_sha256: str, ledger: Ledger) -> LoopRun:
    """The loop of one seed in store `root`; read back when it was done before, gone on with when it was killed.

    Raises DormouseError when the command fails, or what stands there ran under another configuration.
    """
    record = root / "claim" / "loop.json"
    if record.exists():
        done = LoopRun.model_validate_json(record.read_bytes())
        if done.config_sha256 != config_sha256:
            raise DormouseError(f"{root} holds a loop that ran under another configuration ({done.config_sha256[:12]}, now "
                                f"{config_sha256[:12]}): measure into another folder (--store), or with the settings it was begun with.")
        return done
    arguments = ["loop", "--preset", preset, "--seed", str(seed), "--store", str(root), "--json", *(f"--set={s}" for s in sets)]
    said = json.loads(_attempt(arguments, root / "claim", f"loop of seed {seed}", ledger))
    samples = [_read(path) for path in sorted((root / "claim").glob("attempt-*.jsonl"))]
    by_asset = _cpu_by_asset(root, samples)
    shown = ["dormouse", "loop", "--preset", preset, "--seed", str(seed), *(f"--set={s}" for s in sets)]
    done = LoopRun(
        command=shlex.join(shown), config_sha256=config_sha256, base=said["base"]["identity"], promoted=said["promoted"]["identity"],
        wall=sum(float(s[-1, 0] - s[0, 0]) for s in samples), cpu=sum(float(s[-1, 1] - s[0, 1]) for s in samples),
        cpu_rl=sum(by_asset.get(name, 0.0) for name in RL_PART), cpu_by_asset=by_asset, attempts=len(samples),
        overhead={r["partition"] or "base": r["dagster_seconds"] / r["wall"] for r in said["runs"] if r["run_id"]},
        cycles=len(said["cycles"]), promotions=sum(c["promote"] for c in said["cycles"]))
    write_atomic(record, done.model_dump_json(indent=1).encode())
    return done


def _attempt(arguments: Sequence[str], folder: Path, label: str, ledger: Ledger) -> str:
    """Run the command to its end, sampling; returns its standard output."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("attempt-*.jsonl")))
    environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    answer = folder / "loop.stdout"
    known = cpu.children()
    with cpu.adopting(), open(folder / f"attempt-{number:03d}.jsonl", "w") as curve, open(answer, "wb") as out:
        began, at_start = time.time(), cpu.children_seconds()
        _note(curve, began, 0.0)
        process = subprocess.Popen([sys.executable, "-m", "dormouse_pipeline.cli.main", *arguments], stdout=out, env=environment,
                                   preexec_fn=lambda: cpu.die_with_parent(signal.SIGTERM))
        highest = 0.0
        while True:
            try:
                code = process.wait(EVERY)
                ended = time.time()
                break
            except subprocess.TimeoutExpired:
                highest = max(highest, cpu.children_seconds() - at_start)  # a process that ends between two looks may be missed once
                _note(curve, time.time(), highest)
                ledger.progress(label, round(time.time() - began), 0, "s wall", cpu_seconds=round(highest))
        cpu.reap(known)
        _note(curve, ended, max(highest, cpu.children_seconds() - at_start))
    if code:
        raise DormouseError(f"`dormouse {shlex.join(arguments)}` ended with exit code {code}; its own message stands above. The same "
                            "claim command goes on where it stopped.")
    return answer.read_text()


def _note(file: TextIO, at: float, seconds: float) -> None:
    file.write(json.dumps([round(at, 3), round(seconds, 3)]) + "\n")
    file.flush()


def _read(path: Path) -> np.ndarray:
    """[n, 2] of (time, CPU-seconds so far); a last line that a kill tore is left out."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return np.array(rows, dtype=np.float64).reshape(-1, 2) if rows else np.zeros((1, 2))


def _cpu_by_asset(root: Path, samples: Sequence[np.ndarray]) -> dict[str, float]:
    """CPU-seconds between the start and the end of every step in the event log; a step that was killed ends with its attempt."""
    spent: defaultdict[str, float] = defaultdict(float)
    with project_instance(Project.at(root)) as instance:
        steps = [step for run in instance.get_runs() for step in instance.get_run_step_stats(run.run_id)]
    for step in steps:
        for curve in samples:
            first, last = curve[0, 0], curve[-1, 0]
            if step.start_time is None or not first <= step.start_time <= last:
                continue
            end = min(step.end_time or last, last)
            at_start, at_end = np.interp([step.start_time, end], curve[:, 0], curve[:, 1])
            spent[step.step_key] += float(at_end - at_start)
    return {name: round(value, 2) for name, value in spent.items()}
