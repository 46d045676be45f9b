"""What is counted, and what a byte budget does to it."""

import numpy as np
import pytest

from dormouse_core.config.stages import EvalConfig
from dormouse_core.evaluation.budget import area_weights, budget_curve, correct_at
from dormouse_core.evaluation.report import MEAN, pool_report, split_report
from dormouse_core.evaluation.scores import Scores
from dormouse_core.evaluation.statistics import resample
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split

TASKS = [
    draw(family, difficulty, Split.FRESH, i, "x") for family, difficulty in (("sum_of_terms", 1), ("affine_function", 2)) for i in range(2)
]


def scores(classes: list[list[str]], sizes: list[list[int]] | None = None) -> Scores:
    """Column 0 is greedy."""
    return Scores(TASKS[: len(classes)], np.array(classes), np.array(sizes or [[5] * len(c) for c in classes]))


def test_failures_of_the_policys_own_making_stay_in_the_denominator_and_nobodys_fault_does_not() -> None:
    s = scores(
        [
            ["pass", "pass", "timeout", "violation", "unparseable", "truncated"],
            ["fail", "pass", "undecided", "verifier_error", "hack_suspected", "fail"],
        ]
    )
    assert s.sampled_counted_M.tolist() == [5, 2]
    assert s.rate_M() == pytest.approx([0.2, 0.5])
    assert s.no_verdict_share() == pytest.approx(2 / 12)


def test_the_table_holds_every_answer_and_its_bytes() -> None:
    table = scores([["pass", "fail", "pass"]], [[4, 9, 7]]).table("candidate").to_pylist()
    assert table[0] | {"task_id": ""} == {
        "role": "candidate",
        "task_id": "",
        "pool": "math",
        "family": "sum_of_terms",
        "difficulty": 1,
        "byte_budget": TASKS[0].byte_budget,
        "greedy_class": "pass",
        "greedy_bytes": 4,
        "passes": 1,
        "counted": 2,
        "classes": ["fail", "pass"],
        "bytes": [9, 7],
    }


def test_an_answer_counts_at_a_budget_when_it_passes_within_it() -> None:
    s = scores([["pass", "pass", "pass", "fail", "pass"]], [[1, 8, 16, 2, 17]])
    assert correct_at(s, (7, 8, 16, 32)).tolist() == [[0.0, 0.25, 0.5, 0.75]]


def test_the_curve_rises_to_pass_at_1_and_its_area_is_the_trapezoid_over_log_bytes() -> None:
    s = scores(
        [["pass", "pass", "fail"], ["pass", "pass", "pass"], ["fail", "fail", "fail"], ["pass", "pass", "fail"]],
        [[1, 8, 3], [1, 20, 60], [1, 9, 9], [1, 30, 4]],
    )
    curve = budget_curve(s, (8, 16, 32, 64), resample(s.pool_M, 100, "t"))
    heights = [c.value for c in curve.correct]
    assert heights == sorted(heights)
    assert heights[-1] == pytest.approx(np.mean([0.75, 0.25]))
    assert curve.area is not None and curve.area.value == pytest.approx(np.trapezoid(heights, np.log([8, 16, 32, 64])) / np.log(8))
    assert area_weights((8, 16, 32, 64)).sum() == pytest.approx(1.0)
    assert curve.median_correct_bytes == pytest.approx(np.median([8, 20, 60, 30]))


def test_bytes_per_solved_task_counts_the_bytes_of_failures() -> None:
    s = scores([["pass", "pass", "fail"], ["pass", "fail", "fail"]], [[1, 10, 30], [1, 20, 20]])
    curve = budget_curve(s, (8, 64), resample(s.pool_M, 100, "t"))
    assert curve.bytes_per_solved is not None and curve.bytes_per_solved.value == pytest.approx(80 / 1)
    nothing = budget_curve(scores([["fail", "fail", "fail"]]), (8, 64), resample(["a"], 10, "t"))
    assert nothing.bytes_per_solved is None and nothing.median_correct_bytes is None


def test_budgets_that_do_not_rise_are_refused() -> None:
    s = scores([["pass", "pass"]])
    with pytest.raises(ValueError, match="rise"):
        budget_curve(s, (16, 8), resample(["a"], 10, "t"))


def test_the_mean_report_is_the_mean_of_the_pools() -> None:
    s = scores([["pass", "pass", "pass"], ["pass", "pass", "fail"], ["fail", "fail", "fail"], ["pass", "fail", "pass"]])
    config = EvalConfig(bootstrap=100, samples=2)
    split = split_report(s, "fresh", "root", (), config, "t")
    assert [p.pool for p in split.pools] == ["math", "code", MEAN]
    assert split.mean.sampled.value == pytest.approx((0.75 + 0.25) / 2)
    assert split.mean.greedy.value == pytest.approx((1.0 + 0.5) / 2)
    assert split.mean.pass_at[2].value == pytest.approx((1.0 + 0.5) / 2)
    assert split.mean.pass_at[1].value == pytest.approx(split.mean.sampled.value)
    assert pool_report(s, "again", config, "t").sampled == pool_report(s, "again", config, "t").sampled


def test_tasks_without_a_counted_answer_are_left_out_and_said() -> None:
    s = scores([["pass", "verifier_error", "undecided"], ["pass", "pass", "fail"]])
    split = split_report(s, "fresh", "root", (), EvalConfig(bootstrap=100, samples=2), "t")
    assert (split.left_out, split.mean.tasks) == (1, 1)
