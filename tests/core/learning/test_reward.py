"""The return multiplies its three factors, and nothing is ever given to a row that did not pass."""

import numpy as np
import pytest

from dormouse_core.config.stages import GroupAdvantage, RewardConfig
from dormouse_core.learning.advantage import estimate
from dormouse_core.learning.reward import Rewards, announce, literal_share, shape
from dormouse_core.ledger import Ledger
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.tasks.task import Pool, Task
from dormouse_core.verifiers.verdict import VerdictClass
from tests.core.learning.made import step, task, trajectory, verdict

FULL = RewardConfig()


def shaped(t: Trajectory, kind: str = "pass", of: Task | None = None, config: RewardConfig = FULL, score: float | None = None) -> Rewards:
    return shape([t], [verdict(t, kind, score)], {"task": of or task()}, config)


def test_a_clean_pass_in_reference_steps_is_exactly_one() -> None:
    t = trajectory("a", steps=[step(0, tool="set"), step(1, tool="end")])
    assert shaped(t, of=task(reference_steps=2)).total_N == [1.0]


@pytest.mark.parametrize("kind", ["fail", "unparseable", "truncated", "timeout", "violation"])
def test_any_failure_zeroes_the_return_whatever_the_other_factors(kind: str) -> None:
    r = shaped(trajectory("a"), kind, task(reference_steps=1), score=0.9)
    assert r.total_N == [0.0] and r.test_N == [0.0] and r.valid_N.all()


def test_a_graded_answer_keeps_its_share_of_cases_and_the_product_holds() -> None:
    t = trajectory("a", steps=[step(k) for k in range(4)])
    r = shaped(t, "fail", task(reference_steps=3), RewardConfig(graded=True), score=0.4)
    assert r.test_N == [0.4] and r.solution_N == [0.75] and r.total_N == pytest.approx([0.3])


def test_twice_the_reference_steps_halves_the_return_and_the_floor_holds_it_there() -> None:
    for steps, expected in ((2, 1.0), (3, 2 / 3), (4, 0.5), (9, 0.5)):
        t = trajectory("a", steps=[step(k) for k in range(steps)])
        assert shaped(t, of=task(reference_steps=2)).total_N == pytest.approx([expected])


def test_a_body_of_nothing_but_literals_can_be_worth_zero() -> None:
    config = RewardConfig(literal_weight=1.0)
    for body, expected in ((b"'abc'", 0.0), (b"x+abc", 1.0), (b"12+xy", 1.0), (b"1234+x", 1 - (2 * 4 / 6 - 1))):
        t = trajectory("a", steps=[step(0, body)])
        assert shaped(t, of=task(Pool.CODE), config=config).total_N == pytest.approx([expected])


def test_behaviour_is_strictly_between_and_zero_on_violation() -> None:
    t = trajectory("a", steps=[step(0, b"add", state="s"), step(1, b"add", state="s"), step(2, b"?", ok=False), step(3, b"end")])
    r = shaped(t)
    assert r.behaviour_N == pytest.approx([1 - 0.5 / 4 - 0.25 / 4]) and 0 < r.total_N[0] < 1
    assert shaped(t, "violation").behaviour_N == [0.0]
    all_bad = trajectory("b", steps=[step(0, b"?", ok=False)])
    assert shaped(all_bad, config=RewardConfig(malformed_weight=1.0)).total_N == [0.0]


def test_needless_tool_calls_are_those_beyond_the_reference() -> None:
    t = trajectory("a", steps=[step(k, tool="look") for k in range(4)])
    r = shaped(t, of=task(reference_steps=3), config=RewardConfig(needless_weight=1.0, solution=False))
    assert r.behaviour_N == [0.75]


def test_a_factor_that_is_off_counts_as_one_and_says_so() -> None:
    config, ledger = RewardConfig(solution=False, behaviour=False), Ledger()
    t = trajectory("a", steps=[step(k, b"?", ok=False, state="s") for k in range(9)])
    assert shaped(t, of=task(reference_steps=1), config=config).total_N == [1.0]
    announce(config, ledger)
    assert len(ledger.lines) == 2 and "S_sol" in ledger.lines[0] and "S_beh" in ledger.lines[1]


def test_all_fail_group_with_different_lengths_and_tools_has_exactly_zero_advantage() -> None:
    config = RewardConfig(lambda_tokens=0.1, lambda_cost=0.3, length_alpha=0.5, length_gamma=0.0, needless_weight=0.3)
    ts = [trajectory(str(n), steps=[step(k, b"x" * (n + 1), tool="t" * n, ok=bool(n % 2)) for k in range(n + 1)]) for n in range(8)]
    r = shape(ts, [verdict(t, "fail") for t in ts], {"task": task(reference_steps=2)}, config)
    credit = estimate(ts, r, GroupAdvantage())
    assert np.all(r.total_N == 0) and np.all(credit.advantage_NK == 0) and not credit.live_N.any()
    assert credit.counts["groups_dead_all_fail"] == 1


def test_penalties_touch_passing_members_only_and_length_waits_for_the_pass_rate() -> None:
    ts = [trajectory(str(n), steps=[step(0, b"x" * (3 if n < 3 else 7))]) for n in range(4)]
    kinds = ["pass", "pass", "fail", "pass"]
    judged = [verdict(t, k) for t, k in zip(ts, kinds, strict=True)]
    tokens = shape(ts, judged, {"task": task()}, RewardConfig(lambda_tokens=0.01))
    assert tokens.total_N == pytest.approx([0.96, 0.96, 0.0, 0.92])
    length = shape(ts, judged, {"task": task()}, RewardConfig(length_alpha=0.2, length_gamma=0.75))
    assert length.total_N == pytest.approx([1.0, 1.0, 0.0, 0.8])
    waiting = shape(ts, judged, {"task": task()}, RewardConfig(length_alpha=0.2, length_gamma=0.8))
    assert waiting.total_N == pytest.approx([1.0, 1.0, 0.0, 1.0])
    heavy = shape(ts, judged, {"task": task()}, RewardConfig(lambda_tokens=9.0))
    assert np.all(heavy.total_N == 0)


@pytest.mark.parametrize("kind", ["undecided", "verifier_error", "hack_suspected"])
def test_no_verdict_and_screened_rows_are_out_of_every_statistic(kind: str) -> None:
    r = shaped(trajectory("a"), kind)
    assert not r.valid_N.any() and r.total_N == [0.0]


def test_a_score_that_is_no_number_takes_the_row_out() -> None:
    r = shaped(trajectory("a"), "fail", config=RewardConfig(graded=True), score=float("nan"))
    assert not r.valid_N.any() and r.total_N == [0.0]


def test_a_verdict_of_another_trajectory_is_refused() -> None:
    with pytest.raises(ValueError, match="judges trajectory b"):
        shape([trajectory("a")], [verdict(trajectory("b"))], {"task": task()}, FULL)


@pytest.mark.parametrize(("body", "share"), [(b"", 0.0), (b"\xff\x00'", 0.0), (b"x1+y2", 0.0), (b"[1,2]", 0.4), (b'"a b"', 1.0)])
def test_literal_share_is_total_and_reads_names_as_names(body: bytes, share: float) -> None:
    assert literal_share(body) == pytest.approx(share)


def test_every_verdict_class_is_shaped() -> None:
    for kind in VerdictClass:
        assert np.isfinite(shaped(trajectory("a"), kind).total_N).all()
