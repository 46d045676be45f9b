"""Whole cycles through the real assets: what they leave, what the next cycle takes over, and what is refused."""

import json

import dagster as dg
import pytest

from dormouse_core.artifacts.lineage import walk
from dormouse_core.artifacts.provenance import Kind
from dormouse_core.artifacts.store import Store
from dormouse_core.evolution.plan import start_of
from dormouse_core.evolution.promotion import Promotion
from dormouse_core.ledger import DormouseError
from dormouse_pipeline import lineage
from dormouse_pipeline.definitions import build_defs
from dormouse_pipeline.driver import launch_config
from dormouse_pipeline.instance import Project, project_instance
from dormouse_pipeline.jobs import BASE, CYCLE, CYCLES_TAG
from dormouse_pipeline.locking import hold_store
from dormouse_pipeline.partitions import CycleKey, cycles
from dormouse_pipeline.resources import Settings
from dormouse_pipeline.sensors import start_next_cycle
from tests.pipeline.conftest import SETS, Line, drive

KEYS = ("main.c0000", "main.c0001")
SETTINGS = Settings(preset="tiny", sets=[*SETS, "loop.line=main"])


def _run(project: Project, instance: dg.DagsterInstance, job: str, key: str | None = None, *names: str,
         settings: Settings = SETTINGS) -> dg.ExecuteInProcessResult:
    """A run as the UI launches it: the job, the launch configuration, no driver."""
    if key:
        instance.add_dynamic_partitions(str(cycles.name), [key])
    return build_defs(project).resolve_job_def(job).execute_in_process(
        instance=instance, partition_key=key, asset_selection=[dg.AssetKey(n) for n in names] or None, raise_on_error=False,
        run_config=launch_config(settings))


def _said(result: dg.ExecuteInProcessResult) -> str:
    return " ".join(str(e.step_failure_data.user_failure_data.description) for e in result.all_events
                    if e.is_step_failure and e.step_failure_data.user_failure_data)


def _identities(instance: dg.DagsterInstance, key: str | None, assets: tuple[str, ...]) -> dict[str, str]:
    made = {asset: lineage.latest(instance, asset, key) for asset in assets}
    return {asset: m.artifact.identity for asset, m in made.items() if m}


def test_every_asset_of_every_cycle_counts_and_its_data_version_is_its_identity(line: Line) -> None:
    with project_instance(line.project) as instance:
        for key, assets in ((None, BASE), *((key, CYCLE) for key in KEYS)):
            for asset in assets:
                made = lineage.latest(instance, asset, key)
                assert made, f"{asset} of {key}"
                assert made.data_version == made.artifact.identity
                assert (line.project.store / made.artifact.path).exists()
    assert [run.partition for run in line.runs] == [None, *KEYS] and all(run.run_id for run in line.runs)


def test_what_stages_and_checks_took_is_not_called_dagsters_own_cost(line: Line) -> None:
    with project_instance(line.project) as instance:
        plans = instance.fetch_materializations(dg.AssetKey("cycle_plan"), limit=2).records[::-1]
        for run, key, plan in zip(line.runs[1:], KEYS, plans, strict=True):
            stored = [lineage.latest(instance, asset, key) for asset in CYCLE]
            assert all(m is not None and run.stages[asset] == pytest.approx(m.seconds) for asset, m in zip(CYCLE, stored, strict=True))
            assert plan.asset_materialization is not None
            # a plan's checks: the verifier on answers whose truth is known, its cells before the gate
            tried = plan.asset_materialization.metadata[lineage.CHECK_SECONDS].value
            assert isinstance(tried, float) and 0 < tried <= run.checks < run.wall
            assert run.overhead == pytest.approx(run.wall - sum(run.stages.values()) - run.checks)


