"""The curve is a readable PNG, and its numbers are the rounds' own."""

from pathlib import Path

import numpy as np
import pytest

from dormouse_core.config.stages import EvalConfig
from dormouse_core.evaluation.plot import CycleCurve, learning_curve, series, smooth
from dormouse_core.evaluation.report import SplitReport, split_report
from dormouse_core.evaluation.scores import Scores
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split

ROUNDS = [
    {"round": float(i), "pass_rate": 0.1 * i, "pass_rate.math": 0.1 * i} | ({"pass_rate.code": 0.5} if i % 2 else {}) for i in range(6)
]
CYCLES = [CycleCurve("main.c0000", ROUNDS, True), CycleCurve("main.c0001", ROUNDS[:3], False)]


def report(word: str) -> SplitReport:
    tasks = [draw("sum_of_terms", 1, Split.FRESH, i, "x") for i in range(4)]
    return split_report(
        Scores(tasks, np.full((4, 3), word), np.full((4, 3), 5)), "fresh", "r", (), EvalConfig(bootstrap=100, samples=2), "t"
    )


def test_series_are_pool_by_pool_over_all_cycles_with_gaps_where_nothing_was_drawn() -> None:
    curves = series(CYCLES)
    assert list(curves) == ["math", "code"]
    assert curves["math"].tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.0, 0.1, 0.2])
    assert np.isnan(curves["code"]).tolist() == [True, False] * 3 + [True, False, True]


def test_smoothing_leaves_gaps_out() -> None:
    assert smooth(np.array([np.nan, 1.0, np.nan, 0.0]), 2)[1:].tolist() == [1.0, 1.0, 0.0]
    assert np.isnan(smooth(np.array([np.nan]))).all()


def test_the_picture_is_written_and_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    one = learning_curve(CYCLES, tmp_path / "new" / "a.png", report("fail"), report("pass"), "a title").read_bytes()
    two = learning_curve(CYCLES, tmp_path / "b.png", report("fail"), report("pass"), "a title").read_bytes()
    assert one.startswith(b"\x89PNG")
    assert one == two
    assert learning_curve([], tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
