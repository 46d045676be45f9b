"""The strategy review: after a lost holdout, the number that lost and the cells whose share the next plan moves, with the reason.

A cell that got worse gains share (twice as much where the loss is certain at 95 %), one that certainly got better gives some up, and
the pool that held the mean back gains a little in all its cells. The factors act on the next plan alone. After a promotion the
review says so and moves nothing.
Not here: how shares are made of factors (curriculum), and who is promoted (evaluation.holdout).
"""

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.evaluation.holdout import Change, HoldoutVerdict
from dormouse_core.ledger import Ledger

STAGE = "strategy_review"
SURELY_WORSE, WORSE, SURELY_BETTER, WEAK_POOL = 2.0, 1.5, 0.75, 1.25


class Move(Record):
    """What a review does to one cell."""

    cell: str
    factor: float
    cause: str


class StrategyReview(Record):
    cycle: str
    lost: bool
    finding: str
    """The number that lost, or that nothing was lost."""
    weakest: str
    """The pool with the smallest gain; "" after a promotion."""
    moves: tuple[Move, ...]

    def factors(self) -> dict[str, float]:
        """Cell -> factor on its share of the next plan."""
        return {m.cell: m.factor for m in self.moves}


def _points(change: Change) -> str:
    d = change.difference
    return f"{100 * d.value:+.1f} points [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"


def review(verdict: HoldoutVerdict) -> StrategyReview:
    """What the next plan should do differently. A function of the holdout verdict alone."""
    if verdict.promote:
        return StrategyReview(cycle=verdict.cycle, lost=False, finding=verdict.reason, weakest="", moves=())
    weakest = min(verdict.pools, key=lambda p: (p.difference.value, p.name))
    moves = []
    for cell in verdict.cells:
        factor, causes = 1.0, []
        if cell.difference.high < 0:
            factor, causes = SURELY_WORSE, [f"surely worse than the incumbent: {_points(cell)}"]
        elif cell.difference.value < 0:
            factor, causes = WORSE, [f"worse than the incumbent: {_points(cell)}"]
        elif cell.difference.low > 0:
            factor, causes = SURELY_BETTER, [f"surely better, gives up share: {_points(cell)}"]
        if cell.pool == weakest.name and factor >= 1:
            factor, causes = factor * WEAK_POOL, [*causes, f"in {weakest.name}, the pool that gained least: {_points(weakest)}"]
        if causes:
            moves.append(Move(cell=cell.name, factor=factor, cause="; ".join(causes)))
    return StrategyReview(cycle=verdict.cycle, lost=True, finding=verdict.reason, weakest=weakest.name, moves=tuple(moves))


def run(config: RunConfig, holdout: Artifact, *, store: Store, ledger: Ledger, run_id: str = "") -> Artifact:
    """Review one HOLDOUT_VERDICT. Returns the STRATEGY_REVIEW."""
    made = review(store.read_record(holdout, HoldoutVerdict))
    if made.lost:
        ledger.loud(f"strategy review: {made.finding}; moves {len(made.moves)} cells")
    ledger.count("strategy_review.moves", len(made.moves))
    return store.put_record(made, Provenance(
        kind=Kind.STRATEGY_REVIEW, stage=STAGE, parents=(Parent(role="holdout", kind=holdout.kind, identity=holdout.identity),),
        config_sha256=config.sha256(), code_version=code_version(), seed=config.runtime.seed, counters=ledger.counters(), run_id=run_id))
