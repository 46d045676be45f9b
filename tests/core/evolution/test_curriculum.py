"""Which tasks a round draws, and what outcomes do to the next one."""

from collections import Counter

import numpy as np
import pytest

from dormouse_core.config.stages import CurriculumConfig
from dormouse_core.evolution.allocation import pool_shares, systematic
from dormouse_core.evolution.curriculum import CycleSource, Failures
from dormouse_core.evolution.posterior import Band
from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.plan import CellState
from dormouse_core.tasks.task import Pool

CELLS = [CellState(pool=Pool.MATH, family="sum_of_terms", difficulty=d) for d in (0, 1, 2, 3)] + [
    CellState(pool=Pool.CODE, family="affine_function", difficulty=d) for d in (1, 2)]
ON, OFF = CurriculumConfig(), CurriculumConfig(enabled=False)


def known(**counts: tuple[float, float]) -> list[CellState]:
    """The cells with (passes, trials) of some of them; keys like m0, c1."""
    update = {f"{c.pool.value[0]}{c.difficulty}": c for c in CELLS}
    return [c.model_copy(update={"passes": counts[k][0], "trials": counts[k][1], "tried": int(counts[k][1])}) if k in counts else c
            for k, c in update.items()]


def source(cells: list[CellState], config: CurriculumConfig = ON, failures: Failures | None = None, seed: int = 1) -> CycleSource:
    return CycleSource(cells, config, "main.c0000", seed, failures)


def test_bands_get_their_mass_inside_each_pool() -> None:
    drawn = source(known(m0=(40, 40), m1=(4, 8), m2=(0, 8), m3=(0, 64), c1=(3, 8), c2=(4, 8)))
    shares = drawn.shares()
    assert shares.bands[:4] == [Band.MASTERED, Band.FRONTIER, Band.BOUNDARY, Band.ARCHIVED]
    math = shares.final_C[:4] / shares.final_C[:4].sum()
    assert math == pytest.approx([0.05, 0.70, 0.20, 0.05])
    assert shares.final_C[4:].sum() > 0.5, "the pool with more left to learn gets more than its even share"


def test_masses_are_renormalised_over_bands_that_have_cells() -> None:
    math = source(known(m0=(40, 40), m1=(40, 40), m2=(4, 8), m3=(4, 8))).shares().final_C[:4]
    assert math / math.sum() == pytest.approx([0.025 / 0.75, 0.025 / 0.75, 0.35 / 0.75, 0.35 / 0.75])


def test_a_cell_inside_the_pass_at_k_target_outweighs_one_of_the_same_spread_above_it() -> None:
    low_p, high_p = source(known(m0=(4.5, 60), m1=(55.5, 60))).shares().final_C[:2]
    assert low_p > 1.5 * high_p, "p = 0.075 is pass@8 = 0.46; 1 - p has the same p(1-p)"


def test_no_pool_falls_below_its_floor() -> None:
    shares = pool_shares({"a": 0.25, "b": 1e-9, "c": 1e-9}, 0.6)
    assert shares["b"] == pytest.approx(0.2)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_with_the_curriculum_off_cells_are_drawn_evenly_whatever_their_outcomes() -> None:
    shares = source(known(m0=(40, 40), m3=(0, 64)), OFF).shares().final_C
    assert shares == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)


def test_systematic_counts_are_the_expectation_rounded_and_exact_on_average() -> None:
    share = np.array([0.5, 0.03, 0.22, 0.25])
    counts = np.array([systematic(share, 7, u) for u in np.linspace(0, 1, 1000, endpoint=False)])
    assert (counts.sum(1) == 7).all()
    assert (np.abs(counts - 7 * share) < 1).all()
    assert counts.mean(0) == pytest.approx(7 * share, abs=2e-3)


