"""The whole policy with its kernels asked for: the same logits, gradients and decoded bytes as on the torch path."""

import numpy as np
import pytest
import torch
from torch import Tensor

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.kernels.seen import SEEN
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts.deviation import NOTHING
from dormouse_core.rollouts.sampling import sample
from tests.core.kernels.conftest import Kernels

NARROW = PolicyConfig(d_model=16, n_heads=2, head_dim=8, max_iter=2, n_experts=4, rank=4, d_ffn=24, shared_rank=4, readout_rank=8,
                      engram_rows=16, engram_dim=4, chunk=4)
WIDE = NARROW.model_copy(update={"n_experts": 12})
ALWAYS = {"kernel.engram_gather", "kernel.kda_chunked"}
TRAINED = ALWAYS | {"kernel.engram_scatter", "kernel.kda_chunked_backward", "kernel.experts_inner", "kernel.experts_inner_backward"}
GROUPED = {"kernel.experts_in", "kernel.experts_out", "kernel.experts_weight"}


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(32, 127, (batch, length), generator=torch.Generator().manual_seed(1))


def gradients(policy: Policy, logits_BLV: Tensor, ids_BL: Tensor) -> dict[str, Tensor]:
    policy.zero_grad()
    torch.nn.functional.cross_entropy(logits_BLV[:, :-1].flatten(0, 1), ids_BL[:, 1:].flatten()).backward()
    return {name: p.grad.cpu().clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("config", "asked"), [(NARROW, TRAINED), (WIDE, TRAINED | GROUPED)], ids=["narrow", "wide"])
def test_a_window_and_its_gradients_are_those_of_the_torch_path(kernels: Kernels, config: PolicyConfig, asked: set[str]) -> None:
    policy, ids_BL = build_policy(config, 1), ids(2, 9)
    want = policy(ids_BL)
    want_gradients = gradients(policy, want.logits_BLV, ids_BL)
    policy.to(kernels.device)
    logits_BLV, stream = kernels(lambda x: (lambda out: (out.logits_BLV, out.state.kda_BTHKV))(policy(x)), ids_BL)
    torch.testing.assert_close(logits_BLV, want.logits_BLV, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(stream, want.state.kda_BTHKV, atol=1e-5, rtol=1e-4)
    got = gradients(policy, logits_BLV, ids_BL)
    assert got.keys() == want_gradients.keys() and set(SEEN.asked) == asked
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, want_gradients[name], atol=1e-5, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


def test_decoding_and_sampling_byte_by_byte_are_those_of_the_torch_path(kernels: Kernels) -> None:
    policy, ids_BL = build_policy(WIDE, 1), ids(2, 3)
    names = [np.ones(2), *(np.arange(2) + i for i in range(3)), np.full(2, NOTHING)]
    state, moving = policy.initial_state(2), policy.initial_state(2)
    want = []
    for ids_B in ids_BL.unbind(1):
        logits_BV, _ = policy.decode(ids_B, state)
        want.append((logits_BV, sample(logits_BV, *names)))
    policy.to(kernels.device)
    moving.kda_TBHKV_padded, moving.tail_B3_padded = (x.to(kernels.device) for x in (moving.kda_TBHKV_padded, moving.tail_B3_padded))
    for ids_B, (logits_BV, drawn) in zip(ids_BL.unbind(1), want, strict=True):
        got, *bytes_ = kernels(lambda x: (lambda y: (y, *map(torch.from_numpy, sample(y, *names))))(policy.decode(x, moving)[0]), ids_B)
        torch.testing.assert_close(got, logits_BV, atol=1e-5, rtol=1e-4)
        assert np.array_equal(bytes_[0].numpy(), drawn.byte_X)
    torch.testing.assert_close(moving.kda_BTHKV.cpu(), state.kda_BTHKV, atol=1e-5, rtol=1e-4)
    assert {"kernel.kda_step", "kernel.engram_gather", "kernel.sample"} | GROUPED - {"kernel.experts_weight"} <= set(SEEN.asked)