def test_a_plan_takes_over_what_the_cycle_before_left_and_says_from_which_run(line: Line) -> None:
    store = Store(line.project.store)
    with project_instance(line.project) as instance:
        before = {asset: lineage.latest(instance, asset, KEYS[0]) for asset in ("promoted_checkpoint", "curriculum", "failure_memory")}
        made = lineage.latest(instance, "cycle_plan", KEYS[1])
        assert made and all(before.values())
        of_cycle = dg.AssetRecordsFilter(asset_key=dg.AssetKey("cycle_plan"), asset_partitions=[KEYS[1]])
        event = instance.fetch_materializations(of_cycle, limit=1).records[0].asset_materialization
    start = start_of(made.artifact, store)
    promoted = before["promoted_checkpoint"]
    assert promoted and event
    assert start.promotion == promoted.artifact
    assert start.base.identity == store.read_record(promoted.artifact, Promotion).checkpoint.identity
    origin = {o.artifact.role: o for o in start.plan.origins}["promotion"]
    assert (origin.run_id, origin.storage_id) == (promoted.run_id, promoted.storage_id)
    assert event.metadata["promotion_run"].value == promoted.run_id
    assert event.metadata["promotion_storage_id"].value == promoted.storage_id
    assert event.metadata["promotion_data_version"].value == promoted.data_version


def test_lineage_leads_from_the_last_candidate_to_the_pretrained_base_by_files_alone(line: Line) -> None:
    store = Store(line.project.store)
    with project_instance(line.project) as instance:
        made = lineage.latest(instance, "rl_checkpoint", KEYS[1])
        pretrained = lineage.latest(instance, "pretrained_checkpoint", None)
    assert made and pretrained
    tree = walk(store, made.artifact)
    assert tree.complete
    kinds = {a.kind for a in tree.found.values()}
    assert {Kind.CHECKPOINT, Kind.VERDICTS, Kind.ROLLOUTS, Kind.TASKS} <= kinds
    assert pretrained.artifact.identity in tree.found
    assert {a.identity for a in tree.origins if a.kind is Kind.CHECKPOINT} == {pretrained.artifact.identity}


def test_a_finished_line_is_skipped_whole(line: Line) -> None:
    again = drive(line.project, 2)
    assert [run.partition for run in again] == [None, *KEYS][-len(again):]
    assert not any(run.run_id for run in again) and all(len(run.skipped) in (len(BASE), len(CYCLE)) for run in again)


def test_a_run_of_the_ui_leaves_the_same_artifacts_as_the_loop(line: Line, project: Project, instance: dg.DagsterInstance) -> None:
    assert _run(project, instance, "base").success
    assert _run(project, instance, "evolve_cycle", KEYS[0]).success
    with project_instance(line.project) as other:
        for key, assets in ((None, BASE), (KEYS[0], CYCLE)):
            assert _identities(instance, key, assets) == _identities(other, key, assets)
    store, theirs = Store(project.store), Store(line.project.store)
    for asset in ("rl_checkpoint", "promoted_checkpoint"):
        made = lineage.latest(instance, asset, KEYS[0])
        assert made and set(walk(store, made.artifact).found) == set(walk(theirs, made.artifact).found)


def test_a_cycle_out_of_order_is_refused_by_name(line: Line) -> None:
    with project_instance(line.project) as instance:
        result = _run(line.project, instance, "evolve_cycle", "main.c0003")
        assert not result.success
        assert "main.c0003 starts from what main.c0002 left, and main.c0002 has no promoted_checkpoint" in _said(result)
        assert lineage.latest(instance, "cycle_plan", "main.c0003") is None
        instance.delete_dynamic_partition(str(cycles.name), "main.c0003")


def test_another_configuration_on_a_running_line_is_refused_with_the_difference(line: Line) -> None:
    with pytest.raises(DormouseError, match=r"rl\.clip\s+0\.2\s+-> 0\.3(.|\n)*--line"):
        drive(line.project, 3, ["rl.clip=0.3"])
    with project_instance(line.project) as instance:
        changed = Settings(preset="tiny", sets=[*SETS, "rl.clip=0.3"])
        result = _run(line.project, instance, "evolve_cycle", "main.c0002", settings=changed)
        assert not result.success and "rl.clip" in _said(result)
        instance.delete_dynamic_partition(str(cycles.name), "main.c0002")


def test_rollouts_that_were_changed_on_disk_are_not_judged(line: Line) -> None:
    with project_instance(line.project) as instance:
        made = lineage.latest(instance, "rollouts", KEYS[1])
        assert made
        path = line.project.store / made.artifact.path
        kept = path.read_bytes()
        try:
            path.write_bytes(kept.replace(b'"round": 0', b'"round": 7'))
            assert path.read_bytes() != kept
            result = _run(line.project, instance, "evolve_cycle", KEYS[1], "verified_trajectories")
            assert not result.success and "corrupt" in _said(result)
        finally:
            path.write_bytes(kept)


