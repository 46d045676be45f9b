"""The memory plan: exact where it counts tensors, close where it estimates, and refusing with what would fit."""

import re
import subprocess
import sys

import pytest

from benchmarks.memory_peak import AGAIN, BF16, TORCH, Case, in_own_process
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


def test_a_cpu_counts_what_its_heap_keeps_and_what_compiled_iterations_leave_out_and_a_gpu_neither() -> None:
    def update(sets: list[str], process: int | None) -> Plan:
        return plan(resolve("nano", sets), Stage.SFT, process, 8192)

    cpu, gpu, torch_cpu = update([], 0), update([], None), update([TORCH], 0)
    assert named(gpu, "freed pieces") == 0 < named(cpu, "freed pieces") < named(torch_cpu, "freed pieces")
    assert named(cpu, "activations") < named(torch_cpu, "activations") == named(gpu, "activations")
    short = int(torch_cpu.peak * 0.9)
    assert any("recomputed iterations" in way.what for way in ways(resolve("nano", [TORCH]), Stage.SFT, short, 0, 8192))
    assert not any("recomputed iterations" in way.what for way in ways(resolve("nano"), Stage.SFT, int(cpu.peak * 0.9), 0, 8192))


def test_iterations_that_are_computed_again_are_planned_as_torchs_whatever_the_policy_computes_by() -> None:
    native, torch_cpu = (plan(resolve("nano", ["policy.recompute=true", *sets]), Stage.SFT, 0, 8192) for sets in ([], [TORCH]))
    assert native == torch_cpu


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


@pytest.mark.parametrize("case", [Case("nano", [], 48, 256), Case("small", [BF16, AGAIN], 4, 128)], ids=["native", "bf16 and recomputed"])
def test_the_plan_of_an_update_is_within_15_percent_of_the_memory_it_takes(case: Case) -> None:
    found = in_own_process(case)
    assert found.measured > 1.8 * found.process, "the process itself is most of it: the plan would be right whatever it said"
    assert found.plan == pytest.approx(found.measured, rel=0.15), found


def test_what_a_process_takes_is_measured_without_what_its_parent_took() -> None:
    program = ("from benchmarks.memory_peak import in_own_process, Case, TORCH\nheld = b'x' * (1 << 30)\n"
               "print(in_own_process(Case('tiny', [TORCH], 2, 32)).measured)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1 << 30


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", [
    Case("nano", [TORCH], 32, 256), Case("nano", [TORCH, AGAIN], 128, 256), Case("small", [], 4, 512), Case("small", [TORCH], 4, 512),
    Case("small", [BF16], 4, 512), Case("small", [AGAIN], 8, 512), Case("small", [BF16, AGAIN], 8, 512), Case("b1", [], 1, 256),
], ids=lambda case: f"{case.preset} {' '.join(case.sets)}")  # fmt: skip
def test_the_plan_of_larger_updates_is_within_15_percent_too(case: Case) -> None:
    found = in_own_process(case)
    assert found.plan == pytest.approx(found.measured, rel=0.15), found
