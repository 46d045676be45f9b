"""Order, padding and weights of batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core.config.stages import GroupAdvantage, RewardConfig
from dormouse_core.learning.advantage import Credit, estimate
from dormouse_core.learning.batches import Aggregation, epoch_order, step_batches, step_weights, text_batch
from dormouse_core.learning.reward import shape
from dormouse_core.rollouts.trajectory import Trajectory
from tests.core.learning.made import step, task, trajectory, verdict


def judged(ts: list[Trajectory], kinds: list[str]) -> Credit:
    verdicts = [verdict(t, k) for t, k in zip(ts, kinds, strict=True)]
    return estimate(ts, shape(ts, verdicts, {"task": task()}, RewardConfig(solution=False, behaviour=False)), GroupAdvantage())


def two_groups() -> tuple[list[Trajectory], Credit]:
    """Group a: rows of 3 and 9 bytes in one and two steps; group b: three rows of 2 bytes."""
    ts = [trajectory("a0", "a", [step(0, b"ab")]), trajectory("a1", "a", [step(0, b"abc"), step(1, b"abcd")])]
    ts += [trajectory(f"b{i}", "b", [step(0, b"x")]) for i in range(3)]
    return ts, judged(ts, ["pass", "fail", "pass", "fail", "fail"])


@given(st.lists(st.integers(1, 90), min_size=1, max_size=200), st.integers(1, 40), st.integers(0, 5), st.integers(0, 5))
def test_every_row_once_an_epoch_and_the_order_is_a_function_of_seed_and_epoch(
        lengths: list[int], batch: int, seed: int, epoch: int) -> None:
    order = epoch_order(lengths, batch, seed, epoch)
    assert sorted(np.concatenate(order).tolist()) == list(range(len(lengths)))
    assert all(len(b) <= batch for b in order)
    again = epoch_order(lengths, batch, seed, epoch)
    assert all(np.array_equal(x, y) for x, y in zip(order, again, strict=True))


def test_epochs_and_seeds_differ_and_batches_hold_rows_alike_in_length() -> None:
    lengths = list(np.random.default_rng(0).integers(5, 100, 640))
    first = epoch_order(lengths, 32, 1, 0)
    assert not np.array_equal(np.concatenate(first), np.concatenate(epoch_order(lengths, 32, 1, 1)))
    assert not np.array_equal(np.concatenate(first), np.concatenate(epoch_order(lengths, 32, 2, 0)))
    padded = sum(len(b) * max(lengths[i] for i in b) for b in first)
    assert padded < 1.15 * sum(lengths)


def test_prompt_mean_weighs_bytes_in_a_row_rows_in_a_prompt_prompts_alike() -> None:
    ts, credit = two_groups()
    w = [byte for byte, _ in step_weights(ts, credit, "prompt_mean")]
    assert w == pytest.approx([1 / 2 / 2 / 3, 1 / 2 / 2 / 9] + [1 / 2 / 3 / 2] * 3)
    w = [byte for byte, _ in step_weights(ts, credit, "byte_mean")]
    assert w == pytest.approx([1 / 18] * 5)
    w = [byte for byte, _ in step_weights(ts, credit, "trajectory_mean")]
    assert w == pytest.approx([1 / 5 / 3, 1 / 5 / 9] + [1 / 5 / 2] * 3)


@pytest.mark.parametrize("aggregation", ["prompt_mean", "trajectory_mean", "byte_mean"])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_weights_of_the_written_bytes_sum_to_one_however_the_batch_is_cut(aggregation: Aggregation, parts: int) -> None:
    ts, credit = two_groups()
    batches = step_batches(ts, credit, aggregation, parts)
    assert len(batches) <= parts and sum(b.weight_S.sum() for b in batches) == pytest.approx(1.0)
    assert sum(b.value_weight_S.sum() for b in batches) == pytest.approx(1.0, abs=0.5)


def test_a_batch_points_at_the_bytes_the_policy_wrote_and_at_no_other() -> None:
    ts, credit = two_groups()
    for batch in step_batches(ts, credit, "prompt_mean", 1):
        written = bytes(batch.ids_BL[batch.row_X, batch.position_X])
        assert written == b"abc\x05abcd\x05" + b"ab\x05" + b"x\x05" * 3
        assert np.array_equal(batch.bytes_S, [4, 5, 3, 2, 2, 2])
        assert np.all(batch.ids_BL[batch.row_S, batch.boundary_S] == 3)
        assert np.all(batch.sampled_X == np.float32(-0.5))


def test_a_fork_row_and_a_dead_group_are_in_no_batch() -> None:
    ts = [trajectory("a0", "a"), trajectory("a1", "a"), trajectory("f", "f", [step(0), step(1)], fork_of="a0", fork_step=1)]
    assert step_batches(ts, judged(ts, ["fail", "fail", "pass"]), "prompt_mean", 4) == []


def test_dead_prompts_stay_in_the_mean_over_prompts() -> None:
    ts, _ = two_groups()
    credit = judged(ts, ["pass", "fail", "fail", "fail", "fail"])
    assert sum(b.weight_S.sum() for b in step_batches(ts, credit, "prompt_mean", 2)) == pytest.approx(0.5)


def test_rows_of_two_temperatures_in_one_update_are_refused() -> None:
    ts = [trajectory("a0", "a", temperature=1.0), trajectory("a1", "a", temperature=0.7)]
    with pytest.raises(ValueError, match="temperatures"):
        step_batches(ts, judged(ts, ["pass", "fail"]), "prompt_mean", 1)


def test_text_weights_sum_to_one_over_targets_whatever_the_parts() -> None:
    streams = [np.arange(10, 10 + n, dtype=np.uint8) for n in (4, 7, 3)]
    masks = [np.arange(len(s)) >= 2 for s in streams]
    seen = [np.arange(len(s)) == 1 for s in streams]
    for parts in (1, 2, 3, 9):
        batches = text_batch(streams, masks, seen, 0.5, parts)
        assert sum(float(b.weight_BL.sum()) for b in batches) == pytest.approx(1.0)
        assert sum(float(b.observation_BL.sum()) for b in batches) == pytest.approx(0.5)
