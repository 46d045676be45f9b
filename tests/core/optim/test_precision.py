"""bf16 parameters: stochastic rounding is unbiased and a function of its key, masters lose no small step."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dormouse_core.config.optimizer import OptimizerConfig
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.optim.precision import ALL, Slot, noise, put, stochastic_round
from dormouse_core.policy.model import build_policy
from dormouse_core.seeding import key
from tests.core.optim.made import TINY, muon_config, train, values

BF16 = TINY.model_copy(update={"dtype": "bfloat16"})


def splitmix(counter: int) -> int:
    """SplitMix64 in Python's own integers."""
    mask = (1 << 64) - 1
    z = counter & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(stream=st.integers(0, 2**63 - 1), row=st.integers(0, 10**9), width=st.integers(1, 11))
@settings(deadline=None, max_examples=50)
def test_noise_is_splitmix64_of_its_counter(stream: int, row: int, width: int) -> None:
    words = -(-width // 4)
    word = [splitmix(stream + (row * words + w + 1) * 0x9E3779B97F4A7C15) for w in range(words)]
    want = [z >> (16 * lane) & 0xFFFF for z in word for lane in range(4)]
    assert noise(stream, torch.tensor([row]), width)[0].tolist() == want[:width]


def test_noise_covers_its_range_evenly_in_every_lane() -> None:
    drawn = noise(key("test"), torch.arange(40_000), 4).numpy()
    for lane in range(4):
        count, _ = np.histogram(drawn[:, lane], bins=64, range=(0, 65536))
        assert ((count - 625) ** 2 / 625).sum() < 63 + 5 * math.sqrt(2 * 63)
    assert abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.025


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda v: v == 0 or 1e-30 < abs(v) < 1e30))
@settings(deadline=None, max_examples=60)
def test_stochastic_rounding_takes_the_two_neighbours_in_the_ratio_that_makes_the_mean_exact(value: float) -> None:
    every = torch.arange(65536, dtype=torch.int32)
    rounded = stochastic_round(torch.full((65536,), value), every).double()
    low, high = rounded.min(), rounded.max()
    assert float(low) <= value <= float(high) and len(rounded.unique()) <= 2
    assert float(rounded.mean()) == pytest.approx(value, rel=1e-7)  # over all noise, to the last bit of fp32


def test_many_small_steps_move_a_bf16_weight_by_their_sum_and_nearest_rounding_loses_them_all() -> None:
    weight, nearest = torch.ones(20_000, 1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16)
    for step in range(200):
        put(weight, ALL, weight.float() + 1e-4, key("stream", step))
        nearest = (nearest.float() + 1e-4).bfloat16()
    assert float(nearest) == 1.0
    assert float(weight.double().mean()) == pytest.approx(1.02, abs=4e-4)  # four standard errors


def test_the_same_key_rounds_to_the_same_bits_however_the_rows_are_cut() -> None:
    rows = torch.randn(10, 7, generator=torch.Generator().manual_seed(0))
    whole, cut, gathered, other = (torch.zeros(10, 7, dtype=torch.bfloat16) for _ in range(4))
    put(whole, ALL, rows, 5)
    put(cut, slice(0, 3), rows[:3], 5)
    put(cut, slice(3, 10), rows[3:], 5)
    put(gathered, torch.tensor([8, 1]), rows[[8, 1]], 5)
    put(other, ALL, rows, 6)
    assert torch.equal(whole, cut) and torch.equal(whole[[8, 1]], gathered[[8, 1]]) and not torch.equal(whole, other)


def test_values_that_are_not_finite_stay_so() -> None:
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), -float("nan")])
    kept = stochastic_round(x, torch.full((4,), 65535, dtype=torch.int32))
    assert torch.equal(kept.isnan(), x.isnan()) and torch.equal(kept[1:3].float(), x[1:3])


def test_a_bf16_weight_is_the_nearest_of_its_master_and_small_steps_add_up_in_it() -> None:
    p = nn.Parameter(torch.ones(3, 4, dtype=torch.bfloat16))
    slot = Slot("p", p, (3, 4), "masters", 0)
    for step in range(50):
        rows = slot.read(ALL)
        rows += 1e-3
        slot.write(ALL, rows, step)
    torch.testing.assert_close(slot.state["master"], torch.full((3, 4), 1.05))
    assert torch.equal(p.detach(), slot.state["master"].bfloat16())


@pytest.mark.parametrize("mode", ["masters", "stochastic"])
def test_a_bf16_policy_learns_close_to_its_fp32_twin(mode: str) -> None:
    config = muon_config(low_precision=mode)
    full, half = build_policy(TINY, 1), build_policy(BF16, 1)
    start = values(full)
    train(full, build_optimizer(full, config, 6), range(6))
    optimizer = build_optimizer(half, config, 6)
    train(half, optimizer, range(6))
    kinds = {name.partition("/")[0] for name in optimizer.state()}
    assert ("master" in kinds) is (mode == "masters")
    for name in ("block.experts.up_v", "readout.u", "block.kda.value", "embedding"):
        moved, twin = dict(full.named_parameters())[name] - start[name], dict(half.named_parameters())[name].float() - start[name]
        assert float(torch.cosine_similarity(moved.detach().flatten(), twin.detach().flatten(), 0)) > 0.7, name


def test_stochastic_runs_repeat_with_their_seed_and_differ_with_another() -> None:
    def trained(seed: int) -> dict[str, torch.Tensor]:
        policy = build_policy(BF16, 1)
        train(policy, build_optimizer(policy, muon_config(low_precision="stochastic"), 4, seed), range(2))
        return values(policy)

    one, again, other = trained(1), trained(1), trained(2)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["block.kda.value"], other["block.kda.value"])


def test_on_fp32_parameters_the_choice_changes_nothing() -> None:
    def trained(mode: str) -> dict[str, torch.Tensor]:
        policy = build_policy(TINY, 1)
        train(policy, build_optimizer(policy, OptimizerConfig.model_validate({"low_precision": mode}), 4), range(2))
        return values(policy)

    masters, stochastic = trained("masters"), trained("stochastic")
    assert all(torch.equal(masters[name], stochastic[name]) for name in masters)
