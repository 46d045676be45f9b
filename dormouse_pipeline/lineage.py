"""Reading the event log: which materialisation of an asset counts, and which runs made an identity.

A materialisation counts when its run ended in SUCCESS, or when its own step succeeded and a later run resumed the one that
broke off (`dagster/parent_run_id`, what "re-execute from failure" and `dormouse loop` both set) and counts itself. A killed
run's orphan therefore never becomes anyone's parent. Dagster's `input_event_pointer` is not used: for a partitioned input it
names the newest event of any partition.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg
from dagster._core.storage.tags import PARENT_RUN_ID_TAG

from dormouse_core.artifacts.provenance import Artifact

ARTIFACT = "artifact"
CONFIG = "config"
SECONDS, CHECK_SECONDS = "seconds", "check_seconds"


@dataclass(frozen=True)
class Materialised:
    """One materialisation that counts."""

    asset: str
    partition: str | None
    artifact: Artifact
    run_id: str
    storage_id: int
    data_version: str
    seconds: float
    config: dict[str, object] | None


def _value(metadata: Mapping[str, object], name: str) -> object:
    entry = metadata.get(name)
    return getattr(entry, "value", entry)


def read(record: dg.EventLogRecord) -> Materialised | None:
    """The record as dormouse wrote it, or None when it is not one of ours (e.g. reported by hand in the UI)."""
    event = record.event_log_entry.asset_materialization
    if event is None:
        return None
    metadata = dict(event.metadata)
    payload = _value(metadata, ARTIFACT)
    if payload is None:
        return None
    config = _value(metadata, CONFIG)
    seconds = _value(metadata, SECONDS)
    return Materialised(
        asset=event.asset_key.to_user_string(), partition=event.partition, artifact=Artifact.model_validate(payload),
        run_id=record.run_id, storage_id=record.storage_id, data_version=(event.tags or {}).get("dagster/data_version", ""),
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0, config=config if isinstance(config, dict) else None)


def continuations(instance: dg.DagsterInstance, run_id: str) -> list[dg.DagsterRun]:
    """The run and every run that resumed it, directly or through another."""
    first = instance.get_run_by_id(run_id)
    found: dict[str, dg.DagsterRun] = {}
    pending = [first] if first else []
    while pending:
        run = pending.pop()
        if run.run_id not in found:
            found[run.run_id] = run
            pending += instance.get_runs(dg.RunsFilter(tags={PARENT_RUN_ID_TAG: run.run_id}))
    return list(found.values())


def counts(instance: dg.DagsterInstance, run_id: str, step: str, current: str = "", resuming: str = "") -> bool:
    """Whether what `step` of `run_id` materialised may be used: by anyone; by `current`, a run in progress; or by a run about to
    resume `resuming`."""
    if run_id == current:
        return True
    runs = continuations(instance, run_id)
    if runs and runs[0].status is dg.DagsterRunStatus.SUCCESS:
        return True
    if not any(run.status is dg.DagsterRunStatus.SUCCESS or run.run_id in (current, resuming) for run in runs):
        return False
    stats = instance.get_run_step_stats(run_id, step_keys=[step])
    return any(stat.status is not None and stat.status.value == "SUCCESS" for stat in stats)


def history(instance: dg.DagsterInstance, asset: str, partition: str | None, limit: int = 1000) -> list[tuple[Materialised, str]]:
    """Materialisations of one asset and partition, newest first, each with the step that made it."""
    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=None if partition is None else [partition])
    found = []
    for record in instance.fetch_materializations(wanted, limit=limit).records:
        made = read(record)
        if made is not None:
            event = record.event_log_entry.dagster_event
            found.append((made, (event.step_key if event else None) or asset))
    return found


def latest(instance: dg.DagsterInstance, asset: str, partition: str | None, current: str = "",
           resuming: str = "") -> Materialised | None:
    """The newest materialisation that counts, or None."""
    return next((made for made, step in history(instance, asset, partition)
                 if counts(instance, made.run_id, step, current, resuming)), None)


def runs_of(instance: dg.DagsterInstance, asset: str, identity: str) -> list[Materialised]:
    """Every counted materialisation of `asset` with this identity, oldest first: the first is where it was made, later ones
    carried it over."""
    return [made for made, step in reversed(history(instance, asset, None))
            if made.artifact.identity == identity and counts(instance, made.run_id, step)]
