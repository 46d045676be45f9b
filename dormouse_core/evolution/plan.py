"""The cycle plan: everything a cycle starts from, frozen before it starts, with the cause of every cell that gained or lost mass.

Each mechanism moves the shares in its own step (curriculum, strategy review, failure memory), so its effect is the difference it made,
and the tasks of round 0 are drawn from the result by the very source that RL goes on drawing from.
Not here: how shares and draws are made (curriculum), what the earlier cycle's artifacts hold (their own rooms).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.evolution.curriculum import Curriculum, CycleSource, Failures, Shares, suite_cells
from dormouse_core.evolution.failure_memory import Row, cell_weights, diagnosis_of
from dormouse_core.evolution.posterior import Band
from dormouse_core.evolution.promotion import Promotion
from dormouse_core.evolution.strategy_review import StrategyReview
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.plan import CellState, CyclePlan, PlanInput
from dormouse_core.tasks.store import KEYS, tasks_from_table, tasks_to_table
from dormouse_core.tasks.task import Task

STAGE = "cycle_plan"
RETRIES = 32
"""Failed tasks a plan may draw again: those with the best scores."""
NOTED = 0.002
"""A change of a cell's share below this is not worth a line."""


@dataclass(frozen=True)
class Start:
    """A plan with the artifacts it names, found in the store."""

    plan: CyclePlan
    base: Artifact
    sft: Artifact
    tasks: Artifact
    promotion: Artifact | None
    curriculum: Artifact | None
    failure_memory: Artifact | None
    strategy_review: Artifact | None


def cycle_number(cycle: str) -> int:
    """`main.c0003` -> 3. Raises DormouseError on another form."""
    line, _, number = cycle.rpartition(".c")
    if not line or not number.isdigit():
        raise DormouseError(f"{cycle!r} is no cycle; cycles are named LINE.cNNNN, like main.c0000")
    return int(number)


def run(config: RunConfig, sft: Artifact, promotion: Artifact | None = None, curriculum: Artifact | None = None,
        failure_memory: Artifact | None = None, strategy_review: Artifact | None = None, *, cycle: str, store: Store, ledger: Ledger,
        run_id: str = "", origins: Sequence[PlanInput] = ()) -> Artifact:
    """Freeze the start of `cycle` and draw its round-0 tasks. Returns the CYCLE_PLAN.

    sft: the line's base. The others are the previous cycle's; the first cycle has none. origins: where the pipeline had them.
    Raises DormouseError when the previous cycle's promotion is missing, or is of another cycle.
    """
    base = _base(cycle, sft, promotion, store)
    review = store.read_record(strategy_review, StrategyReview) if strategy_review is not None else None
    learnt = store.read_record(curriculum, Curriculum).cells if curriculum is not None else ()
    rows: list[Row] = store.read_table(failure_memory).to_pylist() if failure_memory is not None else []
    cells = starting_cells(config, learnt, review)
    weights, chosen = _named(config, cells, rows, cycle)
    source = CycleSource(cells, config.curriculum, cycle, config.runtime.seed, Failures(weights, _retries(chosen, store)))
    tasks = source.draw(0, config.roll.prompts)
    shares = source.shares()
    causes = explain(cells, shares, review, rows, source)
    general = _switches(config, ledger)
    known = {"checkpoint": base, "sft": sft, "promotion": promotion, "curriculum": curriculum, "failure_memory": failure_memory,
             "strategy_review": strategy_review}
    inputs = tuple(Parent(role=role, kind=a.kind, identity=a.identity) for role, a in known.items() if a is not None)
    made = {"stage": STAGE, "config_sha256": config.sha256(), "code_version": code_version(), "seed": config.runtime.seed, "run_id": run_id}
    drawn = store.put_table(tasks_to_table(tasks), KEYS, Provenance(kind=Kind.TASKS, parents=inputs, **made))
    inputs += (Parent(role="tasks", kind=drawn.kind, identity=drawn.identity),)
    states = tuple(c.model_copy(update={"cause": "; ".join(causes.get(c.name, []))}) for c in source.cell_states())
    plan = CyclePlan(
        cycle=cycle, number=cycle_number(cycle), seed=config.runtime.seed, cells=states, suite=config.loop.suite, inputs=inputs,
        origins=tuple(origins), failures=weights if source.failure_share else {}, retries=tuple(str(r["task_id"]) for r in chosen),
        causes=(*general, *(f"{name}: {line}" for name, lines in causes.items() for line in lines)), config_sha256=config.sha256())
    ledger.count("cycle_plan.causes", len(plan.causes))
    return store.put_record(plan, Provenance(kind=Kind.CYCLE_PLAN, parents=inputs, counters=ledger.counters(), **made),
                            volatile=("origins",))


def start_of(plan: Artifact, store: Store) -> Start:
    """The plan and everything it starts from. Raises DormouseError when the store has lost one of them."""
    read = store.read_record(plan, CyclePlan)
    found = {p.role: _found(store, p, read.cycle) for p in read.inputs}
    return Start(read, found["checkpoint"], found["sft"], found["tasks"], *(found.get(role) for role in (
        "promotion", "curriculum", "failure_memory", "strategy_review")))


