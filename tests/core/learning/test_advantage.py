"""Credit: group statistics over valid rows alone, dead groups exactly zero, forks touch their own step and label V."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core.config.stages import ForkReplayAdvantage, GroupAdvantage, RewardConfig
from dormouse_core.learning.advantage import Credit, estimate, group_credit, not_taken
from dormouse_core.learning.reward import Rewards, shape
from dormouse_core.rollouts.trajectory import Trajectory
from tests.core.learning.made import step, task, trajectory, verdict

PLAIN = RewardConfig(solution=False, behaviour=False)


def credit(ts: list[Trajectory], kinds: list[str], config: GroupAdvantage | ForkReplayAdvantage) -> Credit:
    rewards = shape(ts, [verdict(t, k) for t, k in zip(ts, kinds, strict=True)], {"task": task(), "other": task()}, PLAIN)
    return estimate(ts, rewards, config)


def two_step(name: str, log_prob: float = -0.5) -> Trajectory:
    return trajectory(name, steps=[step(0, log_prob=log_prob), step(1, log_prob=log_prob)])


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=9))
def test_leave_one_out_equals_return_minus_mean_of_the_others(returns: list[float]) -> None:
    r = np.array(returns)
    others = (r.sum() - r) / (len(r) - 1)
    assert group_credit(r, 0.0, True) == pytest.approx(r - others)


def test_kappa_one_divides_by_the_groups_standard_deviation() -> None:
    r = np.array([1.0, 0.0, 0.0, 0.0])
    assert group_credit(r, 1.0, False) == pytest.approx((r - 0.25) / r.std())
    assert group_credit(r, 0.0, False) == pytest.approx(r - 0.25)


def test_a_group_without_spread_is_exactly_zero_even_where_the_mean_rounds() -> None:
    r = np.full(7, 0.1)
    assert np.all(group_credit(r, 1.0, True) == 0) and np.all(group_credit(np.array([0.3]), 0.0, True) == 0)


def test_rows_without_a_verdict_leave_the_baseline_and_get_nothing() -> None:
    ts = [trajectory(str(i)) for i in range(4)]
    got = credit(ts, ["pass", "fail", "undecided", "hack_suspected"], GroupAdvantage())
    assert got.advantage_NK[:, 0] == pytest.approx([1.0, -1.0, 0.0, 0.0])
    assert list(got.live_N) == [True, True, False, False] and got.counts["rows_left_out"] == 2


def test_one_valid_row_is_a_dead_group() -> None:
    got = credit([trajectory("a"), trajectory("b")], ["pass", "verifier_error"], GroupAdvantage())
    assert not got.live_N.any() and got.counts["groups_dead_too_few"] == 1 and np.all(got.advantage_NK == 0)


def test_dead_groups_are_counted_by_cause_and_live_ones_are_not_touched_by_them() -> None:
    ts = [trajectory(f"{g}{i}", g) for g in "abc" for i in range(2)]
    got = credit(ts, ["pass", "pass", "fail", "fail", "pass", "fail"], GroupAdvantage())
    assert (got.counts["groups"], got.counts["groups_live"], got.counts["groups_dead"]) == (3, 1, 2)
    assert got.counts["groups_dead_all_pass"] == got.counts["groups_dead_all_fail"] == 1
    assert list(got.live_N) == [False] * 4 + [True] * 2


def test_a_fork_replaces_the_credit_of_its_own_step_and_of_no_other() -> None:
    ts = [two_step("a"), two_step("b"), trajectory("f", "fork", [step(0), step(1)], fork_of="a", fork_step=1)]
    got = credit(ts, ["pass", "fail", "fail"], ForkReplayAdvantage())
    other = not_taken(ts[0].steps[1])
    assert other == pytest.approx(1 - np.exp(-1.5))
    assert got.advantage_NK == pytest.approx(np.array([[1.0, other], [-1.0, -1.0], [0.0, 0.0]]))
    assert not got.live_N[2] and got.counts["forked_steps"] == 1


def test_the_raw_contrast_is_an_arm_of_its_own() -> None:
    ts = [two_step("a"), two_step("b"), trajectory("f", "fork", [step(0)], fork_of="a", fork_step=0)]
    got = credit(ts, ["pass", "fail", "fail"], ForkReplayAdvantage(corrected=False))
    assert got.advantage_NK[0] == pytest.approx([1.0, 1.0]) and got.advantage_NK[0, 0] == 1.0


def test_a_fork_with_the_same_outcome_gives_its_step_exactly_zero() -> None:
    ts = [two_step("a"), two_step("b"), trajectory("f", "fork", [step(0)], fork_of="a", fork_step=0)]
    got = credit(ts, ["pass", "fail", "pass"], ForkReplayAdvantage())
    assert got.advantage_NK[0, 0] == 0.0 and got.advantage_NK[0, 1] == 1.0


def test_several_forks_of_one_step_are_averaged() -> None:
    ts = [two_step("a"), two_step("b")] + [trajectory(f"f{i}", "fork", [step(0)], fork_of="a", fork_step=0) for i in range(4)]
    got = credit(ts, ["pass", "fail", "fail", "fail", "fail", "pass"], ForkReplayAdvantage())
    assert got.advantage_NK[0, 0] == pytest.approx(0.75 * not_taken(ts[0].steps[0]))


def test_a_fork_without_verdict_or_parent_leaves_the_group_credit_and_is_counted() -> None:
    ts = [two_step("a"), two_step("b"), trajectory("f", "fork", [step(0)], fork_of="a", fork_step=0),
          trajectory("h", "fork", [step(0)], fork_of="gone", fork_step=0)]
    got = credit(ts, ["pass", "fail", "undecided", "pass"], ForkReplayAdvantage())
    assert got.advantage_NK[0] == pytest.approx([1.0, 1.0])
    assert got.counts["forks_without_verdict"] == got.counts["forks_orphaned"] == 1


def test_forks_stand_in_no_baseline() -> None:
    ts = [two_step("a"), two_step("b")] + [trajectory(f"f{i}", "g", [step(0)], fork_of="a", fork_step=0) for i in range(3)]
    for config in (GroupAdvantage(), ForkReplayAdvantage()):
        got = credit(ts, ["fail", "fail", "pass", "pass", "pass"], config)
        assert np.all(got.advantage_NK[:, 1] == 0)
        assert got.counts["groups"] == 1


def test_a_passing_fork_of_an_all_fail_group_is_signal_at_its_step_alone() -> None:
    ts = [two_step("a"), two_step("b"), trajectory("f", "fork", [step(0)], fork_of="a", fork_step=0)]
    got = credit(ts, ["fail", "fail", "pass"], ForkReplayAdvantage())
    assert got.advantage_NK[0, 0] == pytest.approx(-not_taken(ts[0].steps[0])) and np.all(got.advantage_NK[1] == 0)
    assert got.counts["groups_live_by_forks_alone"] == 1


def test_group_with_mixed_start_states_is_refused() -> None:
    with pytest.raises(ValueError, match="mixes start states"):
        credit([trajectory("a"), trajectory("b", task_id="other")], ["pass", "fail"], GroupAdvantage())


def test_probes_neither_learn_nor_stand_in_a_baseline() -> None:
    got = credit([trajectory("a"), trajectory("b"), trajectory("p", probe=True)], ["fail", "fail", "pass"], GroupAdvantage())
    assert np.all(got.advantage_NK == 0)


def test_corrected_contrast_and_its_value_label_are_exact_in_expectation() -> None:
    """Two-action bandit, enumerated: E[A-hat | a] = Q(a) - V, E[label | a] = V for each realised action."""
    p = np.array([0.8, 0.15, 0.05])
    q = np.array([0.2, 0.9, 0.5])
    value = float(p @ q)
    for a in range(3):
        one = step(0, b"a", log_prob=float(np.log(p[a]) / 2))
        advantage = label = 0.0
        for b in set(range(3)) - {a}:
            pick = p[b] / (1 - p[a])
            ts = [trajectory("t", steps=[one]), trajectory("f", "fork", [step(0)], fork_of="t", fork_step=0)]
            returns = np.array([q[a], q[b]])
            rewards = Rewards(returns, returns, returns, returns, returns * 0, returns > 0, np.array([True, True]))
            got = estimate(ts, rewards, ForkReplayAdvantage())
            advantage += pick * got.advantage_NK[0, 0]
            label += pick * got.value_NK[0, 0]
        assert advantage == pytest.approx(q[a] - value, abs=1e-6) and label == pytest.approx(value, abs=1e-6)
