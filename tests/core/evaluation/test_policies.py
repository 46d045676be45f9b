"""Policies that bound a suite, and what happens when a bound breaks."""

import numpy as np
import pytest

from dormouse_core.config.stages import EvalConfig, VerifyConfig
from dormouse_core.config.suite import Suite, SuiteCell, load_suite
from dormouse_core.encoding import escape
from dormouse_core.envs.environment import StopReason
from dormouse_core.evaluation.policies import BoundPolicy, bound_attempts, guess_limit, measure_bounds, play
from dormouse_core.evaluation.report import SplitReport, split_report
from dormouse_core.evaluation.scores import Scores
from dormouse_core.evaluation.suites import spread, suite_tasks
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split, Task, Use

ONE = VerifyConfig(workers=1)


def tasks(n: int = 6) -> list[Task]:
    return suite_tasks(load_suite("tiny"), Split.FRESH, "candidate", n, Ledger())


def report(of: list[Task]) -> SplitReport:
    classes, sizes = np.full((len(of), 3), "fail"), np.full((len(of), 3), 4)
    bounds = measure_bounds(of, ONE, Ledger())
    return split_report(Scores(of, classes, sizes), "fresh", "r", bounds, EvalConfig(bootstrap=100, samples=2), "t")


def test_the_oracle_passes_and_nulls_stay_under_their_bound_on_every_pool() -> None:
    made = report([t.model_copy(update={"guess_bound": 0.3}) for t in tasks()])
    assert made.broken == ()
    assert {(b.policy, b.pool) for b in made.bounds} == {(p, pool) for p in BoundPolicy for pool in ("agent", "math", "code")}
    assert all(b.rate == 1.0 for b in made.bounds if b.policy is BoundPolicy.ORACLE)


def test_a_wrong_reference_makes_the_report_invalid() -> None:
    of = [t.model_copy(update={"reference": (b"wrong",)}) if i == 0 else t for i, t in enumerate(tasks())]
    broken = report(of).broken
    assert len(broken) == 1
    assert broken[0].startswith("oracle on agent reached 0.833 where at least 1.000")


def test_a_suite_that_a_constant_solves_is_invalid() -> None:
    base = draw("modular_sum", 0, Split.FRESH, 0, "x")
    same = [base.model_copy(update={"prompt": b"%d:" % i + base.prompt, "guess_bound": 0.0}) for i in range(12)]
    assert any(reason.startswith("constant on math reached 1.000 where at most 0.3") for reason in report(same).broken)


def test_no_task_votes_for_its_own_constant() -> None:
    base = draw("modular_sum", 0, Split.FRESH, 0, "x")
    different = [base.model_copy(update={"prompt": b"%d:" % i, "reference": (b"%d" % i,)}) for i in range(6)]
    written = [a.actions[0] for a in bound_attempts(BoundPolicy.CONSTANT, different)]
    assert all(w != t.reference[0] for w, t in zip(written, different, strict=True))


@pytest.mark.parametrize("policy", list(BoundPolicy))
def test_bounding_policies_keep_the_byte_budget(policy: BoundPolicy) -> None:
    for a in bound_attempts(policy, tasks()):
        assert sum(len(escape(action)) + 1 for action in a.actions) <= a.task.byte_budget
        assert len(a.actions) <= a.task.max_steps


def test_an_actor_without_bytes_left_is_stopped_by_its_budget() -> None:
    agent = next(t for t in tasks() if t.max_steps > 1).model_copy(update={"byte_budget": 3})
    actions, stop = play(agent, lambda step, shown: b"zz")
    assert (actions, stop) == ((b"zz",), StopReason.BYTE_BUDGET)


def test_the_guess_limit_leaves_room_for_luck_and_no_more() -> None:
    assert guess_limit([0.0] * 100) == pytest.approx(0.04)
    assert guess_limit([0.25] * 100) == pytest.approx(0.25 + 4 * 0.0433, abs=1e-3)
    assert guess_limit([]) == 1.0


def test_pools_get_equal_numbers_of_tasks_spread_over_their_cells_and_none_twice() -> None:
    nano = suite_tasks(load_suite("nano"), Split.FRESH, "candidate", 20, Ledger())
    assert {p: sum(t.pool.value == p for t in nano) for p in ("agent", "math", "code")} == {"agent": 20, "math": 20, "code": 20}
    assert len({t.id for t in nano}) == 60
    assert spread(20, 8) == [3, 3, 3, 3, 2, 2, 2, 2]


def test_difficulties_that_overlap_measure_no_task_twice() -> None:
    overlapping = Suite(name="s", cells=tuple(SuiteCell(pool="agent", family="register_machine", difficulty=d) for d in (2, 3, 4)))
    found = suite_tasks(overlapping, Split.FRESH, "candidate", 150, Ledger())
    assert len(found) == len({t.id for t in found}) == 150


def test_fresh_tasks_are_a_function_of_the_candidate_and_frozen_ones_of_nothing() -> None:
    suite, ids = load_suite("tiny"), lambda ts: [t.id for t in ts]
    one, again, other = (ids(suite_tasks(suite, Split.FRESH, root, 4, Ledger())) for root in ("a", "a", "b"))
    assert one == again != other
    assert ids(suite_tasks(suite, Split.FROZEN, "a", 4, Ledger())) == ids(suite_tasks(suite, Split.FROZEN, "b", 4, Ledger()))


def test_training_tasks_and_missing_cells_are_refused() -> None:
    with pytest.raises(DormouseError, match="not one to evaluate"):
        suite_tasks(load_suite("tiny"), Split.TRAIN, "a", 4, Ledger())
    with pytest.raises(DormouseError, match="no cells of role `beyond`"):
        suite_tasks(load_suite("tiny"), Split.BEYOND, "a", 4, Ledger())
    assert all(t.use is Use.EVALUATION for t in tasks())
