"""What a cycle starts from: each mechanism alone changes the plan and the tasks drawn, and says so."""

from collections.abc import Callable

import pytest

from dormouse_core.artifacts.provenance import Artifact, Kind, Parent
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.evolution import plan as planning
from dormouse_core.evolution.curriculum import Curriculum, suite_cells
from dormouse_core.evolution.promotion import Promotion
from dormouse_core.evolution.strategy_review import Move, StrategyReview
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.plan import CyclePlan, PlanInput
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.store import tasks_from_table
from dormouse_core.tasks.task import Split

Put = Callable[..., Artifact]


class Line:
    """One line of evolution about to start its second cycle."""

    def __init__(self, config: RunConfig, store: Store, checkpoint: Put, record: Put, memory: Put) -> None:
        self.config, self.store = config, store
        self.sft = checkpoint(1)
        base = Parent(role="checkpoint", kind=self.sft.kind, identity=self.sft.identity)
        self.promotion = record(Promotion(cycle="main.c0000", promoted=False, checkpoint=base, reason="none"), Kind.PROMOTION)
        known = {"sum_of_terms/d0": (40.0, 40.0), "sum_of_terms/d1": (4.0, 8.0), "affine_function/d1": (8.0, 8.0)}
        cells = [c.model_copy(update={"passes": known[c.name][0], "trials": known[c.name][1], "tried": int(known[c.name][1])})
                 if c.name in known else c for c in suite_cells(config.loop.suite)]
        self.curriculum = record(Curriculum(cycle="main.c0000", cells=tuple(cells), bands={}), Kind.CURRICULUM)
        self.failed = [draw("sum_of_terms", 2, Split.TRAIN, i, "1") for i in range(3)]
        self.memory = memory(self.failed)
        self.review = record(StrategyReview(cycle="main.c0000", lost=True, finding="-1.0 points", weakest="code", moves=(
            Move(cell="affine_function/d2", factor=2.0, cause="surely worse: -4.0 points"),)), Kind.STRATEGY_REVIEW)

    def plan(self, *on: str, run_id: str = "", origins: tuple[PlanInput, ...] = ()) -> Artifact:
        """The plan with only the mechanisms named switched on."""
        curriculum = self.config.curriculum.model_copy(update={
            "enabled": "curriculum" in on, "use_failure_memory": "memory" in on, "failure_share": 0.5})
        config = self.config.model_copy(update={"curriculum": curriculum})
        return planning.run(config, self.sft, self.promotion, self.curriculum, self.memory, self.review if "review" in on else None,
                            cycle="main.c0001", store=self.store, ledger=Ledger(), run_id=run_id, origins=origins)

    def read(self, artifact: Artifact) -> tuple[CyclePlan, list[str]]:
        """The plan, and the cells of the tasks it drew."""
        start = planning.start_of(artifact, self.store)
        return start.plan, [t.id for t in tasks_from_table(self.store.read_table(start.tasks))]


@pytest.fixture
def line(config: RunConfig, store: Store, checkpoint: Put, record: Put, memory: Put) -> Line:
    return Line(config, store, checkpoint, record, memory)


@pytest.mark.parametrize(("mechanism", "cause", "cell"), [
    ("curriculum", "by curriculum: mastered", "sum_of_terms/d0"),
    ("memory", "by failure memory: 3 unsolved tasks, 3 of them fail by exact.number", "sum_of_terms/d2"),
    ("review", "by strategy review: surely worse: -4.0 points", "affine_function/d2")])
def test_each_mechanism_alone_changes_the_plan_and_the_tasks_drawn_and_names_its_cause(line: Line, mechanism: str, cause: str,
                                                                                      cell: str) -> None:
    (bare, bare_tasks), (plan, tasks) = line.read(line.plan()), line.read(line.plan(mechanism))
    assert any(c.startswith(f"{cell}: ") and cause in c for c in plan.causes), plan.causes
    assert not any(" by " in c for c in bare.causes)
    weights = {c.name: c.weight for c in bare.cells}
    moved = {c.name: c for c in plan.cells}
    assert abs(moved[cell].weight - weights[cell]) > 0.02
    assert cause in moved[cell].cause
    assert sum(c.weight for c in plan.cells) == pytest.approx(1.0)
    assert tasks != bare_tasks


def test_a_mechanism_that_is_off_says_so(line: Line) -> None:
    plan, _ = line.read(line.plan())
    assert plan.causes[0].startswith("curriculum off")
    assert plan.causes[1].startswith("failure memory off")


def test_failed_tasks_are_drawn_again(line: Line) -> None:
    plan, tasks = line.read(line.plan("memory"))
    assert set(plan.retries) == {t.id for t in line.failed}
    assert set(plan.retries) & set(tasks)


def test_rl_goes_on_from_the_source_that_drew_the_plan(line: Line) -> None:
    artifact = line.plan("memory", "curriculum")
    config = line.config.model_copy(update={"curriculum": line.config.curriculum.model_copy(update={"failure_share": 0.5})})
    source = planning.source_of(config, artifact, line.store)
    _, tasks = line.read(artifact)
    assert [t.id for t in sorted(source.draw(0, 10), key=lambda t: t.id)] == sorted(tasks)
    assert [t.id for t in source.draw(1, 10)] != [t.id for t in source.draw(0, 10)]


def test_a_plan_is_the_same_whoever_ran_it(line: Line) -> None:
    known = Parent(role="sft", kind=line.sft.kind, identity=line.sft.identity)
    first = line.plan("curriculum", run_id="a")
    second = line.plan("curriculum", run_id="b", origins=(PlanInput(artifact=known, run_id="b"),))
    assert first.identity == second.identity


def test_the_first_cycle_starts_from_the_sft_base(line: Line) -> None:
    plan = planning.run(line.config, line.sft, cycle="main.c0000", store=line.store, ledger=Ledger())
    start = planning.start_of(plan, line.store)
    assert start.base.identity == start.sft.identity == line.sft.identity
    assert start.promotion is None


def test_a_cycle_without_its_predecessor_is_refused(line: Line) -> None:
    with pytest.raises(DormouseError, match="c0000 has no promotion"):
        planning.run(line.config, line.sft, cycle="main.c0001", store=line.store, ledger=Ledger())
    with pytest.raises(DormouseError, match="was given the promotion of"):
        planning.run(line.config, line.sft, line.promotion, cycle="main.c0002", store=line.store, ledger=Ledger())
    with pytest.raises(DormouseError, match="no cycle"):
        planning.run(line.config, line.sft, cycle="zero", store=line.store, ledger=Ledger())
