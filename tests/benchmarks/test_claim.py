"""The whole of `make claim` on preset tiny: slow, because every seed is a loop."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETS = [f"train.data={ROOT / 'dormouse_core' / 'config'}", "train.steps=4", "train.eval_batches=1", "sft.rows_per_pool=12",
        "sft.max_epochs=2", "rl.rounds=2", "eval.tasks_per_pool=3", "eval.bootstrap=100", "loop.cycles=1", "roll.workers=2"]


def claim(store: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.claim", "--preset", "tiny", "--seeds", "1", "--store", str(store), "--tasks-per-pool", "4",
               "--json", *(f"--set={s}" for s in SETS), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_claim_on_tiny_ends_with_0_prints_its_bounds_and_is_read_back(tmp_path: Path) -> None:
    first = claim(tmp_path / "claim")
    assert first.returncode == 0, first.stderr
    said = json.loads(first.stdout)
    seed = said["seeds"][0]
    assert set(seed["identities"]) == {"base", "promoted", "more_sft", "own_passes"}
    assert 0 < seed["loop"]["cpu_rl"] < seed["loop"]["cpu"]
    assert {b["verdict"] for b in said["bounds"]} <= {"HOLDS", "FALLS SHORT"}
    again = claim(tmp_path / "claim")
    assert json.loads(again.stdout) == said
    other = claim(tmp_path / "claim", "--set", "rl.rounds=3")
    assert other.returncode == 1 and "another configuration" in other.stderr and "Traceback" not in other.stderr
