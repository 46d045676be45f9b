"""Native windows: torch's numbers and gradients, the same bits for a row in every batch, and torch in place wherever they cannot run."""

import math
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.resolve import resolve
from dormouse_core.kernels import dispatch
from dormouse_core.kernels.native.build import Unavailable
from dormouse_core.policy import compiled, native_window
from dormouse_core.policy.entrance import Entered, Memory
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.policy.native_entrance import NativeEntrance
from dormouse_core.policy.native_readout import NativeReadout
from tests.core.policy.made import some_bytes
from tests.core.policy.test_native import CONFIGS, ODD, TINY, pair

pytestmark = pytest.mark.usefixtures("unproven")
tiny_pair = cache(lambda: pair(TINY))


def arms() -> str:
    return dispatch.SEEN.arms()["kernel.native_window"]


def ran_natively() -> None:
    """Every window that was asked for natively was: what agrees with torch is not torch."""
    ran, asked = arms().split("/")
    assert ran == asked != "0", dispatch.SEEN.lines


def gradients(policy: Policy, ids_BL: Tensor, length_B: Tensor) -> dict[str, Tensor]:
    """Of a loss that reads logits, every iteration's logits, hidden and final state, from a state that is not zero."""
    state = policy(some_bytes(len(ids_BL), 20, seed=9)).state
    out = policy(ids_BL, state, deep=True, length_B=length_B)
    rng = torch.Generator().manual_seed(3)
    assert out.deep_TBLV is not None
    read = (out.logits_BLV, out.deep_TBLV, out.hidden_BLD, out.state.kda_BTHKV)
    seen_BL1 = (torch.arange(ids_BL.shape[1]) < length_B[:, None])[..., None]
    loss = sum(((x * seen_BL1 if i < 3 else x) * torch.randn(x.shape, generator=rng)).sum() for i, x in enumerate(read))
    assert isinstance(loss, Tensor)
    named = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: g for name, g in zip(named, found, strict=True) if g is not None}


def agree(got: Tensor, want: Tensor, name: str = "") -> None:
    error, size = float((got - want).detach().abs().max()), float(want.detach().abs().max())
    assert error <= 2e-4 * max(size, 1e-3), f"{name} is off by {error:.2g} of {size:.2g}"


@CONFIGS
@pytest.mark.usefixtures("compiler")
def test_native_windows_and_all_their_gradients_are_torchs_within_rounding(config: PolicyConfig) -> None:
    plain, fast = pair(config)
    ids_BL, ends = some_bytes(3, 70), (70, 1, 33)
    length_B = torch.tensor(ends)
    want, got = plain(ids_BL, length_B=length_B), fast(ids_BL, length_B=length_B)
    for row, end in enumerate(ends):
        agree(got.logits_BLV[row, :end], want.logits_BLV[row, :end], "logits")
    agree(got.state.kda_BTHKV, want.state.kda_BTHKV, "state")
    expected, found = gradients(plain, ids_BL, length_B), gradients(fast, ids_BL, length_B)
    assert set(found) == set(expected) and len(found) > 25
    for name, grad in found.items():
        assert expected[name].abs().max() > 0
        agree(grad, expected[name], name)
    ran_natively()


@pytest.mark.usefixtures("compiler")
@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 4), length=st.integers(1, 300), seed=st.integers(0, 99))
def test_a_window_of_any_size_is_torchs_within_rounding(rows: int, length: int, seed: int) -> None:
    plain, fast = tiny_pair()
    ids_BL = some_bytes(rows, length, seed=seed)
    want, got = plain(ids_BL), fast(ids_BL)
    agree(got.logits_BLV, want.logits_BLV)
    agree(got.state.kda_BTHKV, want.state.kda_BTHKV)
    wanted, found = (torch.autograd.grad(out.logits_BLV.square().sum(), p.block.kda.key)[0] for out, p in ((want, plain), (got, fast)))
    agree(found, wanted)
    ran_natively()


@CONFIGS
@pytest.mark.usefixtures("compiler")
def test_a_row_of_a_native_window_has_the_same_bits_in_any_batch_and_without_gradients(config: PolicyConfig) -> None:
    policy, row_L = pair(config)[1], some_bytes(1, 290)[0]
    with torch.inference_mode():  # the first window of the process, so that the comparison with torch meets this mode too
        bare = policy(row_L[None])
    alone = policy(row_L[None])
    assert torch.equal(bare.logits_BLV, alone.logits_BLV) and torch.equal(bare.state.kda_BTHKV, alone.state.kda_BTHKV)
    for rows, at in ((2, 1), (5, 0), (9, 4)):
        crowd = some_bytes(rows, 290, seed=rows)
        crowd[at] = row_L
        out = policy(crowd)
        assert torch.equal(out.state.kda_BTHKV[at], alone.state.kda_BTHKV[0]), rows
        if config is not ODD:  # torch's own products of readout and head need widths that fill registers
            assert torch.equal(out.logits_BLV[at], alone.logits_BLV[0]), rows
    ran_natively()


