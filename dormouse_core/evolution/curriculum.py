"""The curriculum: what is drawn next, from what the verifier has said so far. Implements `tasks.source.TaskSource`.

Shares of the cells are made in stages, so that each mechanism can be switched off and its effect named:
even over pools and cells -> bands and weights of the posterior (`curriculum.enabled`) -> factors a strategy review asked for ->
a share of each round for the cells, and half of that for the very tasks, which the failure memory names.

Every draw is a function of (seed, cycle, round, slot) and of the outcomes observed before it; nothing else is remembered.
Not here: what a band is (posterior), how shares become counts (allocation), what a failure is (failure_memory).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dormouse_core import seeding
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import CurriculumConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.evolution.allocation import band_mass_C, pool_shares, systematic, value_C
from dormouse_core.evolution.posterior import Band, Posterior
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.plan import CellState, CyclePlan
from dormouse_core.tasks.registry import draw as draw_task
from dormouse_core.tasks.task import Pool, Split, Task

STAGE = "curriculum"
Floats = NDArray[np.float64]
_REDRAWS = 30


class Curriculum(Record):
    """What a cycle taught about its cells: where the next plan starts from."""

    cycle: str
    cells: tuple[CellState, ...]
    bands: dict[str, int]
    """Cells in each band."""


@dataclass(frozen=True)
class Failures:
    """What the failure memory asks for: mass for cells, and tasks to try again."""

    weight: Mapping[str, float] = field(default_factory=dict)
    """Cell -> weight, positive."""
    retries: Sequence[Task] = ()


@dataclass(frozen=True)
class Shares:
    """Expected share of a round of each cell, after each stage; every row sums to 1."""

    even_C: Floats
    banded_C: Floats
    reviewed_C: Floats
    final_C: Floats
    bands: list[Band]


class CycleSource:
    """Draws the rounds of one cycle and learns from their outcomes."""

    def __init__(self, cells: Sequence[CellState], config: CurriculumConfig, cycle: str, seed: int,
                 failures: Failures | None = None) -> None:
        if not cells:
            raise DormouseError("the curriculum has no cells to draw from: the suite names no cell of role `train`")
        self.cells, self.config, self.cycle, self.seed = list(cells), config, cycle, seed
        self.failures = failures or Failures()
        self.row = {c.name: i for i, c in enumerate(self.cells)}
        self.passes_C = np.array([c.passes for c in cells])
        self.trials_C = np.array([c.trials for c in cells])
        self.tried_C = np.array([c.tried for c in cells], dtype=np.int64)
        self.factor_C = np.array([c.factor for c in cells])
        foreign = sorted(({t.cell for t in self.failures.retries} | set(self.failures.weight)) - set(self.row))
        if foreign:
            raise DormouseError(f"the failure memory names cells outside the suite ({', '.join(foreign)}): it belongs to another suite; "
                                "start a new line, or switch it off with --set curriculum.use_failure_memory=false")

    # ---- shares

    def shares(self) -> Shares:
        """Where the next round's tasks would come from, stage by stage."""
        belief = Posterior(self.passes_C, self.trials_C)
        bands = belief.bands(self.tried_C)
        pools = np.array([c.pool.value for c in self.cells])
        names = list(dict.fromkeys(pools.tolist()))
        even_C = np.array([1 / (len(names) * (pools == p).sum()) for p in pools])
        banded_C = self._banded(belief, bands, pools, names) if self.config.enabled else even_C
        reviewed_C = banded_C * self.factor_C
        reviewed_C = reviewed_C / reviewed_C.sum()
        wanted_C = self._failure_C()
        final_C = reviewed_C if wanted_C is None else (1 - self.failure_share) * reviewed_C + self.failure_share * wanted_C
        return Shares(even_C, banded_C, reviewed_C, final_C, bands)

    def _banded(self, belief: Posterior, bands: list[Band], pools: NDArray[np.str_], names: list[str]) -> Floats:
        masses = self.config.bands.model_dump()
        weight_C = value_C(belief, bands, self.config.k, self.config.target, self.config.target_bonus)
        spread_C = belief.spread_C()
        share = pool_shares({p: float(spread_C[pools == p].mean()) for p in names}, self.config.pool_floor)
        banded_C = np.zeros(len(bands))
        for pool in names:
            rows = np.flatnonzero(pools == pool)
            banded_C[rows] = share[pool] * band_mass_C([bands[i] for i in rows], masses, weight_C[rows])
        return banded_C

    @property
    def failure_share(self) -> float:
        """Share of a round the failure memory gets: none while it is off or empty."""
        return self.config.failure_share if self.config.use_failure_memory and self.failures.weight else 0.0

    def _failure_C(self) -> Floats | None:
        if not self.failure_share:
            return None
        wanted_C = np.array([self.failures.weight.get(c.name, 0.0) for c in self.cells])
        return wanted_C / wanted_C.sum()

    # ---- TaskSource

    def draw(self, round: int, n: int) -> list[Task]:
        """The n tasks of a round, all distinct. Deterministic in (seed, cycle, round) and in what was observed before."""
        rng = seeding.generator("curriculum", self.seed, self.cycle, round)
        plain, failed = rng.random(2)
        shares = self.shares()
        again = int(np.floor(self.failure_share * n + failed))
        tasks = self._retries(rng, again // 2 + again % 2)
        counts_C = systematic(shares.reviewed_C, n - again, plain)
        wanted_C = self._failure_C()
        if wanted_C is not None:
            counts_C = counts_C + systematic(wanted_C, again - len(tasks), failed)
        for row in np.flatnonzero(counts_C):
            for _ in range(counts_C[row]):
                tasks.append(self._new(int(row), round, len(tasks), {t.id for t in tasks}, shares))
        return tasks

    def _retries(self, rng: np.random.Generator, n: int) -> list[Task]:
        """Up to n of the failure memory's tasks."""
        pool = {t.id: t for t in self.failures.retries}
        order = sorted(pool)
        return [pool[order[i]] for i in rng.permutation(len(order))[:n]]

    def _new(self, row: int, round: int, slot: int, taken: set[str], shares: Shares) -> Task:
        """A task of the cell that the round does not hold yet; of the next likely cell where this one has no other left."""
        for candidate in [row, *(int(r) for r in np.argsort(-shares.final_C, kind="stable") if r != row)]:
            cell = self.cells[candidate]
            for attempt in range(_REDRAWS):
                index = seeding.key("curriculum draw", self.cycle, round, slot, attempt)
                task = draw_task(cell.family, cell.difficulty, Split.TRAIN, index, str(self.seed))
                if task.id not in taken:
                    return task
        raise DormouseError(f"round {round} of {self.cycle} asks for more tasks than its {len(self.cells)} cells have; lower roll.prompts, "
                            "or add cells to the suite")

    def observe(self, outcomes: Sequence[tuple[str, int, int]]) -> None:
        """Outcomes of one round: (cell, passed, tried) a task. Counts of the cells that were tried shrink by `discount`, once,
        before the round's are added. Outcomes of cells outside the suite raise DormouseError."""
        passed_C, tried_C = np.zeros(len(self.cells)), np.zeros(len(self.cells), dtype=np.int64)
        for cell, passed, tried in outcomes:
            if cell not in self.row:
                raise DormouseError(f"an outcome names cell {cell}, which is not in this line's suite; roll tasks of the plan")
            passed_C[self.row[cell]] += passed
            tried_C[self.row[cell]] += tried
        keep_C = np.where(tried_C > 0, self.config.discount, 1.0)
        self.passes_C = self.passes_C * keep_C + passed_C
        self.trials_C = self.trials_C * keep_C + tried_C
        self.tried_C = self.tried_C + tried_C

    def state(self) -> dict[str, Any]:
        """All that `observe` changed, as JSON values."""
        return {c.name: [float(self.passes_C[i]), float(self.trials_C[i]), int(self.tried_C[i])] for i, c in enumerate(self.cells)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`. Raises DormouseError when the cells differ."""
        if set(state) != set(self.row):
            raise DormouseError("the stored curriculum state is of other cells than the suite's; resume with the suite it was started with")
        for name, (passes, trials, tried) in state.items():
            row = self.row[name]
            self.passes_C[row], self.trials_C[row], self.tried_C[row] = passes, trials, tried

    def cell_states(self) -> tuple[CellState, ...]:
        """The cells as they now stand, with band, believed pass rate and share of the next round."""
        belief, shares = Posterior(self.passes_C, self.trials_C), self.shares()
        low_C, high_C = belief.interval()
        return tuple(c.model_copy(update={
            "passes": float(self.passes_C[i]), "trials": float(self.trials_C[i]), "tried": int(self.tried_C[i]),
            "weight": float(shares.final_C[i]), "band": shares.bands[i].value, "rate": float(belief.mean_C[i]), "rate_low": float(low_C[i]),
            "rate_high": float(high_C[i])}) for i, c in enumerate(self.cells))


def suite_cells(name: str) -> tuple[CellState, ...]:
    """The train cells of a suite, before anything is known of them."""
    return tuple(CellState(pool=Pool(c.pool), family=c.family, difficulty=c.difficulty) for c in load_suite(name).role("train"))


def suite_source(config: RunConfig, cycle: str) -> CycleSource:
    """A source that starts from nothing: for a cycle without a plan."""
    return CycleSource(suite_cells(config.loop.suite), config.curriculum, cycle, config.runtime.seed)


def run(config: RunConfig, plan: Artifact, candidate: Artifact, *, store: Store, ledger: Ledger, run_id: str = "") -> Artifact:
    """The cells after the cycle of `plan`, from every round the candidate (an RL checkpoint) learnt from: the state of its source.
    Returns the CURRICULUM record. Raises DormouseError when the two are of different cycles."""
    planned, state = store.read_record(plan, CyclePlan), store.read_checkpoint(candidate).state
    if state.get("cycle") != planned.cycle:
        raise DormouseError(f"{candidate.path} was trained in cycle {state.get('cycle')!r}, the plan is of {planned.cycle}; give the plan "
                            "and the RL checkpoint of one cycle")
    source = CycleSource(planned.cells, config.curriculum, planned.cycle, config.runtime.seed)
    if state.get("source"):
        source.load(state["source"])
    else:
        ledger.loud(f"curriculum: {candidate.path} learnt from its stored round alone and kept no outcomes; the cells stay as planned")
    cells = source.cell_states()
    bands = {b.value: sum(c.band == b.value for c in cells) for b in Band}
    for band, n in bands.items():
        ledger.count(f"curriculum.{band}", n)
    return store.put_record(Curriculum(cycle=planned.cycle, cells=cells, bands=bands), Provenance(
        kind=Kind.CURRICULUM, stage=STAGE, parents=tuple(Parent(role=r, kind=a.kind, identity=a.identity) for r, a in (
            ("plan", plan), ("candidate", candidate))), config_sha256=config.sha256(), code_version=code_version(),
        seed=config.runtime.seed, counters=ledger.counters(), run_id=run_id))
