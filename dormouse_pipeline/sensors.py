"""`start_next_cycle`: when a line's `promoted_checkpoint` lands, add the next cycle and queue its run, until the budget is spent.

A plain sensor that compares state, not an asset sensor: it survives being off for a while, and several lines at once. While
`dormouse loop` drives the store it leaves the lines alone.
"""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES

from dormouse_core.config.run import RunConfig
from dormouse_pipeline import lineage
from dormouse_pipeline.jobs import CYCLES_TAG, DRIVER_TAG, evolve_job
from dormouse_pipeline.locking import holder_of
from dormouse_pipeline.partitions import CycleKey, cycles

QUEUED_OR_RUNNING = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *IN_PROGRESS_RUN_STATUSES]


def last_cycles(instance: dg.DagsterInstance) -> dict[str, CycleKey]:
    """The highest cycle of each line."""
    last: dict[str, CycleKey] = {}
    for name in instance.get_dynamic_partitions(str(cycles.name)):
        key = CycleKey.parse(name)
        if key.line not in last or key.number > last[key.line].number:
            last[key.line] = key
    return last


def next_cycle(instance: dg.DagsterInstance, last: CycleKey) -> dg.RunRequest | str:
    """The run that continues a line whose highest cycle is `last`, or why there is none."""
    promoted = lineage.latest(instance, "promoted_checkpoint", str(last))
    if promoted is None:
        return f"{last} has no promoted_checkpoint yet"
    run = instance.get_run_by_id(promoted.run_id)
    plan = lineage.latest(instance, "cycle_plan", str(last))
    if run is None or plan is None or plan.config is None:
        return f"the run or the plan of {last} is gone"
    budget = int(run.tags.get(CYCLES_TAG) or RunConfig.model_validate(plan.config).loop.cycles)
    if last.number + 1 >= budget:
        return f"line {last.line} has run its {budget} cycles"
    tags = {CYCLES_TAG: str(budget), DRIVER_TAG: "sensor", "dormouse/parent_run": promoted.run_id}
    return dg.RunRequest(run_key=f"{last.next}-{promoted.data_version[:16]}", partition_key=str(last.next),
                         run_config={"resources": run.run_config.get("resources", {})}, tags=tags)


def _requests(instance: dg.DagsterInstance) -> Iterator[dg.RunRequest | str]:
    busy = {run.tags.get("dagster/partition") for run in instance.get_runs(dg.RunsFilter(statuses=QUEUED_OR_RUNNING))}
    for last in last_cycles(instance).values():
        yield f"{last} is queued or running" if str(last) in busy else next_cycle(instance, last)


def start_next_cycle(store: Path) -> dg.SensorDefinition:
    """The sensor over the lines of one store."""

    @dg.sensor(name="start_next_cycle", job=evolve_job, minimum_interval_seconds=15,
               description="Starts a line's next cycle when its promoted_checkpoint has landed, up to its number of cycles.")
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        holder = holder_of(store)
        if holder is not None:
            return dg.SkipReason(f"the store is being written by {holder}")
        found = list(_requests(context.instance))
        runs = [request for request in found if isinstance(request, dg.RunRequest)]
        if not runs:
            return dg.SkipReason("; ".join(str(reason) for reason in found) or "no cycle exists yet: run evolve_cycle for main.c0000")
        return dg.SensorResult(run_requests=runs,
                               dynamic_partitions_requests=[cycles.build_add_request([str(run.partition_key) for run in runs])])

    return sensor