@pytest.mark.usefixtures("compiler")
def test_the_state_behind_a_rows_own_end_has_the_bits_of_the_row_alone() -> None:
    policy, ids_BL = pair(resolve("nano").policy)[1], some_bytes(4, 150)
    ends_B = torch.tensor([150, 17, 64, 101])
    states = policy(ids_BL, length_B=ends_B).state.kda_BTHKV
    for row, end in enumerate(ends_B.tolist()):
        assert torch.equal(states[row], policy(ids_BL[row : row + 1, :end]).state.kda_BTHKV[0]), row
    ran_natively()


@pytest.mark.usefixtures("compiler")
def test_changing_a_byte_moves_no_bit_before_it_in_a_native_window() -> None:
    policy, ids_BL = pair(resolve("nano").policy)[1], some_bytes(1, 90)
    before = policy(ids_BL).logits_BLV
    for j in (1, 15, 16, 17, 63, 89):
        changed = ids_BL.clone()
        changed[0, j] ^= 1
        after = policy(changed).logits_BLV
        assert torch.equal(after[0, :j], before[0, :j]) and not torch.equal(after[0, j], before[0, j])
    ran_natively()


@pytest.mark.usefixtures("compiler")
def test_native_gradients_stay_finite_when_every_channel_forgets_at_once() -> None:
    policy = pair(resolve("nano").policy)[1]
    with torch.no_grad():
        policy.block.kda.decay_bias.fill_(100.0)
    found = gradients(policy, some_bytes(2, 40), torch.tensor([40, 40]))
    assert all(torch.isfinite(g).all() for g in found.values())
    ran_natively()


@pytest.mark.usefixtures("compiler")
def test_a_native_window_counts_the_same_load_as_torch() -> None:
    loads = []
    for policy in pair(TINY):
        policy.train()
        policy.count_load = True
        policy(some_bytes(3, 50))
        loads.append(policy.get_buffer("load_E"))
    assert torch.equal(*loads) and int(loads[0].sum()) == 3 * 50 * TINY.max_iter * TINY.moe_topk
    ran_natively()


@pytest.mark.usefixtures("compiler")
def test_decoding_natively_goes_on_where_a_native_window_ended() -> None:
    policy, ids_BL = pair(resolve("nano").policy)[1], some_bytes(17, 40)
    with torch.no_grad():
        whole, state = policy(ids_BL).logits_BLV, policy(ids_BL[:, :30]).state
    for j in range(30, 40):
        logits_BV, _ = policy.decode(ids_BL[:, j], state)
        agree(logits_BV, whole[:, j])
    ran_natively()


def test_without_a_compiler_a_window_has_torchs_bits_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise Unavailable("no C++ compiler on PATH")

    monkeypatch.setattr(compiled, "library", none)
    plain, fast = pair(TINY)
    ids_BL = some_bytes(2, 20)
    for _ in range(2):
        assert torch.equal(fast(ids_BL).logits_BLV, plain(ids_BL).logits_BLV)
    assert arms() == "0/2" and len(dispatch.SEEN.lines) == 1 and "no C++ compiler" in dispatch.SEEN.lines[0]


@pytest.mark.parametrize(("change", "why"), [
    ({"n_experts": 40}, "many or wide"), ({"dtype": "bfloat16"}, "bfloat16"), ({"recompute": True}, "recompute"),
    ({"depth": {"kind": "random"}}, "random")])
def test_a_policy_native_windows_do_not_know_runs_in_torch_and_says_why(change: dict[str, object], why: str) -> None:
    config = PolicyConfig.model_validate(TINY.model_dump() | {"compute": "native"} | change)
    policy = build_policy(config, 1)
    assert policy(some_bytes(2, 20)).logits_BLV.isfinite().all()
    assert arms() == "0/1" and why in dispatch.SEEN.lines[0]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("part", ["embedding", "start", "key", "value", "mean", "h", "state", "hidden", "logits"])
