"""The control plane: named numbers within bounds, and setting them moves nothing else."""

import pytest
import torch

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.config.depth import Depth, FixedDepth, MorDepth, QStopDepth, RandomDepth, SkipDepth
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError
from dormouse_core.policy.control import ControlPlane, Group
from dormouse_core.policy.model import Policy, build_policy, load_policy
from tests.core.policy.test_depth import ARMS, armed, each_arm
from tests.core.policy.test_model import TINY, decode_all, some_bytes

SIZES = {"random": 1, "mor": 33, "skip": 34, "q_stop": 1, "ponder": 33}
OWN = {"random": {"depth_knobs"}, "mor": {"mor_router.weight", "mor_router.bias"}, "q_stop": {"depth_knobs"},
       "skip": {"depth_knobs", "mor_router.weight", "mor_router.bias"}, "ponder": {"mor_router.weight", "mor_router.bias"}}


def moved(plane: ControlPlane) -> torch.Tensor:
    """A legal vector that differs from the present one in every place."""
    low_P, high_P = plane.bounds().unbind(1)
    there = torch.where(plane.get() > (low_P + high_P) / 2, low_P, high_P)
    return torch.where(there == plane.get(), low_P, there)


@each_arm
def test_setting_the_control_plane_moves_its_own_tensors_and_nothing_else(arm: Depth) -> None:
    policy = armed(arm)
    before = {name: t.clone() for name, t in policy.state_dict().items()}
    plane = ControlPlane(policy)
    assert len(plane) == len(plane.names) == len(set(plane.names)) == SIZES[arm.kind]
    wanted = moved(plane)
    plane.set(wanted)
    assert torch.equal(plane.get(), wanted)
    assert {name for name, t in policy.state_dict().items() if not torch.equal(t, before[name])} == OWN[arm.kind]
    in_order = [name for name in ("depth_knobs", "mor_router.weight", "mor_router.bias") if name in OWN[arm.kind]]
    plane.set(torch.cat([before[name].reshape(-1) for name in in_order]))
    assert all(torch.equal(t, before[name]) for name, t in policy.state_dict().items())


@each_arm
def test_the_answers_follow_the_control_plane_in_windows_and_in_decoding(arm: Depth) -> None:
    policy, ids_BL = armed(arm), some_bytes(20, 6)
    plane = ControlPlane(policy)
    with torch.no_grad():
        before = policy(ids_BL).logits_BLV
    plane.set(plane.get() + (1 if arm.kind == "random" else 0.3))
    with torch.no_grad():
        after = policy(ids_BL).logits_BLV
    assert not torch.equal(after, before)
    torch.testing.assert_close(decode_all(policy, ids_BL)[0], after, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1.5, -0.1])
def test_a_value_out_of_its_bounds_is_refused_by_name_and_nothing_moves(poison: float) -> None:
    plane = ControlPlane(armed(QStopDepth()), ["depth", "gates"])
    before, values = plane.get(), plane.get()
    values[0], values[5] = poison, 0.25
    with pytest.raises(DormouseError, match=r"depth\.threshold = .* lies outside 0 \.\. 1"):
        plane.set(values)
    assert torch.equal(plane.get(), before)
    with pytest.raises(DormouseError, match=r"\(3,\) values for 193 numbers"):
        plane.set(torch.zeros(3))
    with pytest.raises(ValueError, match="attention_budget"):
        ControlPlane(armed(QStopDepth()), ["attention_budget"])


def test_a_depth_is_a_whole_number_between_the_trained_ones() -> None:
    policy = armed(RandomDepth(least=2))
    plane = ControlPlane(policy)
    assert plane.names == ("depth.iterations",) and plane.bounds().tolist() == [[2.0, 3.0]]
    plane.set(torch.tensor([2.4]))
    assert plane.get().tolist() == [2.0]
    with pytest.raises(DormouseError, match=r"outside 2 \.\. 3"):
        plane.set(torch.tensor([1.0]))


def test_the_gate_rows_belong_to_the_plane_only_when_asked_for() -> None:
    policy = build_policy(TINY, 1)
    before = policy.block.controller.detach().clone()
    assert len(ControlPlane(policy)) == 0 and ControlPlane(policy).get().shape == (0,)
    plane = ControlPlane(policy, [Group.GATES])
    assert len(plane) == 3 * 2 * 32 and plane.names[64] == "gates.memory.0"
    logits = policy.decode(some_bytes(4), policy.initial_state(4))[0]
    plane.set(plane.get() + 0.5)
    assert torch.equal(policy.block.controller[3:], before[3:])
    torch.testing.assert_close(policy.block.controller[:3], before[:3] + 0.5)
    assert not torch.equal(policy.decode(some_bytes(4), policy.initial_state(4))[0], logits)


def stored(policy: Policy) -> Checkpoint:
    return Checkpoint(RunConfig(policy=policy.config), {n: t.clone() for n, t in policy.state_dict().items()})


def with_arm(arm: Depth) -> Policy:
    return build_policy(armed(arm).config, 1)


def test_moved_scalars_travel_with_the_checkpoint_until_the_configuration_names_others() -> None:
    policy = with_arm(SkipDepth())
    ControlPlane(policy).set(torch.cat((torch.tensor([1.25]), ControlPlane(policy).get()[1:])))
    file = stored(policy)

    def threshold(arm: Depth) -> float:
        return float(ControlPlane(load_policy(file, with_arm(arm).config, "a.bin")).get()[0])

    assert threshold(SkipDepth()) == threshold(SkipDepth(price=0.5)) == 1.25
    assert threshold(SkipDepth(threshold=0.5)) == 0.5 and threshold(QStopDepth()) == pytest.approx(0.9)


def test_a_checkpoint_changes_its_arm_without_a_tensor_to_spare() -> None:
    for old in (FixedDepth(), *ARMS.values()):
        file = stored(with_arm(old))
        for new in (FixedDepth(), *ARMS.values()):
            loaded = load_policy(file, with_arm(new).config, "a.bin")
            assert set(loaded.state_dict()) == set(with_arm(new).state_dict())
    assert "depth_knobs" not in with_arm(MorDepth()).state_dict()
