"""The decode state: one copy forks a sequence, bytes restore it."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.policy.state import State

TINY = PolicyConfig(
    d_model=32, n_heads=2, head_dim=16, n_experts=4, rank=4, d_ffn=64, shared_rank=8, engram_rows=256, engram_dim=8, readout_rank=16
)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return build_policy(TINY, 3)


def after(policy: Policy, rows: list[bytes]):  # type: ignore[no-untyped-def]
    state = policy.initial_state(len(rows))
    for column in zip(*rows, strict=True):
        policy.decode(torch.tensor(column), state)
    return state


def test_a_forked_row_continues_with_the_same_bits_as_its_parent(policy: Policy) -> None:
    parent = after(policy, [b"abcdef", b"ghijkl"])
    lanes = after(policy, [b"??????"] * 5)
    lanes.copy_([3, 0], parent, [1, 0])
    want = policy.decode(torch.tensor([120, 121]), parent)[0]
    got = policy.decode(torch.tensor([120, 0, 0, 121, 0]), lanes)[0]
    assert torch.equal(got[3], want[1]) and torch.equal(got[0], want[0])


@pytest.mark.parametrize("rows", [3, 20])
def test_the_first_rows_decode_in_place_and_leave_those_behind_their_padding_as_they_were(policy: Policy, rows: int) -> None:
    state, ids_B = after(policy, [bytes([65 + i]) for i in range(40)]), torch.arange(rows) + 70
    alone, others = state.select(range(rows)), state.select(range(rows, 40))
    assert torch.equal(policy.decode(ids_B, state.first(rows))[0], policy.decode(ids_B, alone)[0])
    assert torch.equal(state.kda_BTHKV[:rows], alone.kda_BTHKV) and torch.equal(state.tail_B3[:rows], alone.tail_B3)
    stored = max(rows, 16)
    assert torch.equal(state.kda_BTHKV[stored:], others.kda_BTHKV[stored - rows :])
    assert torch.equal(state.tail_B3[stored:], others.tail_B3[stored - rows :])


def test_row_bytes_restore_a_row_exactly(policy: Policy) -> None:
    state = after(policy, [b"abcd", b"efgh", b"ijkl"])
    blobs = [state.row_bytes(i) for i in (2, 0)]
    back = policy.state_from_bytes(blobs)
    assert torch.equal(back.kda_BTHKV, state.kda_BTHKV[[2, 0]]) and torch.equal(back.tail_B3, state.tail_B3[[2, 0]])
    assert len(blobs[0]) == 4 * 2 * 2 * 16 * 16 + 3
    assert [back.row_bytes(i) for i in (0, 1)] == blobs


def test_a_row_of_another_length_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="row 0 holds"):
        policy.state_from_bytes([policy.initial_state(1).row_bytes(0)[:-1]])
    with pytest.raises(IndexError):
        policy.initial_state(2).row_bytes(2)


def test_reset_rows_are_those_of_a_fresh_sequence(policy: Policy) -> None:
    state = after(policy, [b"abcd", b"efgh"])
    state.reset_([1])
    fresh = policy.initial_state(1)
    assert state.row_bytes(1) == fresh.row_bytes(0) != state.row_bytes(0)


def test_select_and_clone_do_not_share_storage(policy: Policy) -> None:
    state = after(policy, [b"abcd", b"efgh"])
    picked, twin = state.select([1, 1, 0]), state.clone()
    want = state.row_bytes(1)
    policy.decode(torch.tensor([1, 2]), state)
    assert picked.row_bytes(0) == picked.row_bytes(1) == twin.row_bytes(1) == want != state.row_bytes(1)


class OneDevice(TorchDispatchMode):
    """What a GPU demands of every operation on rows, and the meta device of some only: all its tensors are on one device."""

    def __init__(self) -> None:
        super().__init__()
        self.indexed = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if "index_" in str(function):
            self.indexed += 1
            assert len({a.device for a in args if isinstance(a, torch.Tensor)}) == 1, function
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [[1, 0], range(2), torch.tensor([1, 0])], ids=["list", "range", "tensor on the cpu"])
def test_rows_are_copied_reset_and_selected_by_indices_on_the_states_own_device(rows: Any) -> None:
    state = State.zeros(4, 2, 2, 16, "meta")
    with OneDevice() as watch:
        assert state.copy_(rows, State.zeros(3, 2, 2, 16, "meta"), rows).kda_TBHKV_padded.device.type == "meta"
        assert state.copy_(rows, State.zeros(3, 2, 2, 16), rows).tail_B3.device.type == "meta", "a state from another device"
        assert state.reset_(rows).select(rows).kda_TBHKV_padded.device.type == "meta"
    assert watch.indexed >= 12


def test_rows_restored_from_bytes_lie_where_the_policy_is(policy: Policy) -> None:
    blob = policy.initial_state(1).row_bytes(0)
    with torch.device("meta"):
        far = Policy(TINY)
    assert far.state_from_bytes([blob]).tail_B3.device.type == "meta"
