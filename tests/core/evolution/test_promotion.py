"""Who starts the next cycle, and what a lost holdout changes."""

from collections.abc import Callable

import pytest

from dormouse_core.artifacts.provenance import Artifact, Kind, Parent
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.evaluation.holdout import Change, HoldoutVerdict
from dormouse_core.evaluation.statistics import Interval
from dormouse_core.evolution import promotion, strategy_review
from dormouse_core.evolution.promotion import Promotion
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.monitors.collapse import CollapseReport, Regime

Put = Callable[..., Artifact]


def change(name: str, pool: str, low: float, value: float, high: float) -> Change:
    return Change(
        name=name,
        pool=pool,
        tasks=9,
        incumbent=0.4,
        candidate=0.4 + value,
        difference=Interval(value=value, low=low, high=high),
        ratio=None,
        greedy=Interval(value=0, low=0, high=0),
        at_budget=(),
    )


def verdict(incumbent: Artifact, candidate: Artifact, promote: bool) -> HoldoutVerdict:
    def of(role: str, a: Artifact) -> Parent:
        return Parent(role=role, kind=a.kind, identity=a.identity)

    pools = (change("math", "math", -0.1, -0.05, 0.01), change("code", "code", 0.0, 0.03, 0.06))
    cells = (
        change("sum/d1", "math", -0.3, -0.2, -0.1),
        change("sum/d2", "math", -0.2, -0.1, 0.1),
        change("sum/d3", "math", 0.1, 0.2, 0.3),
        change("affine/d1", "code", -0.1, 0.0, 0.1),
        change("affine/d2", "code", 0.1, 0.2, 0.3),
    )
    return HoldoutVerdict(
        cycle="main.c0000",
        promote=promote,
        reason="the number",
        incumbent=of("incumbent", incumbent),
        candidate=of("candidate", candidate),
        suite="s",
        root=candidate.identity,
        seed=1,
        samples=4,
        temperature=1.0,
        mean=change("mean", "mean", -0.1, -0.01, 0.1),
        pools=pools,
        cells=cells,
        greedy_p=1.0,
        reports={},
        left_out=0,
        table=of("table", candidate),
    )


def collapse(candidate: str, regime: Regime) -> CollapseReport:
    return CollapseReport(
        cycle="main.c0000", base="b", candidate=candidate, regime=regime, reason="math: template collapse", pools=(), skipped=()
    )


def test_a_promoted_checkpoint_is_a_new_file_without_moments_whose_parents_let_it_through(
    config: RunConfig, store: Store, checkpoint: Put, record: Put
) -> None:
    base, candidate = checkpoint(1), checkpoint(2, interleave_rl=0.25, metrics=[1], demonstrations="rows")
    holdout = record(verdict(base, candidate, True), Kind.HOLDOUT_VERDICT)
    made = promotion.run(config, candidate, holdout, store=store, ledger=Ledger())
    decided = store.read_record(made, Promotion)
    promoted = store.find(Kind.CHECKPOINT, decided.checkpoint.identity)
    assert decided.promoted and promoted is not None and promoted.identity not in (base.identity, candidate.identity)
    assert {(p.role, p.identity) for p in promoted.provenance.parents} == {("candidate", candidate.identity), ("holdout", holdout.identity)}
    held, trained = store.read_checkpoint(promoted), store.read_checkpoint(candidate)
    assert held.optimizer == {} and trained.optimizer != {}
    assert all((held.model[k] == trained.model[k]).all() for k in trained.model)
    assert {k: held.state[k] for k in ("lfb_version", "interleave_rl", "demonstrations")} == {
        "lfb_version": 0,
        "interleave_rl": 0.25,
        "demonstrations": "rows",
    }
    assert "metrics" not in held.state


def test_a_lost_holdout_carries_the_incumbent_over(config: RunConfig, store: Store, checkpoint: Put, record: Put) -> None:
    base, candidate = checkpoint(1), checkpoint(2)
    holdout = record(verdict(base, candidate, False), Kind.HOLDOUT_VERDICT)
    decided = store.read_record(promotion.run(config, candidate, holdout, store=store, ledger=Ledger()), Promotion)
    assert (decided.promoted, decided.checkpoint.identity, decided.reason) == (False, base.identity, "the number")


@pytest.mark.parametrize(("regime", "promoted"), [(Regime.OK, True), (Regime.WARN, True), (Regime.ERROR, False)])
def test_a_collapsed_candidate_is_not_promoted_however_well_it_scored(
    config: RunConfig, store: Store, checkpoint: Put, record: Put, regime: Regime, promoted: bool
) -> None:
    base, candidate = checkpoint(1), checkpoint(2)
    holdout = record(verdict(base, candidate, True), Kind.HOLDOUT_VERDICT)
    report = record(collapse(candidate.identity, regime), Kind.COLLAPSE_REPORT)
    decided = store.read_record(promotion.run(config, candidate, holdout, report, store=store, ledger=Ledger()), Promotion)
    assert decided.promoted is promoted
    assert ("template collapse" in decided.reason) is not promoted


def test_a_verdict_or_report_of_another_candidate_is_refused(config: RunConfig, store: Store, checkpoint: Put, record: Put) -> None:
    base, candidate, other = checkpoint(1), checkpoint(2), checkpoint(3)
    holdout = record(verdict(base, candidate, True), Kind.HOLDOUT_VERDICT)
    with pytest.raises(DormouseError, match="holdout verdict is of checkpoint"):
        promotion.run(config, other, holdout, store=store, ledger=Ledger())
    with pytest.raises(DormouseError, match="collapse report is of checkpoint"):
        promotion.run(
            config, candidate, holdout, record(collapse(other.identity, Regime.OK), Kind.COLLAPSE_REPORT), store=store, ledger=Ledger()
        )


def test_a_review_names_the_losing_number_and_moves_cells_by_what_they_lost(
    config: RunConfig, store: Store, checkpoint: Put, record: Put
) -> None:
    holdout = record(verdict(checkpoint(1), checkpoint(2), False), Kind.HOLDOUT_VERDICT)
    made = store.read_record(strategy_review.run(config, holdout, store=store, ledger=Ledger()), strategy_review.StrategyReview)
    assert (made.lost, made.finding, made.weakest) == (True, "the number", "math")
    assert made.factors() == {"sum/d1": 2.0 * 1.25, "sum/d2": 1.5 * 1.25, "sum/d3": 0.75, "affine/d2": 0.75}
    assert made.moves[0].cause.startswith(
        "surely worse than the incumbent: -20.0 points [-30.0, -10.0]; in math, the pool that gained least"
    )


def test_after_a_promotion_the_review_moves_nothing(checkpoint: Put) -> None:
    made = strategy_review.review(verdict(checkpoint(1), checkpoint(2), True))
    assert (made.lost, made.moves, made.weakest) == (False, (), "")
