"""CyclePlan: everything one cycle starts from, frozen before it starts. CellState: what is known of one cell.

Not here: how a plan is made (evolution.plan), how cells are drawn (evolution.curriculum).
"""

from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.config.base import Record


class CellState(Record):
    """One (family, difficulty) of the suite, and what the verifier has said of it so far."""

    pool: str
    family: str
    difficulty: int
    passes: float = 0.0
    """Passing answers, discounted."""
    trials: float = 0.0
    """Judged answers, discounted."""
    tried: int = 0
    """Judged answers ever, not discounted."""
    factor: float = 1.0
    """What the last strategy review multiplied the cell's share by."""
    weight: float = 0.0
    """Expected share of the next round's tasks."""
    band: str = ""
    rate: float = 0.5
    """Posterior mean of the pass rate; with its central 90 % interval."""
    rate_low: float = 0.0
    rate_high: float = 1.0

    @property
    def name(self) -> str:
        """`family/d3`, as `Task.cell`."""
        return f"{self.family}/d{self.difficulty}"


class CyclePlan(Record):
    """What a cycle starts from. Artifacts are handles, so the plan is enough to find everything."""

    cycle: str
    seed: int
    suite: str
    base: Artifact
    """The checkpoint the cycle starts from: the SFT base, or what the cycle before promoted."""
    sft: Artifact
    """The SFT base of the line: what gains are measured against."""
    tasks: Artifact
    """Tasks of round 0."""
    cells: tuple[CellState, ...]
    failures: dict[str, float] = {}
    """Cell -> weight the failure memory gives it; empty while it is off."""
    promotion: Artifact | None = None
    curriculum: Artifact | None = None
    failure_memory: Artifact | None = None
    strategy_review: Artifact | None = None
    causes: tuple[str, ...] = ()
    """Why each cell gained or lost mass: one line a mechanism and cell."""
