"""Parts of the policy: hashing, routing, the action distribution, initial values, counts."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.encoding import POLICY_MAY_WRITE
from dormouse_core.ledger import DormouseError
from dormouse_core.policy.counts import parameter_counts
from dormouse_core.policy.engram import hash_rows
from dormouse_core.policy.experts import Factors, mix_dense, mix_sorted, route
from dormouse_core.policy.heads import action_log_probs, entropy
from dormouse_core.policy.model import build_policy, load_policy
from dormouse_core.policy.norms import sigmoid_rows, silu_rows


def fnv1a(window: bytes) -> int:
    digest = 14695981039346656037
    for byte in window:
        digest = ((digest ^ byte) * 1099511628211) % 2**64
    return digest


@given(st.binary(min_size=1, max_size=40))
def test_hashed_rows_are_standard_fnv1a_of_the_last_bytes_with_left_context(text: bytes) -> None:
    ids = torch.tensor([[0, 0, 0, *text]])
    rows = hash_rows(ids, 1024)[0]
    padded = b"\0\0\0" + text
    for j in range(len(text)):
        for column, order in enumerate((2, 3, 4)):
            assert rows[j, column] == fnv1a(padded[j + 4 - order : j + 4]) % 1024 + 1024 * column


def test_hashing_in_two_windows_with_carried_context_equals_one_long_window() -> None:
    ids = torch.randint(0, 256, (3, 43), generator=torch.Generator().manual_seed(0))
    whole = hash_rows(ids, 4096)
    for cut in (1, 2, 20):
        assert torch.equal(torch.cat((hash_rows(ids[:, : cut + 3], 4096), hash_rows(ids[:, cut:], 4096)), 1), whole)


def test_gates_are_unbiased_scores_and_the_bias_only_selects() -> None:
    score = torch.tensor([[0.9, 0.5, 0.4, 0.1]])
    plain, pushed = route(score, torch.zeros(4), 2), route(score, torch.tensor([0.0, 0.0, 0.3, 0.0]), 2)
    assert set(plain.index_Nk[0].tolist()) == {0, 1} and set(pushed.index_Nk[0].tolist()) == {0, 2}
    got = dict(zip(pushed.index_Nk[0].tolist(), pushed.gate_Nk[0].tolist(), strict=True))
    assert got[0] == pytest.approx(0.9 / 1.3) and got[2] == pytest.approx(0.4 / 1.3)


@pytest.mark.parametrize("n", [16, 57, 300])
def test_sorted_segments_and_all_experts_at_once_give_the_same_mixture(n: int) -> None:
    rng = torch.Generator().manual_seed(n)
    code, score = torch.randn(n, 8, 4, generator=rng), torch.rand(n, 8, generator=rng)
    factors = Factors(torch.randn(8, 32, 4, generator=rng), torch.randn(8, 32, 4, generator=rng), None, None)
    choice = route(score, torch.zeros(8), 2)
    torch.testing.assert_close(mix_sorted(code, choice, factors), mix_dense(code, choice, factors), atol=1e-5, rtol=1e-5)


def test_the_action_distribution_has_no_mass_on_role_tags_and_sums_to_one() -> None:
    logits = torch.randn(3, 5, 256, generator=torch.Generator().manual_seed(0))
    for temperature in (1.0, 0.5):
        log_probs = action_log_probs(logits, temperature)
        assert torch.isneginf(log_probs[..., torch.from_numpy(~POLICY_MAY_WRITE)]).all()
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3, 5))
    kept = logits[..., torch.from_numpy(POLICY_MAY_WRITE)]
    torch.testing.assert_close(action_log_probs(logits)[..., torch.from_numpy(POLICY_MAY_WRITE)], torch.log_softmax(kept, -1))
    torch.testing.assert_close(entropy(action_log_probs(torch.zeros(256))), torch.tensor(math.log(POLICY_MAY_WRITE.sum())))
    with pytest.raises(ValueError, match="temperature"):
        action_log_probs(logits, 0.0)


@given(st.integers(1, 70), st.integers(1, 40))
def test_activations_give_an_element_the_same_bits_wherever_it_stands(rows: int, width: int) -> None:
    x = torch.from_numpy(np.random.Generator(np.random.Philox(rows)).standard_normal((rows + 5, width), dtype=np.float32))
    for function in (sigmoid_rows, silu_rows):
        assert torch.equal(function(x[5:].clone()), function(x)[5:])
    torch.testing.assert_close(sigmoid_rows(x), torch.sigmoid(x))
    torch.testing.assert_close(silu_rows(x), torch.nn.functional.silu(x))


@pytest.mark.parametrize(("preset", "total"), [("small", 9_437_088), ("b1", 1_065_407_140)])
def test_counts_of_the_large_presets_come_from_the_module_and_equal_the_design(preset: str, total: int) -> None:
    assert parameter_counts(resolve(preset).policy).total == total


def test_b1_activates_57_million_parameters_a_byte_and_carries_6_mib_of_state() -> None:
    counts = parameter_counts(resolve("b1").policy)
    assert (counts.active, counts.active_one_iteration) == (57_073_412, 35_443_716)
    assert counts.state_bytes == 6 * 2**20 + 3
    assert 0.38e9 < counts.madds_per_byte < 0.40e9


def test_tiny_stays_below_fifty_thousand_parameters_and_memory_rows_below_half() -> None:
    assert parameter_counts(resolve("tiny").policy).total <= 50_000
    for preset in ("tiny", "nano", "small", "b1"):
        policy = resolve(preset).policy
        assert 3 * policy.engram_rows * policy.engram_dim <= parameter_counts(policy).total / 2


def test_factors_start_orthonormal_and_the_decay_remembers_about_twenty_bytes() -> None:
    policy = build_policy(PolicyConfig(), 1)
    for factor in (policy.block.experts.up_v, policy.block.shared_down.u, policy.head.v):
        gram = factor.transpose(-1, -2) @ factor
        torch.testing.assert_close(gram, torch.eye(gram.shape[-1]).expand_as(gram), atol=1e-5, rtol=0)
    alpha = torch.exp(-5 * torch.sigmoid(policy.block.kda.decay_bias))
    torch.testing.assert_close(alpha, torch.full_like(alpha, 0.951), atol=1e-3, rtol=0)


def test_weights_of_another_shape_are_refused_by_name() -> None:
    config = RunConfig()
    weights = dict(build_policy(config.policy, 1).state_dict())
    assert load_policy(Checkpoint(config, weights), config.policy, "base.bin").lfb_version == 0
    weights["block.rho"] = torch.ones(2)
    with pytest.raises(DormouseError, match=r"base\.bin.*[\s\S]*block\.rho"):
        load_policy(Checkpoint(config, weights), config.policy, "base.bin")