def test_a_round_is_a_function_of_seed_cycle_round_and_outcomes() -> None:
    first, second, other = source(CELLS), source(CELLS), source(CELLS, seed=2)
    ids = [t.id for t in first.draw(3, 12)]
    assert ids == [t.id for t in second.draw(3, 12)]
    assert ids != [t.id for t in first.draw(4, 12)]
    assert ids != [t.id for t in other.draw(3, 12)]
    assert len(set(ids)) == 12


def test_outcomes_move_the_next_round_towards_the_frontier() -> None:
    drawn = source(CELLS)
    for _ in range(6):
        drawn.observe([("sum_of_terms/d0", 8, 8), ("sum_of_terms/d1", 4, 8), ("sum_of_terms/d3", 0, 8)])
    counts = Counter(t.cell for r in range(12) for t in drawn.draw(r, 12))
    assert counts["sum_of_terms/d1"] > 2 * max(counts["sum_of_terms/d0"], counts["sum_of_terms/d3"])
    assert counts["sum_of_terms/d0"] > 0, "mastered cells are still checked"


def test_counts_shrink_once_a_round_and_only_where_tried() -> None:
    drawn = source(known(m0=(10, 20), m1=(5, 10)))
    drawn.observe([("sum_of_terms/d0", 1, 8), ("sum_of_terms/d0", 2, 8)])
    passes, trials, tried = drawn.state()["sum_of_terms/d0"]
    assert (passes, trials, tried) == (pytest.approx(12.0), pytest.approx(34.0), 36)
    assert drawn.state()["sum_of_terms/d1"] == [5.0, 10.0, 10]


def test_state_restores_the_draws() -> None:
    drawn, resumed = source(CELLS), source(CELLS)
    drawn.observe([("sum_of_terms/d0", 8, 8), ("affine_function/d1", 0, 8)])
    resumed.load(drawn.state())
    assert [t.id for t in drawn.draw(1, 8)] == [t.id for t in resumed.draw(1, 8)]
    with pytest.raises(DormouseError, match="other cells"):
        resumed.load({"sum_of_terms/d0": [0, 0, 0]})


def test_failure_memory_gives_its_cells_mass_and_its_tasks_another_try() -> None:
    retries = source(CELLS, seed=9).draw(0, 3)
    drawn = source(CELLS, CurriculumConfig(failure_share=0.5), Failures({"sum_of_terms/d3": 1.0}, retries))
    shares = drawn.shares()
    assert shares.final_C[3] == pytest.approx(0.5 + 0.5 * shares.reviewed_C[3])
    ids = {t.id for t in drawn.draw(0, 12)}
    assert {t.id for t in retries} <= ids
    off = source(CELLS, CurriculumConfig(failure_share=0.5, use_failure_memory=False), Failures({"sum_of_terms/d3": 1.0}, retries))
    assert [t.id for t in off.draw(0, 12)] == [t.id for t in source(CELLS).draw(0, 12)]


def test_a_review_factor_moves_mass_with_the_curriculum_off() -> None:
    moved = [c.model_copy(update={"factor": 2.0}) if c.difficulty == 3 else c for c in CELLS]
    shares = source(moved, OFF).shares()
    assert shares.final_C[3] / shares.final_C[0] == pytest.approx(2.0)


def test_outcomes_of_unknown_cells_are_refused() -> None:
    with pytest.raises(DormouseError, match="not in this line's suite"):
        source(CELLS).observe([("nowhere/d9", 1, 8)])


def test_a_round_holds_no_task_twice_even_from_a_small_cell() -> None:
    small = [CellState(pool=Pool.CODE, family="index_function", difficulty=0)]
    ids = [t.id for t in source(small).draw(0, 25)]
    assert len(set(ids)) == 25


def test_a_round_larger_than_its_cells_is_refused() -> None:
    with pytest.raises(DormouseError, match="more tasks than its 1 cells have"):
        source([CellState(pool=Pool.CODE, family="index_function", difficulty=0)]).draw(0, 400)