def test_the_sensor_starts_the_next_cycle_and_stops_at_the_number_asked_for(line: Line) -> None:
    sensor = start_next_cycle(line.project.store)
    with project_instance(line.project) as instance:
        ended = sensor(dg.build_sensor_context(instance))
        assert isinstance(ended, dg.SkipReason) and "has run its 2 cycles" in str(ended.skip_message)
        promoted = lineage.latest(instance, "promoted_checkpoint", KEYS[1])
        assert promoted
        instance.add_run_tags(promoted.run_id, {CYCLES_TAG: "3"})
        try:
            result = sensor(dg.build_sensor_context(instance))
            assert isinstance(result, dg.SensorResult) and result.run_requests and result.dynamic_partitions_requests
            (request,) = result.run_requests
            assert request.partition_key == "main.c0002" and request.run_key == f"main.c0002-{promoted.data_version[:16]}"
            assert result.dynamic_partitions_requests[0].partition_keys == ["main.c0002"]
            run = instance.get_run_by_id(promoted.run_id)
            assert run and request.run_config["resources"] == run.run_config["resources"]
            with hold_store(line.project.store):
                held = sensor(dg.build_sensor_context(instance))
            assert isinstance(held, dg.SkipReason) and "being written" in str(held.skip_message)
        finally:
            instance.add_run_tags(promoted.run_id, {CYCLES_TAG: "2"})


def test_the_sensor_does_not_start_a_cycle_twice(line: Line) -> None:
    sensor = start_next_cycle(line.project.store)
    with project_instance(line.project) as instance:
        instance.add_dynamic_partitions(str(cycles.name), ["main.c0002"])
        try:
            result = sensor(dg.build_sensor_context(instance))
            assert isinstance(result, dg.SkipReason) and "main.c0002 has no promoted_checkpoint yet" in str(result.skip_message)
        finally:
            instance.delete_dynamic_partition(str(cycles.name), "main.c0002")


def test_the_checks_stand_at_the_edges(line: Line) -> None:
    graph = build_defs(line.project).resolve_asset_graph()
    found = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys}
    assert {("verified_trajectories", "canaries"), ("verified_trajectories", "no_verdict_share"), ("rl_checkpoint", "log_prob_parity"),
            ("rl_checkpoint", "dead_group_share"), ("collapse_report", "collapse_regime"), ("rl_checkpoint", "no_verdict_share")} <= found
    with project_instance(line.project) as instance:
        for asset, name in sorted(found):
            history = instance.event_log_storage.get_asset_check_execution_history(
                dg.AssetCheckKey(dg.AssetKey(asset), name), limit=1)
            assert history, f"{name} of {asset} never ran"


def test_no_metadata_number_is_missing_from_a_materialisation(line: Line) -> None:
    expected: dict[str, set[str]] = {
        "rollouts": {"trajectories", "new_bytes_per_second", "sample"},
        "verified_trajectories": {"classes", "layers", "verdicts_per_second"},
        "rl_checkpoint": {"rounds", "rounds_table", "groups_dead"}, "holdout_verdict": {"promote", "difference_low", "changes"},
        "cycle_plan": {"shares", "causes", "starts_from"}, "promoted_checkpoint": {"promoted", "checkpoint_path", "lineage"}}
    with project_instance(line.project) as instance:
        for asset, names in expected.items():
            record = instance.fetch_materializations(dg.AssetKey(asset), limit=1).records[0].asset_materialization
            assert record and names | {"parents", "identity", "seconds", "path"} <= set(record.metadata), asset


def test_loading_the_definitions_imports_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, dormouse_pipeline.definitions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_launch_settings_without_a_preset_follow_the_line(line: Line) -> None:
    with project_instance(line.project) as instance:
        plan = lineage.latest(instance, "cycle_plan", KEYS[1])
        assert plan and plan.config
        from dormouse_core.config.run import RunConfig
        from dormouse_pipeline.carried import carried_into

        before = carried_into(instance, CycleKey("main", 1))
        assert before.plan and before.plan.config
        own = RunConfig.model_validate(before.plan.config)
        assert Settings().config(own) == own and Settings().config().preset == "nano"
        assert json.loads(own.canonical()) == plan.config


