"""The Dagster spine on two small nodes of its own: what counts, what is refused, what is recorded."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError
from dormouse_pipeline import lineage
from dormouse_pipeline.checks import Edge, Outcome
from dormouse_pipeline.driver import close_broken_runs
from dormouse_pipeline.instance import Project
from dormouse_pipeline.io_manager import store_io_manager
from dormouse_pipeline.jobs import DRIVER_TAG
from dormouse_pipeline.locking import hold_store, holder_of
from dormouse_pipeline.partitions import CycleKey, cycles
from dormouse_pipeline.resources import Settings, workshop
from dormouse_pipeline.stage_runner import loop_asset, run_stage

KEY = "main.c0000"


class Note(Record):
    text: str


class Switch:
    """What the nodes below do next."""

    text = "one"
    passes = True
    breaks = False


def _write(config: RunConfig, *inputs: Artifact, store: Any, ledger: Any, run_id: str, stage: str) -> Artifact:
    ledger.count("notes")
    if stage == "reader" and Switch.breaks:
        raise DormouseError("the reader cannot read this. Write it anew.")
    parents = tuple(Parent(role="plan", kind=a.kind, identity=a.identity) for a in inputs)
    provenance = Provenance(kind=Kind.EVAL_REPORT, stage=stage, parents=parents,
                            config_sha256=config.sha256(), code_version="0", seed=config.runtime.seed, counters=ledger.counters(),
                            run_id=run_id)
    return store.put_record(Note(text=Switch.text), provenance)


GATE = Edge("gate", "Fails on demand.", lambda made: Outcome(Switch.passes, f"{made.counter('notes')} notes", {}))


@loop_asset(kinds={"json"}, checks=[GATE])
def cycle_plan(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Artifact]:
    """Writes a note."""
    return run_stage(context, _write, stage="cycle_plan")


@loop_asset(kinds={"json"})
def reader(context: dg.AssetExecutionContext, cycle_plan: Artifact) -> dg.MaterializeResult[Artifact]:
    """Reads it."""
    return run_stage(context, _write, cycle_plan, stage="reader")


@pytest.fixture(autouse=True)
def _reset() -> None:
    Switch.text, Switch.passes, Switch.breaks = "one", True, False


def _run(project: Project, instance: dg.DagsterInstance, *names: str, tags: dict[str, str] | None = None) -> dg.ExecuteInProcessResult:
    instance.add_dynamic_partitions(str(cycles.name), [KEY])
    nodes: list[Any] = [cycle_plan, reader]
    job = dg.define_asset_job("job", selection=["cycle_plan", "reader"], executor_def=dg.in_process_executor)
    defs = dg.Definitions(assets=nodes, jobs=[job], resources={
        "settings": Settings(preset="tiny"), "workshop": workshop(project), "store_io": store_io_manager})
    selection = [dg.AssetKey(name) for name in names] if names else None
    return defs.resolve_job_def("job").execute_in_process(
        instance=instance, partition_key=KEY, asset_selection=selection, raise_on_error=False, tags=tags)


def _failures(result: dg.ExecuteInProcessResult) -> str:
    return " ".join(str(e.step_failure_data.user_failure_data.description) for e in result.all_events
                    if e.is_step_failure and e.step_failure_data.user_failure_data)


def test_a_materialisation_carries_identity_file_parents_and_counters(project: Project, instance: dg.DagsterInstance) -> None:
    assert _run(project, instance).success
    plan, read = (lineage.latest(instance, name, KEY) for name in ("cycle_plan", "reader"))
    assert plan and read and read.data_version == read.artifact.identity
    assert read.artifact.provenance.parents == (Parent(role="plan", kind=Kind.EVAL_REPORT, identity=plan.artifact.identity),)
    assert plan.config == RunConfig.model_validate(plan.config).model_dump(mode="json")
    shown = instance.fetch_materializations(dg.AssetKey("reader"), limit=1).records[0].asset_materialization
    assert shown and {"identity", "path", "parents", "counters", "seconds", "file_sha256"} <= set(shown.metadata)
    assert Path(str(shown.metadata["path"].value)).exists()


def test_a_changed_file_is_refused_by_the_next_run_and_not_retried(project: Project, instance: dg.DagsterInstance) -> None:
    assert _run(project, instance).success
    plan = lineage.latest(instance, "cycle_plan", KEY)
    assert plan
    path = project.store / plan.artifact.path
    path.write_text(path.read_text().replace("one", "two"))
    result = _run(project, instance, "reader")
    assert not result.success and "corrupt" in _failures(result)


def test_a_missing_input_is_named(project: Project, instance: dg.DagsterInstance) -> None:
    result = _run(project, instance, "reader")
    assert not result.success and f"cycle_plan of {KEY} does not exist yet" in _failures(result)


def test_a_failed_blocking_check_stops_what_stands_downstream_in_the_same_run_and_in_a_later_one(
        project: Project, instance: dg.DagsterInstance) -> None:
    Switch.passes = False
    first = _run(project, instance)
    assert not first.success
    assert [e.asset_key.to_user_string() for e in first.get_asset_materialization_events() if e.asset_key] == ["cycle_plan"]
    assert lineage.latest(instance, "cycle_plan", KEY) is None, "an artifact that failed its check counts for nobody"
    assert lineage.latest(instance, "cycle_plan", KEY, resuming=first.run_id) is None
    later = _run(project, instance, "reader")
    assert not later.success and "only in a run that failed" in _failures(later)


def test_a_resumed_run_takes_over_what_the_broken_one_finished(project: Project, instance: dg.DagsterInstance) -> None:
    Switch.breaks = True
    broken = _run(project, instance)
    assert not broken.success and "Write it anew" in _failures(broken)
    assert lineage.latest(instance, "cycle_plan", KEY) is None
    assert lineage.latest(instance, "cycle_plan", KEY, resuming=broken.run_id)
    Switch.breaks = False
    assert _run(project, instance, "reader", tags={"dagster/parent_run_id": broken.run_id}).success
    plan = lineage.latest(instance, "cycle_plan", KEY)
    assert plan and plan.run_id == broken.run_id


def test_a_run_left_in_progress_by_a_dead_process_is_closed_as_failed(project: Project, instance: dg.DagsterInstance) -> None:
    result = _run(project, instance, tags={DRIVER_TAG: "loop"})
    stale = instance.create_run_for_job(_job(project), tags={DRIVER_TAG: "loop"}, status=dg.DagsterRunStatus.STARTED)
    close_broken_runs(instance)
    ended = instance.get_run_by_id(stale.run_id)
    assert ended and ended.status is dg.DagsterRunStatus.FAILURE
    kept = instance.get_run_by_id(result.run_id)
    assert kept and kept.status is dg.DagsterRunStatus.SUCCESS


def _job(project: Project) -> Any:
    defs = dg.Definitions(assets=[cycle_plan, reader], resources={
        "settings": Settings(preset="tiny"), "workshop": workshop(project), "store_io": store_io_manager})
    return defs.resolve_implicit_global_asset_job_def()


def test_the_store_lock_is_free_to_re_enter_in_one_process_only(project: Project) -> None:
    with hold_store(project.store), hold_store(project.store):
        assert holder_of(project.store) == "this process"
    assert holder_of(project.store) is None


def test_an_earlier_artifact_of_the_same_content_is_carried_over_not_written_twice(project: Project, instance: dg.DagsterInstance) -> None:
    first, second = _run(project, instance), _run(project, instance)
    made = lineage.runs_of(instance, "reader", lineage.latest(instance, "reader", KEY).artifact.identity)  # type: ignore[union-attr]
    assert [m.run_id for m in made] == [first.run_id, second.run_id]
    assert made[1].artifact.provenance.run_id == first.run_id
    assert len(list((project.store / "eval_report").iterdir())) == 2


@pytest.mark.parametrize("key", ["main.c0", "main.c00000", "c0000", "a b.c0000", "main-c0000", ""])
def test_a_partition_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(DormouseError, match=r"keys are LINE\.cNNNN"):
        CycleKey.parse(key)


def test_cycle_keys_sort_as_their_numbers() -> None:
    keys = [str(CycleKey("main", n)) for n in (0, 9, 10, 99, 100, 9999)]
    assert keys == sorted(keys) and [CycleKey.parse(k).number for k in keys] == [0, 9, 10, 99, 100, 9999]
    assert CycleKey("main", 0).previous is None and CycleKey("main", 1).previous == CycleKey("main", 0)


