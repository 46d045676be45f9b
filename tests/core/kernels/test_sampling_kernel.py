"""The sampling kernel against the definition in rollouts/sampling.py: its uniforms, its support, its temperature, its log-probs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core import seeding
from dormouse_core.encoding import POLICY_MAY_WRITE
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.rollouts.deviation import NOTHING
from dormouse_core.rollouts.sampling import Draw, draw, log_probs, sample
from tests.core.kernels.conftest import ON_GPU, Kernels
from tests.core.kernels.test_kda_kernels import FEW

triton = pytest.importorskip("triton", reason="triton is not installed: the sampling kernel did not run (pip install -e '.[dev]')")
tl = triton.language
from dormouse_core.kernels.gpu.sampling import uniform  # noqa: E402  (imports triton)

NAMES = ("temperature", "seed", "step", "byte", "avoid")


@triton.jit
def store_uniform(seed, step, byte, out):
    i = tl.program_id(0)
    tl.store(out + i, uniform(tl.load(seed + i), tl.load(step + i), tl.load(byte + i)))


def test_the_kernels_uniforms_are_the_definitions_bit_for_bit() -> None:
    device, named = "cuda" if ON_GPU else "cpu", names(30, 5)
    out = torch.empty(30, dtype=torch.float64, device=device)
    store_uniform[(30,)](*(torch.from_numpy(named[n]).to(device) for n in ("seed", "step", "byte")), out)
    assert out.cpu().numpy().tobytes() == seeding.uniform(named["seed"], named["step"], named["byte"]).tobytes()


def logits(rows: int, seed: int, scale: float = 3.0) -> torch.Tensor:
    return torch.from_numpy(seeding.generator("kernel-logits", seed).normal(size=(rows, 256)).astype(np.float32)) * scale


def names(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = seeding.generator("kernel-names", seed)
    return {"temperature": rng.choice([0.0, 0.3, 0.7, 1.0, 1.7], rows), "seed": rng.integers(0, 2**63 - 1, rows),
            "step": rng.integers(0, 2**34, rows), "byte": rng.integers(0, 4096, rows),
            "avoid": rng.choice(np.array([NOTHING, 5, 65, 200]), rows)}


def kernel_draw(kernels: Kernels, logits_XV: torch.Tensor, **named: np.ndarray) -> Draw:
    back = kernels(lambda x: tuple(torch.from_numpy(a) for a in sample(x, *(named[n] for n in NAMES))), logits_XV)
    return Draw(*(x.numpy() for x in back))


@FEW
@given(rows=st.integers(1, 12), seed=st.integers(0, 999))
def test_kernel_draws_the_bytes_the_cpu_draws_with_their_log_probs_and_entropies(kernels: Kernels, rows: int, seed: int) -> None:
    logits_XV, named = logits(rows, seed), names(rows, seed)
    got = kernel_draw(kernels, logits_XV, **named)
    want = draw(log_probs(action_log_probs, logits_XV, named["temperature"]), *named.values())
    assert np.array_equal(got.byte_X, want.byte_X)
    np.testing.assert_allclose(got.log_prob_X, want.log_prob_X, atol=2e-6, rtol=1e-6)
    np.testing.assert_allclose(got.entropy_X, want.entropy_X, atol=2e-6, rtol=1e-6)


def test_log_probs_are_the_float64_softmax_over_the_support_rounded_once(kernels: Kernels) -> None:
    logits_XV, named = logits(16, 1), names(16, 1)
    got = kernel_draw(kernels, logits_XV, **named)
    divisor = torch.from_numpy(np.where(named["temperature"] == 0, 1.0, named["temperature"]).astype(np.float32))
    masked = (logits_XV / divisor.unsqueeze(1)).double().masked_fill(torch.from_numpy(~POLICY_MAY_WRITE), float("-inf"))
    exact = torch.log_softmax(masked, -1)[torch.arange(16), torch.from_numpy(got.byte_X.astype(np.int64))]
    assert np.abs(got.log_prob_X - exact.float().numpy()).max() <= 1e-6  # one unit in the last place of numbers up to 16


def test_a_uniform_at_the_border_between_two_bytes_falls_where_the_definition_puts_it(kernels: Kernels) -> None:
    """Two bytes of half the mass each: which one is drawn is the first bit of the uniform."""
    rows = 40
    logits_XV = torch.full((rows, 256), -1e4)
    logits_XV[:, [65, 66]] = 1.0
    named = {**names(rows, 2), "temperature": np.ones(rows), "avoid": np.full(rows, NOTHING)}
    uniform_X = seeding.uniform(named["seed"], named["step"], named["byte"])
    assert np.array_equal(kernel_draw(kernels, logits_XV, **named).byte_X, np.where(uniform_X < 0.5, 65, 66))


def test_no_byte_outside_the_support_and_no_excluded_byte_is_drawn(kernels: Kernels) -> None:
    rows = 60
    logits_XV = logits(rows, 3, scale=0.1)
    logits_XV[:, ~torch.from_numpy(POLICY_MAY_WRITE)] = 30.0
    logits_XV[:, 65] = 5.0
    named = {**names(rows, 3), "temperature": np.where(np.arange(rows) % 2, 1.0, 0.0), "avoid": np.full(rows, 65)}
    drawn = kernel_draw(kernels, logits_XV, **named).byte_X
    assert POLICY_MAY_WRITE[drawn].all() and (drawn != 65).all()


def test_where_exclusion_leaves_no_mass_the_kernel_does_what_the_definition_does(kernels: Kernels) -> None:
    logits_XV = torch.full((3, 256), -1e4)
    logits_XV[:, 65] = 1e4
    named = {**names(3, 4), "temperature": np.array([1.0, 0.0, 0.5]), "avoid": np.full(3, 65)}
    got = kernel_draw(kernels, logits_XV, **named)
    want = draw(log_probs(action_log_probs, logits_XV, named["temperature"]), *named.values())
    assert np.array_equal(got.byte_X, want.byte_X) and np.array_equal(got.log_prob_X, want.log_prob_X)