def source_of(config: RunConfig, plan: Artifact, store: Store) -> CycleSource:
    """The source that drew the plan's round 0, in the state it was in: RL's rounds go on from here."""
    start = start_of(plan, store)
    rows = store.read_table(start.failure_memory).to_pylist() if start.failure_memory is not None else []
    again = [r for r in rows if r["task_id"] in start.plan.retries]
    failures = Failures(start.plan.failures, _retries(again, store))
    return CycleSource(start.plan.cells, config.curriculum, start.plan.cycle, start.plan.seed, failures)


def starting_cells(config: RunConfig, learnt: Sequence[CellState], review: StrategyReview | None) -> tuple[CellState, ...]:
    """The suite's train cells with what is known of them and the factors of a review; new cells start from nothing."""
    known, factors = {c.name: c for c in learnt}, review.factors() if review else {}
    cells = [known.get(c.name, c) for c in suite_cells(config.loop.suite)]
    return tuple(c.model_copy(update={"factor": factors.get(c.name, 1.0), "cause": ""}) for c in cells)


def explain(cells: Sequence[CellState], shares: Shares, review: StrategyReview | None, rows: Sequence[Row],
            source: CycleSource) -> dict[str, list[str]]:
    """Cell -> why its share of a round is what it is, one line for each mechanism that moved it."""
    why: dict[str, list[str]] = defaultdict(list)
    moves = {m.cell: m.cause for m in review.moves} if review else {}
    for i, (cell, state) in enumerate(zip(cells, source.cell_states(), strict=True)):
        steps = (("curriculum", shares.even_C[i], shares.banded_C[i],
                  f"{state.band}, pass rate {state.rate:.2f} [{state.rate_low:.2f}, {state.rate_high:.2f}] after {state.tried} tries"),
                 ("strategy review", shares.banded_C[i], shares.reviewed_C[i], moves.get(cell.name, "other cells were moved")),
                 ("failure memory", shares.reviewed_C[i], shares.final_C[i],
                  diagnosis_of(rows, cell.name) if cell.name in source.failures.weight else "other cells were named"))
        why[cell.name] += [f"share {before:.3f} -> {after:.3f} by {name}: {cause}" for name, before, after, cause in steps
                           if abs(after - before) >= NOTED]
    return dict(why)


def _base(cycle: str, sft: Artifact, promotion: Artifact | None, store: Store) -> Artifact:
    """What the cycle starts from."""
    line, number = cycle.rpartition(".c")[0], cycle_number(cycle)
    if number == 0:
        if promotion is not None:
            raise DormouseError(f"{cycle} is the first of its line and starts from the SFT base, but was given a promotion")
        return sft
    before = f"{line}.c{number - 1:04d}"
    if promotion is None:
        raise DormouseError(f"{cycle} starts from what {before} promoted, and {before} has no promotion: run that cycle first")
    record = store.read_record(promotion, Promotion)
    if record.cycle != before:
        raise DormouseError(f"{cycle} starts from what {before} promoted, but was given the promotion of {record.cycle!r}; run {before} "
                            "first")
    return _found(store, record.checkpoint, cycle)


def _named(config: RunConfig, cells: Sequence[CellState], rows: Sequence[Row], cycle: str) -> tuple[dict[str, float], list[Row]]:
    """(cell -> weight, rows to try again) of what the failure memory asks for, without cells that are too hard for now or not in the
    suite. Nothing while it is off."""
    if not config.curriculum.use_failure_memory:
        return {}, []
    source = CycleSource(cells, config.curriculum, cycle, config.runtime.seed)
    alive = {c.name for c, band in zip(cells, source.shares().bands, strict=True) if band is not Band.ARCHIVED}
    mine = [r for r in rows if f"{r['family']}/d{r['difficulty']}" in alive]
    best = sorted(mine, key=lambda r: (-float(str(r["best_score"])), str(r["task_id"])))
    return cell_weights(mine), best[:RETRIES]


def _retries(rows: Sequence[Row], store: Store) -> list[Task]:
    """The tasks of some rows of the failure memory, from the tables that hold them."""
    by_table: Mapping[str, set[str]] = defaultdict(set)
    for row in rows:
        by_table[str(row["tasks"])].add(str(row["task_id"]))
    tasks: list[Task] = []
    for identity, wanted in sorted(by_table.items()):
        table = store.find(Kind.TASKS, identity)
        if table is None:
            raise DormouseError(f"the failure memory names {len(wanted)} tasks of the table {identity[:16]}, which the store no longer "
                                "holds; restore it, or start without the memory: --set curriculum.use_failure_memory=false")
        tasks += [t for t in tasks_from_table(store.read_table(table)) if t.id in wanted]
    return tasks


def _switches(config: RunConfig, ledger: Ledger) -> list[str]:
    """One line for each mechanism that is off."""
    lines = []
    if not config.curriculum.enabled:
        lines.append("curriculum off: cells are drawn evenly, whatever their pass rates")
    if not config.curriculum.use_failure_memory:
        lines.append("failure memory off: no share for failed cells, no failed task drawn again")
    for line in lines:
        ledger.loud(line)
    return lines


def _found(store: Store, parent: Parent, cycle: str) -> Artifact:
    found = store.find(parent.kind, parent.identity)
    if found is None:
        raise DormouseError(f"{cycle} starts from the {parent.role} {parent.kind} {parent.identity[:16]}, which the store does not hold; "
                            "restore it, or run the stage that made it again")
    return found