def test_native_windows_that_disagree_with_torch_are_refused_aloud(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    enter, iterate, read_out = NativeEntrance.__call__, native_window.NativeWindow.iterate, NativeReadout.__call__

    def wrongly_entered(self: NativeEntrance, bytes_BX: Tensor) -> Entered:
        h_BLD, start_NP, (key_ND, value_ND) = enter(self, bytes_BX)
        return Entered(off(h_BLD, "embedding"), off(start_NP, "start"), Memory(off(key_ND, "key"), off(value_ND, "value")))

    def wrong(self: native_window.NativeWindow, *given: Any) -> tuple[Tensor, ...]:
        mean_BLD, after_TBLD, state_TBHKV, chosen = iterate(self, *given)
        return off(mean_BLD, "mean"), off(after_TBLD, "h"), off(state_TBHKV, "state"), chosen

    def wrongly_read(self: NativeReadout, mean_XD: Tensor) -> tuple[Tensor, Tensor]:
        hidden_XD, logits_XV = read_out(self, mean_XD)
        return off(hidden_XD, "hidden"), off(logits_XV, "logits")

    def off(x: Tensor, name: str) -> Tensor:
        return x * 1.01 if name == part else x

    monkeypatch.setattr(NativeEntrance, "__call__", wrongly_entered)
    monkeypatch.setattr(native_window.NativeWindow, "iterate", wrong)
    monkeypatch.setattr(NativeReadout, "__call__", wrongly_read)
    plain, fast = pair(TINY)
    ids_BL = some_bytes(2, 20)
    assert torch.equal(fast(ids_BL).logits_BLV, plain(ids_BL).logits_BLV)
    assert arms() == "0/1" and "disagrees with torch" in dispatch.SEEN.lines[0]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("read", ["logits", "hidden", "deep", "state"])
def test_gradients_of_one_output_alone_are_torchs(read: str) -> None:
    found = []
    for policy in pair(TINY):
        out = policy(some_bytes(2, 40), deep=True)
        assert out.deep_TBLV is not None
        one = {"logits": out.logits_BLV, "hidden": out.hidden_BLD, "deep": out.deep_TBLV[0], "state": out.state.kda_BTHKV}[read]
        found.append(torch.autograd.grad(one.square().sum(), policy.block.kda.key)[0])
    agree(found[1], found[0])
    ran_natively()


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("byte", [-1, 256, 1 << 40])
def test_a_window_with_what_is_no_byte_is_an_index_error_in_both_forms(byte: int) -> None:
    for policy in pair(TINY):
        ids_BL = some_bytes(2, 20)
        ids_BL[1, 7] = byte
        with pytest.raises(IndexError):
            policy(ids_BL)


@pytest.mark.usefixtures("compiler")
def test_a_row_has_the_same_bits_in_any_batch_at_widths_and_depths_that_fill_no_register() -> None:
    odd = TINY.model_copy(update={"d_model": 48, "n_heads": 3, "head_dim": 16, "max_iter": 6})
    row_L, crowd_BL = some_bytes(1, 29, seed=1)[0], some_bytes(3, 29, seed=3)
    crowd_BL[0] = row_L
    for policy in pair(odd):
        hidden = [policy(ids_BL).hidden_BLD[0] for ids_BL in (row_L[None], crowd_BL)]
        agree(*hidden)
        if policy.config.compute == "native":
            assert torch.equal(*hidden)
    ran_natively()


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_ends_of_rows_in_any_integer_type_are_the_same_ends(dtype: torch.dtype) -> None:
    policy, ends_B = pair(TINY)[1], torch.tensor([70, 1, 33])
    states = [policy(some_bytes(3, 70), length_B=ends_B.to(kind)).state.kda_BTHKV for kind in (torch.int64, dtype)]
    assert torch.equal(*states)
    ran_natively()


@pytest.mark.usefixtures("compiler")
def test_a_state_of_another_type_or_shape_is_refused_before_it_is_read() -> None:
    policy, ids_BL = pair(TINY)[1], some_bytes(20, 20)
    for change in (lambda x: x.half(), lambda x: x.double(), lambda x: x[:, :5], lambda x: x[:1]):
        state = policy.initial_state(20)
        state.kda_TBHKV_padded = change(state.kda_TBHKV_padded)
        with pytest.raises((ValueError, RuntimeError)):
            policy(ids_BL, state)


@pytest.mark.usefixtures("compiler")
def test_a_native_window_does_not_depend_on_torchs_default_type_or_device() -> None:
    policy, ids_BL = pair(TINY)[1], some_bytes(2, 300)
    state, want = policy.initial_state(2), policy(ids_BL).logits_BLV
    torch.set_default_dtype(torch.float64)
    try:
        got = policy(ids_BL, state).logits_BLV
        got.sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got, want)
    ran_natively()


@pytest.mark.usefixtures("compiler")
def test_a_window_without_gradients_keeps_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, kept, rows = pair(TINY)[1], native_window._kept, list[int]()
    policy(some_bytes(2, 20))
    monkeypatch.setattr(native_window, "_kept", lambda s, n, like: (rows.append(n), kept(s, n, like))[1])
    with torch.no_grad():
        bare = policy(some_bytes(2, 700))
    assert rows == [native_window.BLOCK]
    assert torch.equal(policy(some_bytes(2, 700)).logits_BLV, bare.logits_BLV) and rows[1:] == [1400] * TINY.max_iter
    ran_natively()


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("name", "row"), [("engram.key", 0), ("controller", 0), ("controller", 1), ("controller", 2 + TINY.n_experts)])
def test_a_weight_that_is_no_number_is_seen_in_windows_and_bytes_as_in_torch(name: str, row: int, value: float) -> None:
    ids_BL, sound = some_bytes(17, 40), []
    for policy in pair(TINY):
        policy.decode(ids_BL[:, 0], policy(ids_BL).state)
        with torch.no_grad():
            policy.get_parameter(f"block.{name}")[row, 0] = value
        logits_BV, _ = policy.decode(ids_BL[:, 0], policy.initial_state(17))
        sound.append((bool(policy(ids_BL).logits_BLV.isfinite().all()), bool(logits_BV.isfinite().all())))
    assert sound[0] == sound[1] and (math.isinf(value) or sound[0] == (False, False))
    ran_natively()
