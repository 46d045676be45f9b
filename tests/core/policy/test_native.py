"""Native decoding: torch's numbers, the same bits for a row in every batch, and torch in its place wherever it cannot run."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.resolve import resolve
from dormouse_core.kernels import dispatch
from dormouse_core.kernels.native import build
from dormouse_core.kernels.native.build import Unavailable
from dormouse_core.policy import layout, native, native_window
from dormouse_core.policy.model import Policy, build_policy, meta_policy
from dormouse_core.rollouts.native_draw import NativeDraw, sampler
from dormouse_core.rollouts.sampling import sample
from tests.core.policy.made import some_bytes

pytestmark = pytest.mark.usefixtures("unproven")
TINY = resolve("tiny").policy
ODD = PolicyConfig(d_model=128, n_heads=2, head_dim=64, max_iter=3, n_experts=5, rank=3, d_ffn=80, shared_rank=7, engram_rows=64,
                   engram_dim=5, readout_rank=9, moe_topk=3)
CONFIGS = pytest.mark.parametrize("config", [TINY, resolve("nano").policy, ODD], ids=["tiny", "nano", "odd widths"])


def pair(config: PolicyConfig) -> tuple[Policy, Policy]:
    """The same lively weights decoded by torch and natively."""
    policies = [build_policy(config.model_copy(update={"compute": how}), 1) for how in ("torch", "native")]
    for policy in policies:
        rng = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, p in policy.named_parameters():
                if name.startswith(("block.kda.", "block.engram.rows")) and p.dim() == 2:
                    p.mul_(4)
            policy.block.iter_embed.normal_(generator=rng)
            policy.final_norm.uniform_(0.5, 1.5, generator=rng)
            policy.get_buffer("balance_bias_E").normal_(std=0.2, generator=rng)
    return policies[0], policies[1]


def arms() -> str:
    return dispatch.SEEN.arms()["kernel.native_byte"]


@CONFIGS
@pytest.mark.usefixtures("compiler")
def test_native_decoding_is_torchs_within_rounding_state_and_all(config: PolicyConfig) -> None:
    (plain, fast), ids_BL = pair(config), some_bytes(21, 30)
    want, got = plain.initial_state(21), fast.initial_state(21)
    for j in range(30):
        want_logits, want_hidden = plain.decode(ids_BL[:, j], want)
        logits, hidden = fast.decode(ids_BL[:, j], got)
        torch.testing.assert_close(logits, want_logits, atol=3e-5, rtol=1e-4)
        torch.testing.assert_close(hidden, want_hidden, atol=3e-5, rtol=1e-4)
        torch.testing.assert_close(got.kda_BTHKV, want.kda_BTHKV, atol=3e-5, rtol=1e-4)
        assert torch.equal(got.tail_B3, want.tail_B3)
    assert want_logits.abs().max() > 0.5 and arms() == "30/30"


@CONFIGS
@pytest.mark.usefixtures("compiler")
def test_a_natively_decoded_row_has_the_same_bits_in_any_lane_of_any_batch(config: PolicyConfig) -> None:
    policy, row_L = pair(config)[1], some_bytes(10, seed=2)

    def last(ids_BL: Tensor) -> tuple[Tensor, Tensor]:
        state = policy.initial_state(len(ids_BL))
        for j in range(ids_BL.shape[1]):
            logits_BV, _ = policy.decode(ids_BL[:, j], state)
        return logits_BV, state.kda_BTHKV

    alone, state = last(row_L[None])
    for lanes, at in ((2, 1), (3, 0), (5, 4), (7, 6), (8, 3), (13, 12), (64, 5), (131, 130)):
        crowd = some_bytes(lanes, 10, seed=lanes)
        crowd[at] = row_L
        logits_BV, states = last(crowd)
        assert torch.equal(logits_BV[at], alone[0]) and torch.equal(states[at], state[0]), (lanes, at)


@pytest.mark.usefixtures("compiler")
def test_native_decoding_notices_changed_weights() -> None:
    plain, fast = pair(TINY)
    ids_B = some_bytes(4)
    before = fast.decode(ids_B, fast.initial_state(4))[0]
    for policy in (plain, fast):
        with torch.no_grad():
            policy.block.experts.down_u.mul_(3.0)
    after = fast.decode(ids_B, fast.initial_state(4))[0]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, plain.decode(ids_B, plain.initial_state(4))[0], atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.usefixtures("compiler")
def test_an_id_that_is_no_byte_is_refused_before_anything_moves(proven: bool) -> None:
    policy = pair(TINY)[1]
    state = policy.initial_state(4)
    for _ in range(int(proven)):
        policy.decode(some_bytes(4), state)
    before = state.clone()
    for wrong in (256, -1):
        with pytest.raises(IndexError):
            policy.decode(torch.tensor([65, 66, wrong, 67]), state)
    assert torch.equal(state.kda_TBHKV_padded, before.kda_TBHKV_padded) and torch.equal(state.tail_B3, before.tail_B3)


def test_without_a_compiler_torch_decodes_to_its_own_bits_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise Unavailable("no C++ compiler on PATH")

    monkeypatch.setattr(native, "library", none)
    plain, fast = pair(TINY)
    ids_B = some_bytes(4)
    assert torch.equal(fast.decode(ids_B, fast.initial_state(4))[0], plain.decode(ids_B, plain.initial_state(4))[0])
    assert arms() == "0/1" and "no C++ compiler" in dispatch.SEEN.lines[0]


@pytest.mark.parametrize(("change", "why"), [
    ({"n_experts": 40}, "many or wide"), ({"dtype": "bfloat16"}, "bfloat16"), ({"d_ffn": 72}, "d_ffn 72")])
def test_a_policy_native_does_not_know_decodes_in_torch_and_says_why(change: dict[str, object], why: str) -> None:
    policy = build_policy(TINY.model_copy(update={"compute": "native"} | change), 1)
    policy.decode(some_bytes(4), policy.initial_state(4))
    assert arms() == "0/1" and why in dispatch.SEEN.lines[0]


@pytest.mark.usefixtures("compiler")
def test_a_native_result_that_disagrees_with_torch_is_never_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    step = native.NativeByte._step

    def wrong(self: native.NativeByte, ids_B: Tensor, state: native.State) -> tuple[Tensor, Tensor]:
        logits_BV, hidden_BD = step(self, ids_B, state)
        state.kda_TBHKV_padded += 0.5
        return logits_BV, hidden_BD

    monkeypatch.setattr(native.NativeByte, "_step", wrong)
    plain, fast = pair(TINY)
    ids_BL, want, got = some_bytes(4, 3), plain.initial_state(4), fast.initial_state(4)
    for j in range(3):
        assert torch.equal(fast.decode(ids_BL[:, j], got)[0], plain.decode(ids_BL[:, j], want)[0])
    assert torch.equal(got.kda_BTHKV, want.kda_BTHKV)
    assert arms() == "0/3" and "disagrees" in dispatch.SEEN.lines[0]


def test_compiled_calls_are_asked_for_on_a_cpu_and_nowhere_else() -> None:
    config = resolve("nano").policy
    here, elsewhere = build_policy(config, 1), meta_policy(config)
    assert here.computes_natively and isinstance(sampler(here), NativeDraw)
    assert not elsewhere.computes_natively and sampler(elsewhere) is sample


def test_sizes_that_stand_in_python_and_in_the_compiled_code_are_the_same() -> None:
    text = "".join(path.read_text() for path in Path(build.__file__).parent.glob("*.h"))
    found = {name: int(size) for name, size in re.findall(r"constexpr (?:int|long) (BLOCK|CHUNK|ORDERS) = (\d+);", text)}
    assert found == {"BLOCK": layout.BLOCK, "CHUNK": native_window.CHUNK, "ORDERS": len(layout.ORDERS)}
