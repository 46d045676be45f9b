"""The whole of `make claim` on preset tiny: slow, because every seed is a loop."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dormouse_pipeline.locking import holder_of

ROOT = Path(__file__).resolve().parents[2]
SETS = [f"train.data={ROOT / 'dormouse_core' / 'config'}", "train.steps=4", "train.eval_batches=1", "sft.rows_per_pool=12",
        "sft.max_epochs=2", "rl.rounds=2", "eval.tasks_per_pool=3", "eval.bootstrap=100", "loop.cycles=1", "roll.workers=2"]


def claim(store: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*command(store), *more], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def command(store: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.claim", "--preset", "tiny", "--seeds", "1", "--store", str(store), "--tasks-per-pool", "4",
            "--json", *(f"--set={s}" for s in SETS)]


def wait_for(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_claim_on_tiny_goes_on_ends_with_0_prints_its_bounds_and_is_read_back(tmp_path: Path) -> None:
    begun = subprocess.Popen(command(tmp_path / "claim"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.glob("claim/seed-1/checkpoint/*.bin")))
    begun.kill()
    begun.wait()
    wait_for(lambda: holder_of(tmp_path / "claim" / "seed-1") is None)  # the loop dies with the claim
    first = claim(tmp_path / "claim")
    assert first.returncode == 0, first.stderr
    said = json.loads(first.stdout)
    seed = said["seeds"][0]
    assert set(seed["identities"]) == {"base", "promoted", "more_sft", "own_passes"}
    assert 0 < seed["loop"]["cpu_rl"] < seed["loop"]["cpu"]
    assert seed["loop"]["attempts"] == 2 and seed["loop"]["cpu_by_asset"]["pretrained_checkpoint"] > 0
    assert {b["verdict"] for b in said["bounds"]} <= {"HOLDS", "FALLS SHORT"}
    again = claim(tmp_path / "claim")
    assert json.loads(again.stdout) == said
    for change, said_why in ((("--set", "rl.rounds=3"), "another configuration"), (("--tasks-per-pool", "5"), "4 tasks a pool")):
        other = claim(tmp_path / "claim", *change)
        assert other.returncode == 1 and said_why in other.stderr and "Traceback" not in other.stderr
