"""CyclePlan: what a cycle starts from, frozen before it starts.

Not here: how weights and bands come about (evolution), how tasks are drawn by them (a TaskSource).
"""

from pydantic import Field

from dormouse_core.artifacts.provenance import Parent
from dormouse_core.config.base import Record
from dormouse_core.tasks.task import Pool


class CellState(Record):
    """One (family, difficulty) with its discounted record."""

    pool: Pool
    family: str
    difficulty: int = Field(ge=0)
    trials: float = Field(0.0, ge=0)
    """Discounted verdicts that count."""
    passes: float = Field(0.0, ge=0)
    tried: int = Field(0, ge=0)
    """Answers ever given in the cell, never discounted."""
    rate: float | None = None
    """Believed pass rate, with its interval; None before the curriculum has looked."""
    rate_low: float | None = None
    rate_high: float | None = None
    band: str = "frontier"
    """Where the curriculum has it: mastered, frontier, boundary or archived (`evolution/posterior.py`)."""
    factor: float = Field(1.0, gt=0)
    """What the last strategy review multiplies the cell's share by."""
    weight: float = Field(0.0, ge=0)
    """Share of a round's draws, all cells together 1."""
    cause: str = ""
    """Why the weight is what it is, when something other than the band moved it."""

    @property
    def name(self) -> str:
        """`family/d3`, as `Task.cell`."""
        return f"{self.family}/d{self.difficulty}"


class PlanInput(Record):
    """Where the pipeline had one artifact the plan froze. Varies from run to run."""

    artifact: Parent
    run_id: str = ""
    storage_id: int | None = None
    """Storage id of the materialisation it was read from; None outside Dagster."""


class CyclePlan(Record):
    """A cycle's frozen starting point."""

    cycle: str
    """Partition key, e.g. `main.c0003`."""
    number: int = Field(ge=0)
    """Position in its line."""
    seed: int
    """Root of every draw of the cycle."""
    cells: tuple[CellState, ...] = Field(min_length=1)
    suite: str = ""
    """Suite its cells are of."""
    inputs: tuple[Parent, ...] = ()
    """What the cycle starts from: `checkpoint`, `sft`, `tasks` of round 0; `promotion`, `curriculum`, `failure_memory` and
    `strategy_review` of the cycle before."""
    origins: tuple[PlanInput, ...] = ()
    """Runs and storage ids of the inputs; no part of the plan's identity."""
    failures: dict[str, float] = {}
    """Cell -> weight the failure memory gives it; empty while it is off or knows none."""
    retries: tuple[str, ...] = ()
    """Ids of failed training tasks that may be drawn again."""
    causes: tuple[str, ...] = ()
    """One line for each thing that changed this plan against the one before, naming its cause."""
    config_sha256: str = ""

    def input(self, role: str) -> Parent | None:
        """The frozen artifact of a role; None where the plan has none."""
        return next((i for i in self.inputs if i.role == role), None)
