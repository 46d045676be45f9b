"""Depth arms: as causal, as exact and as forkable as the loop itself; each one's limits are policies that are known."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dormouse_core.config.depth import Depth, FixedDepth, MorDepth, PonderDepth, QStopDepth, RandomDepth, SkipDepth
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.resolve import resolve
from dormouse_core.ledger import DormouseError
from dormouse_core.policy import depth as arms
from dormouse_core.policy.model import Policy, build_policy
from tests.core.policy.test_model import TINY, decode_all, lively, some_bytes

ARMS: dict[str, Depth] = {
    "random": RandomDepth(iterations=2), "mor": MorDepth(slots=2), "skip": SkipDepth(threshold=0.0, ramp=2.0),
    "q_stop": QStopDepth(threshold=0.6, ramp=0.4), "ponder": PonderDepth(),
}  # fmt: skip
each_arm = pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)


def armed(arm: Depth, base: PolicyConfig = TINY, seed: int = 1, **changes: object) -> Policy:
    """A lively policy of three iterations whose router and Q head tell bytes apart: their scores lie around 0."""
    config = PolicyConfig.model_validate(base.model_dump() | {"max_iter": 3, "depth": arm.model_dump()} | changes)
    policy, rng = lively(config, seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for head in (policy.mor_router, policy.q_head):
            head.weight.normal_(0, 0.3, generator=rng)
            head.bias.zero_()
        trace = policy(some_bytes(16, 16, seed=3)).depth
        if trace is not None and trace.score is not None:
            for head in (policy.mor_router, policy.q_head):
                head.bias.fill_(-float(trace.score.mean()))
    return policy


def twin(policy: Policy, **changes: object) -> Policy:
    """The same weights under another configuration (fewer iterations take the first step embeddings)."""
    config = PolicyConfig.model_validate(policy.config.model_dump() | changes)
    other, weights = Policy(config), dict(policy.state_dict())
    weights["block.iter_embed"] = weights["block.iter_embed"][: config.max_iter]
    other.load_state_dict({name: weights.get(name, t) for name, t in other.state_dict().items()})
    return other


def set_router(policy: Policy, bias: float) -> Policy:
    """Every byte gets the same score from the router and the Q head."""
    with torch.no_grad():
        for head in (policy.mor_router, policy.q_head):
            head.weight.zero_()
            head.bias.fill_(bias)
    return policy


def trace_of(policy: Policy, ids_BL: Tensor) -> arms.Trace:
    with torch.no_grad():
        trace = policy(ids_BL).depth
    assert trace is not None
    return trace


@each_arm
def test_changing_byte_j_never_moves_a_logit_before_j_under_any_arm(arm: Depth) -> None:
    policy, ids_BL = armed(arm), some_bytes(3, 37)
    with torch.no_grad():
        before = policy(ids_BL).logits_BLV
        for j in (0, 1, 15, 16, 36):
            changed = ids_BL.clone()
            changed[:, j] ^= 0x55
            after = policy(changed).logits_BLV
            assert torch.equal(after[:, :j], before[:, :j]), j
            assert not torch.equal(after[:, j], before[:, j]), j


@pytest.mark.parametrize("n_experts", [4, 24], ids=["narrow experts", "wide experts"])
@each_arm
def test_decoding_byte_by_byte_is_the_teacher_forced_forward_under_any_arm(arm: Depth, n_experts: int) -> None:
    policy, ids_BL = armed(arm, n_experts=n_experts), some_bytes(20, 18)
    with torch.no_grad():
        out = policy(ids_BL)
    logits_BLV, hidden_BLD, state = decode_all(policy, ids_BL)
    torch.testing.assert_close(logits_BLV, out.logits_BLV, atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(hidden_BLD, out.hidden_BLD, atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(state.kda_BTHKV, out.state.kda_BTHKV, atol=5e-5, rtol=1e-5)
    assert out.depth is not None and policy.trace is not None
    torch.testing.assert_close(policy.trace.run, out.depth.run[:, :, -1], atol=5e-5, rtol=0)
    torch.testing.assert_close(policy.trace.read, out.depth.read[:, :, -1], atol=5e-5, rtol=0)


@each_arm
def test_a_row_has_the_same_bits_in_any_batch_under_any_arm(arm: Depth) -> None:
    policy, row_L = armed(arm), some_bytes(23, seed=1)
    decoded = decode_all(policy, row_L[None])[0][0]
    with torch.no_grad():
        alone = policy(row_L[None])
        for batch, length, at in ((2, 23, 1), (33, 27, 32)):
            crowd = some_bytes(batch, length, seed=batch)
            crowd[at, :23] = row_L
            assert torch.equal(policy(crowd).logits_BLV[at, :23], alone.logits_BLV[0]), (batch, length, at)
        assert torch.equal(policy(row_L[None, :3]).logits_BLV[0], alone.logits_BLV[0, :3])
    for lanes, at in ((17, 16), (64, 5)):
        crowd = some_bytes(lanes, 10, seed=lanes)
        crowd[at] = row_L[:10]
        assert torch.equal(decode_all(policy, crowd)[0][at], decoded[:10]), (lanes, at)


@each_arm
def test_a_window_cut_anywhere_and_a_row_that_ends_early_leave_the_state_of_the_whole(arm: Depth) -> None:
    policy, ids_BL = armed(arm), some_bytes(3, 40)
    with torch.no_grad():
        whole = policy(ids_BL)
        for cut in (2, 17, 39):
            head = policy(ids_BL[:, :cut])
            rest = policy(ids_BL[:, cut:], head.state)
            torch.testing.assert_close(torch.cat((head.logits_BLV, rest.logits_BLV), 1), whole.logits_BLV, atol=5e-5, rtol=1e-5)
            torch.testing.assert_close(rest.state.kda_BTHKV, whole.state.kda_BTHKV, atol=5e-5, rtol=1e-5)
        ended = policy(ids_BL, length_B=torch.tensor([5, 40, 17])).state
        assert ended.row_bytes(0) == policy(ids_BL[:1, :5]).state.row_bytes(0)


@each_arm
def test_a_fork_and_a_restored_snapshot_go_on_with_the_bits_of_their_parent(arm: Depth) -> None:
    policy, ids_BL = armed(arm), some_bytes(4, 12)
    parent = decode_all(policy, ids_BL)[2]
    lanes = policy.initial_state(20)
    lanes.copy_([7], parent, [2])
    restored = policy.state_from_bytes([parent.row_bytes(2)])
    more_B = some_bytes(4, seed=9)
    want = policy.decode(more_B, parent)[0][2]
    in_lane_7 = torch.zeros(20, dtype=torch.int64)
    in_lane_7[7] = more_B[2]
    assert torch.equal(policy.decode(in_lane_7, lanes)[0][7], want)
    assert torch.equal(policy.decode(more_B[2:3], restored)[0][0], want)


def test_fixed_depth_is_the_default_and_leaves_no_tensor_trace_or_word_behind() -> None:
    policy = build_policy(TINY, 1)
    assert policy.config.depth == FixedDepth() and "depth_knobs" not in policy.state_dict()
    with torch.no_grad():
        assert policy(some_bytes(2, 20)).depth is None
    decode_all(policy, some_bytes(2, 3))
    assert policy.trace is None


@pytest.mark.parametrize("kind", ["skip", "q_stop"])
def test_a_gate_that_is_open_everywhere_is_the_fixed_loop(kind: str) -> None:
    policy, ids_BL = set_router(armed(ARMS[kind]), 30.0 if kind == "skip" else -30.0), some_bytes(3, 30)
    with torch.no_grad():
        got, want = policy(ids_BL), twin(policy, depth={"kind": "fixed"})(ids_BL)
    assert torch.equal(got.state.kda_BTHKV, want.state.kda_BTHKV)
    torch.testing.assert_close(got.logits_BLV, want.logits_BLV, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["skip", "q_stop"])
def test_a_gate_that_is_closed_everywhere_is_the_loop_of_one_iteration_and_later_streams_stay_as_they_were(kind: str) -> None:
    policy, ids_BL = set_router(armed(ARMS[kind]), -30.0 if kind == "skip" else 30.0), some_bytes(3, 30)
    start = decode_all(armed(FixedDepth()), some_bytes(3, 5, seed=4))[2]
    shallow = twin(policy, depth={"kind": "fixed"}, max_iter=1)
    with torch.no_grad():
        got = policy(ids_BL, start.clone())
        first = start.clone()
        first.kda_TBHKV_padded = first.kda_TBHKV_padded[:1]
        want = shallow(ids_BL, first)
    torch.testing.assert_close(got.logits_BLV, want.logits_BLV, atol=1e-5, rtol=1e-5)
    assert torch.equal(got.state.kda_BTHKV[:, 1:], start.kda_BTHKV[:, 1:])
    streams = start.kda_BTHKV.clone()
    policy.decode(ids_BL[:, 0], start)
    assert torch.equal(start.kda_BTHKV[:, 1:], streams[:, 1:]) and not torch.equal(start.kda_BTHKV[:, 0], streams[:, 0])


@pytest.mark.parametrize("kind", ["skip", "q_stop"])
def test_rows_that_run_are_computed_alone_with_the_bits_they_have_among_all(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, ids_BL = armed(ARMS[kind]), some_bytes(64, 8)
    with torch.no_grad():
        policy.mor_router.bias.sub_(2.0)
        policy.q_head.bias.add_(1.0)
    few, counts = arms.open_rows, list[int]()

    def watched(gate_N1: Tensor, least: int) -> Tensor | None:
        rows = few(gate_N1, least)
        counts.append(-1 if rows is None else len(rows))
        return rows

    monkeypatch.setattr("dormouse_core.policy.network.open_rows", watched)
    some = decode_all(policy, ids_BL)
    assert any(16 <= c < 64 for c in counts), "no byte was computed in a part of the batch: the test shows nothing"
    monkeypatch.setattr("dormouse_core.policy.network.open_rows", lambda gate_N1, least: None)
    whole = decode_all(policy, ids_BL)
    assert torch.equal(some[0], whole[0]) and torch.equal(some[2].kda_BTHKV, whole[2].kda_BTHKV)  # type: ignore[attr-defined]


@each_arm
def test_each_arm_tells_bytes_apart(arm: Depth) -> None:
    """Guards the tests above: an arm whose choices never differ would pass them all."""
    trace = trace_of(armed(arm), some_bytes(20, 20))
    assert trace.run.shape == trace.read.shape == (3, 20, 20)
    torch.testing.assert_close(trace.read.sum(0), torch.ones(20, 20))
    assert torch.equal(trace.run[0], torch.ones(20, 20))
    if arm.kind in ("skip", "q_stop"):
        assert 0.02 < (trace.run[1:] == 0).float().mean() < 0.98 and ((trace.run > 0) & (trace.run < 1)).any()
    if arm.kind in ("mor", "ponder", "q_stop"):
        assert trace.read.std(dim=(1, 2)).min() > 0.01
    if arm.kind == "random":
        assert trace.run.mean((1, 2)).tolist() == [1.0, 1.0, 0.0]


def test_mor_reads_out_the_k_best_scores_of_each_byte_and_a_new_router_all_of_them() -> None:
    policy, ids_BL = armed(MorDepth(slots=2, ramp=1e-6)), some_bytes(4, 25)
    trace = trace_of(policy, ids_BL)
    assert trace.score is not None
    for b in range(4):
        for j in range(25):
            best = sorted(range(3), key=lambda n: float(trace.score[n, b, j]), reverse=True)[:2]  # type: ignore[index]
            assert [round(w, 4) for w in trace.read[:, b, j].tolist()] == [0.5 if n in best else 0.0 for n in range(3)]
    new, fixed = set_router(policy, 0.0), twin(policy, depth={"kind": "fixed"})
    with torch.no_grad():
        torch.testing.assert_close(new(ids_BL).logits_BLV, fixed(ids_BL).logits_BLV, atol=1e-5, rtol=1e-5)
    assert arms.is_slot(torch.zeros(3, 5), 1).tolist() == [[False] * 5, [False] * 5, [True] * 5]


def test_a_slots_share_moves_by_no_more_than_the_score_does_over_the_ramp() -> None:
    score = torch.randn(4, 500, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nudged = score + 1e-6 * torch.randn(score.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moved = (arms.slots(score, 2, 0.1) - arms.slots(nudged, 2, 0.1)).abs().max()
    assert moved < 1e-6 * 10 / 0.1


@given(st.lists(st.floats(-6, 6), min_size=2, max_size=6))
def test_halting_probabilities_are_the_chance_to_stop_there_and_sum_to_one(scores: list[float]) -> None:
    p = arms.halting(torch.tensor(scores, dtype=torch.float64)[:, None])[:, 0]
    lam = [1 / (1 + 2.718281828459045**-s) for s in scores[:-1]] + [1.0]
    left = 1.0
    for n, rate in enumerate(lam):
        assert float(p[n]) == pytest.approx(left * rate, rel=1e-9)
        left *= 1 - rate
    assert float(p.sum()) == pytest.approx(1.0)


def test_the_prior_is_geometric_and_its_last_step_takes_the_rest() -> None:
    assert arms.truncated_geometric(0.25, 4).tolist() == pytest.approx([0.25, 0.1875, 0.140625, 0.421875])


def test_pondering_answers_with_the_mixture_of_what_each_iteration_would_answer() -> None:
    policy, ids_BL = armed(PonderDepth()), some_bytes(3, 20)
    with torch.no_grad():
        out = policy(ids_BL, deep=True)
    assert out.deep_TBLV is not None and out.depth is not None
    want = (out.depth.read[..., None].double() * out.deep_TBLV.double().softmax(-1)).sum(0)
    torch.testing.assert_close(out.logits_BLV.double().softmax(-1), want, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_depth_of_t_is_the_loop_of_t_iterations(depth: int) -> None:
    policy, ids_BL = armed(RandomDepth()), some_bytes(3, 30)
    with torch.no_grad():
        got = policy(ids_BL, depth=depth)
        want = twin(policy, depth={"kind": "fixed"}, max_iter=depth)(ids_BL)
        few = policy(ids_BL[:1, :3], depth=depth)
    assert torch.equal(got.logits_BLV, want.logits_BLV) and torch.equal(got.state.kda_BTHKV[:, :depth], want.state.kda_BTHKV)
    assert not got.state.kda_BTHKV[:, depth:].any()
    assert torch.equal(few.logits_BLV[0], got.logits_BLV[0, :3])


def test_a_depth_outside_the_trained_ones_is_an_error_and_never_clamped() -> None:
    policy, ids_BL = armed(RandomDepth(least=2)), some_bytes(2, 20)
    for depth in (0, 1, 4):
        with pytest.raises(ValueError, match="never clamped"):
            policy(ids_BL, depth=depth)
    with pytest.raises(ValueError, match="only `random`"):
        armed(SkipDepth())(ids_BL, depth=2)


@pytest.mark.parametrize(("settings", "hint"), [
    (["policy.depth=skip", "policy.max_iter=1"], "nothing to choose from"),
    (["policy.depth=random", "policy.depth.least=2"], "nothing to draw"),
    (["policy.depth=random", "policy.depth.iterations=5"], "outside the trained depths"),
    (["policy.depth=random", "policy.max_iter=4", "policy.depth.least=3", "policy.depth.iterations=2"], "outside the trained depths"),
    (["policy.depth=random", "policy.depth.least=0"], "greater than or equal to 1"),
    (["policy.depth=mor", "policy.depth.slots=2"], "reading all of them is kind fixed"),
    (["policy.depth=q_stop", "policy.depth.threshold=1.5"], "less than or equal to 1"),
    (["policy.depth=ponder", "policy.depth.prior=1"], "less than 1"),
    (["policy.depth=mod"], "fixed, random, mor, skip, q_stop, ponder"),
    (["policy.depth=skip", "policy.depth.slots=1"], "the chosen policy.depth has no slots"),
    (["policy.msa_budget=64"], "sparse attention"),
    (["policy.depth.capacity=0.5"], "later bytes"),
    (["policy.use_mor=true"], "policy.depth=mor"),
    (["policy.rand_depth=true"], "policy.depth=random"),
    (["policy.halt=true"], "policy.depth=ponder"),
])
def test_an_illegal_depth_is_refused_with_the_reason(settings: list[str], hint: str) -> None:
    with pytest.raises(DormouseError, match=hint):
        resolve("nano", settings)


def test_one_name_holds_one_arm_so_the_second_replaces_the_first() -> None:
    assert resolve("nano", ["policy.depth=skip", "policy.depth=ponder"]).policy.depth == PonderDepth()
    with pytest.raises(ValueError, match="depth"):
        PolicyConfig.model_validate({"depth": {"kind": "skip", "prior": 0.5}})
