"""The memory plan: exact where it counts tensors, close where it estimates, and refusing with what would fit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dormouse_core.config.resolve import resolve
from dormouse_core.learning.memory import GIB, Plan, Stage, When, largest_micro_batch, plan, refuse_unfit, ways
from dormouse_core.ledger import DormouseError

B1 = resolve("b1")


def named(made: Plan, name: str) -> int:
    return sum(item.bytes for item in made.items if item.name.startswith(name))


def test_b1_in_full_has_the_weights_masters_and_moments_of_the_arithmetic() -> None:
    config = resolve("b1", ["policy.dtype=bfloat16"])
    made = plan(config, Stage.TRAIN, None, 4096)
    total, muon, rest = 1_065_407_140, 1_017_647_104, 22_594_212
    assert named(made, "weights") == pytest.approx(2 * total, rel=1e-4)
    assert named(made, "fp32 masters") == 4 * total
    assert named(made, "Muon+ momentum") == pytest.approx(2 * muon, rel=2e-3)
    assert named(made, "AdamW moments") == pytest.approx(8 * rest, rel=0.02)
    assert named(made, "Adam moments of tables") == 8 * 3 * 262_144 * 32
    assert named(made, "gradients, summed") == 2 * total


def test_frozen_experts_and_tables_have_no_gradients_masters_or_moments() -> None:
    made = plan(resolve("b1", ["policy.dtype=bfloat16"]), Stage.RL, None, 4096)
    assert named(made, "fp32 masters") < 0.14 * GIB and named(made, "gradients, summed") < 0.07 * GIB
    assert named(made, "states of 64 lanes") == 64 * (6 * 2**20 + 3)


def test_fp32_policies_have_no_masters() -> None:
    assert named(plan(resolve("small"), Stage.SFT), "fp32 masters") == 0


def test_what_does_not_fit_is_refused_with_settings_that_do() -> None:
    with pytest.raises(DormouseError, match=r"sft of preset b1 needs [\d.]+ GiB[\s\S]*stochastic rounding[\s\S]*--set") as caught:
        refuse_unfit(B1, Stage.SFT, 16 * GIB)
    for line in str(caught.value).splitlines()[1:]:
        sets = re.findall(r"--set (\S+)", line)
        assert sets and refuse_unfit(resolve("b1", sets), Stage.SFT, 16 * GIB).peak <= 16 * GIB
    assert refuse_unfit(B1, Stage.RL, 16 * GIB).peak < 16 * GIB


def test_changes_that_fit_only_together_are_named_together_and_hopeless_cases_say_so() -> None:
    alone = ways(B1, Stage.SFT, plan(B1, Stage.SFT).peak - 1)
    assert alone and all(len(way.what) == 1 for way in alone)
    (together,) = ways(B1, Stage.SFT, min(way.peak for way in alone) - 1)
    assert len(together.what) > 1 and plan(resolve("b1", together.sets), Stage.SFT).peak == together.peak
    with pytest.raises(DormouseError, match="No setting makes it fit"):
        refuse_unfit(B1, Stage.SFT, 2 * GIB)


def test_the_plan_is_for_the_largest_micro_batch_the_configuration_allows() -> None:
    config = resolve("nano", ["sft.batch=10", "sft.micro_batches=4", "policy.max_seq_len=100"])
    assert largest_micro_batch(config, Stage.SFT) == 3 * 100
    some, more = (plan(config, Stage.SFT, 0, n).of(When.UPDATE) for n in (300, 600))
    assert plan(config, Stage.SFT, 0).of(When.UPDATE) == some < more


MEASURE = """
import json, resource, sys
import numpy as np, torch
from dormouse_core.config.resolve import resolve
from dormouse_core.config.stages import RolloutConfig
from dormouse_core.learning.batches import text_batch
from dormouse_core.learning.memory import Stage, plan, process_bytes
from dormouse_core.learning.sft import copied
from dormouse_core.learning.update import TextWork, update
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.workers import WorkerPool

preset, sets, rows, length, steps = json.loads(sys.argv[1])
config = resolve(preset, sets)
torch.set_num_threads(config.runtime.threads)
small = Policy(resolve("tiny").policy)
for p in small.parameters():
    torch.nn.init.constant_(p, 0.1)
mask = np.ones(length, bool)
mask[0] = False
row = (np.arange(length) * 37 % 200 + 20).astype(np.uint8)


def works(rows, length, parts):
    batches = text_batch([row[:length]] * rows, [mask[:length]] * rows, [np.zeros(length, bool)] * rows, 0.0, parts)
    return [TextWork(b, config.policy.deep_loss, count_load=True) for b in batches]


with WorkerPool(1, config.runtime.threads) as pool:  # everything is imported and started before what is there is measured
    pool.set_weights(small)
    update(small, build_optimizer(small, config.sft.optimizer, 2), pool, works(2, 32, 2))
process = process_bytes()
expected = plan(config, Stage.SFT, process, rows * length)
policy = Policy(config.policy)
with torch.no_grad():
    for i, p in enumerate(policy.parameters()):
        p.normal_(std=0.02, generator=torch.Generator().manual_seed(i))
best, optimizer = copied(policy), build_optimizer(policy, config.sft.optimizer, 10)
with WorkerPool(1, config.runtime.threads) as pool:
    pool.set_weights(policy)
    for _ in range(steps):
        assert update(policy, optimizer, pool, works(2 * rows, length, 2)).applied
measured = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"process": process, "plan": expected.peak, "measured": measured}))
"""


def measured(preset: str, sets: list[str], rows: int, length: int, steps: int = 2) -> dict[str, int]:
    done = subprocess.run([sys.executable, "-c", MEASURE, json.dumps([preset, sets, rows, length, steps])], capture_output=True, text=True,
                          cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


RECOMPUTED = pytest.mark.xfail(strict=False, reason=(
    "measured: with policy.recompute a process peaks 43 to 61 % above the plan (docs/policy.md)"))
B1_TAKES_LESS = pytest.mark.xfail(strict=False, reason="measured: b1 took 13.8 GB where the plan says 17.6 GB (docs/policy.md)")


@pytest.mark.parametrize(("preset", "sets", "rows", "length"), [
    ("nano", [], 32, 256),
    pytest.param("small", ["policy.recompute=true", "policy.dtype=bfloat16"], 4, 128, marks=RECOMPUTED),
], ids=["nano, fp32", "small, bf16 and recomputed"])
def test_the_plan_of_an_update_is_within_15_percent_of_the_memory_it_takes(preset: str, sets: list[str], rows: int, length: int) -> None:
    found = measured(preset, sets, rows, length)
    assert found["measured"] > 1.3 * found["process"], "the process itself is most of it: the plan would be right whatever it said"
    assert found["plan"] == pytest.approx(found["measured"], rel=0.15), found


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("preset", "sets", "rows", "length"), [
    ("small", [], 4, 512), pytest.param("small", ["policy.recompute=true"], 8, 512, marks=RECOMPUTED),
    ("small", ["policy.dtype=bfloat16"], 4, 512), pytest.param("b1", ["runtime.threads=2"], 1, 256, marks=B1_TAKES_LESS),
])
def test_the_plan_of_larger_updates_is_within_15_percent_too(preset: str, sets: list[str], rows: int, length: int) -> None:
    found = measured(preset, sets, rows, length, steps=1 if preset == "b1" else 2)
    assert found["plan"] == pytest.approx(found["measured"], rel=0.15), found
