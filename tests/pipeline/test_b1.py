"""The target preset on this machine: a step, a sample, a save and a whole cycle, each within the memory that is promised. Slow."""

import email
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dormouse_core.artifacts.provenance import Kind
from dormouse_core.artifacts.store import Store
from dormouse_core.rollouts.stage import RolloutSet
from tests.pipeline.conftest import ROOT, dormouse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
LIMIT_GIB = 20

STEP = """
import json, sys
import numpy as np, torch
from pathlib import Path
from dormouse_core.artifacts.checkpoint import Checkpoint
from benchmarks.memory_peak import peak_bytes
from dormouse_core.artifacts.provenance import Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.learning.batches import text_batch
from dormouse_core.learning.memory import process_bytes
from dormouse_core.learning.sft import copied
from dormouse_core.learning.update import TextWork, update
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts.streams import Stream, complete
from dormouse_core.rollouts.workers import WorkerPool

config = resolve("b1")
torch.set_num_threads(config.runtime.threads)
policy = build_policy(config.policy, 1)
with torch.no_grad():
    finite = bool(torch.isfinite(policy(torch.arange(64)[None]).logits_BLV).all())
best, optimizer = copied(policy), build_optimizer(policy, config.sft.optimizer, 10)
row, mask = (np.arange(128) * 37 % 200 + 20).astype(np.uint8), np.arange(128) > 0
batches = text_batch([row, row[::-1].copy()], [mask] * 2, [~mask & mask] * 2, 0.0, 2)
with WorkerPool(1, config.runtime.threads) as pool:
    pool.set_weights(policy)
    outcome = update(policy, optimizer, pool, [TextWork(b, config.policy.deep_loss, count_load=True) for b in batches])
del best
(stream,) = complete(policy, [Stream(b"1+2=", 64, 1.0, 1)])
policy.refresh()
stepped, held = peak_bytes() / 2**30, process_bytes() / 2**30
made = Checkpoint(config, dict(policy.state_dict()), optimizer.state(), {})
store = Store(Path(sys.argv[1]))
with open("/proc/self/clear_refs", "w") as file:  # the peak counts from here
    file.write("5")
before = process_bytes() / 2**30
store.save_resume("b1", made, Provenance(kind=Kind.CHECKPOINT, stage="test", config_sha256="c", code_version="v", seed=1))
saved = peak_bytes() / 2**30 - before
print(json.dumps({"finite": finite, "applied": outcome.applied, "loss": outcome.report["text_sum"], "sampled": len(stream.raw),
                  "stop": stream.finish, "peak": stepped, "held": held, "save": saved,
                  "file": store.resume_path("b1").stat().st_size / 2**30}))
"""


def test_b1_runs_forward_a_step_and_64_sampled_bytes_in_20_gib_and_saves_with_less_than_1_gib_beside_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", STEP, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["finite"] and found["applied"] and 3 < found["loss"] < 10
    assert found["sampled"] == 64 or found["stop"] == "stop"
    assert found["peak"] < LIMIT_GIB
    assert found["file"] > 8, "weights, masters and moments"
    assert found["save"] < 1, f"{found['save']:.2f} GiB beside the model"


SUITE = '[[cells]]\npool = "math"\nfamily = "gcd"\ndifficulty = 3\n'
BUDGET = 64
"""Bytes an answer to `gcd` may have."""


def test_b1_goes_through_a_whole_cycle_of_the_same_assets_as_nano(tmp_path: Path) -> None:
    suite = tmp_path / "one.toml"
    suite.write_text(SUITE)
    sets = [f"train.data={Path(email.__file__).parent}", "train.steps=1", "train.batch=1", "train.seq_len=64", "train.micro_batches=1",
            "train.eval_batches=1", "sft.rows_per_pool=16", "sft.heldout_share=0.3", "sft.batch=16", "sft.micro_batches=2",
            "sft.max_epochs=1", "roll.prompts=2", "roll.group_size=2", "roll.lanes=32", "rl.rounds=1", "rl.micro_batches=2",
            "rl.interleave_sft=1.0", "rl.truncation_limit=1.0", "eval.tasks_per_pool=2", "eval.samples=1", "eval.bootstrap=100",
            "eval.frozen=false", "verify.workers=1", f"loop.suite={suite}", f"eval.suite={suite}"]
    result = dormouse("loop", "--preset", "b1", "--cycles", "1", *(part for s in sets for part in ("--set", s)), "--json", cwd=tmp_path,
                      timeout=7000)
    assert result.returncode == 0, result.stderr[-3000:]
    store = Store(tmp_path / "store")
    made = {path.parent.name: path for path in store.root.glob("*/*.*")}
    assert {Kind.CHECKPOINT, Kind.ROLLOUTS, Kind.VERDICTS, Kind.HOLDOUT_VERDICT, Kind.PROMOTION} <= made.keys()
    rolled = [store.read_record(store.open(path), RolloutSet) for path in (store.root / Kind.ROLLOUTS).glob("*.json")]
    (rollouts,) = [r for r in rolled if r.trajectories == 4]
    assert 2 * BUDGET < rollouts.bytes <= 4 * BUDGET, "a policy that has learnt nothing ends few of its answers before their budget"
    checkpoints = [store.open(path) for path in (store.root / Kind.CHECKPOINT).glob("*.bin")]
    assert {c.provenance.stage for c in checkpoints} >= {"pretrained_checkpoint", "sft_checkpoint", "rl_checkpoint"}
    assert all(store.path(c).stat().st_size < 2.2 * 2**30 for c in checkpoints), "what is only read from carries no optimizer"
    (learnt,) = [c for c in checkpoints if c.provenance.stage == "rl_checkpoint"]
    (row,) = store.read_checkpoint(learnt).state["metrics"]
    assert row["applied"] == 1 and row["sft_bytes"] > 0
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20 < LIMIT_GIB
