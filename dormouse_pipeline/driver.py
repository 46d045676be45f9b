"""`dormouse loop`: the same jobs the UI runs, one cycle after the other in this process, skipping what is done.

It holds the store's lock from its first run to its last. A run that was killed is closed as failed and resumed: the assets it
finished count, the one it was in goes on from its own journal.
Not here: what a cycle does (assets), and what is shown of it (cli).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import dagster as dg
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES
from dagster._core.storage.tags import PARENT_RUN_ID_TAG, ROOT_RUN_ID_TAG

from dormouse_core.artifacts.identity import config_content
from dormouse_core.config.drift import refuse_drift
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_pipeline import lineage
from dormouse_pipeline.carried import with_free_settings
from dormouse_pipeline.definitions import build_defs
from dormouse_pipeline.instance import Project, project_instance
from dormouse_pipeline.jobs import BASE, CYCLE, CYCLES_TAG, DRIVER_TAG
from dormouse_pipeline.locking import hold_store
from dormouse_pipeline.partitions import CycleKey, cycles
from dormouse_pipeline.resources import Crew, Settings

BASE_SECTIONS = {"pretrained_checkpoint": ("policy", "train", "runtime"), "sft_checkpoint": ("policy", "train", "sft", "runtime")}
"""What a base depends on: a change elsewhere does not make a new one."""


@dataclass
class CycleRun:
    """What one run of `dormouse loop` did for one partition (None: the base)."""

    partition: str | None
    run_id: str = ""
    wall: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds inside each stage function this run called."""
    checks: float = 0.0
    """Seconds inside the asset checks: the verifier tried on answers whose truth is known, the plan's cells before the gate."""
    skipped: tuple[str, ...] = ()

    @property
    def overhead(self) -> float:
        """Dagster's own cost: the run's wall minus the own time of stages and checks."""
        return max(0.0, self.wall - sum(self.stages.values()) - self.checks)


class RunFailed(DormouseError):
    """A run ended without success; `defect` holds the trace when no stage explained it."""

    def __init__(self, message: str, defect: str = "") -> None:
        super().__init__(message)
        self.defect = defect


@dataclass
class Driver:
    """Runs a line. `say` gets one line a run; `make_ledger(label, asset)` shows a stage's progress."""

    project: Project
    settings: Settings
    line: str
    cycles: int
    say: Callable[[str], None]
    make_ledger: Callable[[str, str], Ledger]
    crew: Crew
    runs: list[CycleRun] = field(default_factory=list)

    def run(self) -> list[CycleRun]:
        """Base and cycles up to the number asked for. Raises DormouseError when the store is in use, the configuration drifted or a
        stage failed; what was done before stays done."""
        with hold_store(self.project.store, "dormouse loop"), project_instance(self.project, in_foreground=True) as instance:
            load_stages()
            close_broken_runs(instance)
            config = self.settings.config()
            self._refuse_drift(instance, config)
            defs = build_defs(self.project, self.settings, lambda context: self.make_ledger(_label(context), _asset(context)), self._ended,
                              self.crew)
            if lineage.latest(instance, "cycle_plan", str(CycleKey(self.line, 0))) is None:
                self._execute(defs, instance, "base", None, self._owed_base(instance, config))
            for number in range(self.cycles):
                key = str(CycleKey(self.line, number))
                instance.add_dynamic_partitions(str(cycles.name), [key])
                resuming = last_run(instance, key)
                owed = owed_assets(defs, instance, key, resuming)
                self._execute(defs, instance, "evolve_cycle", key, owed, resuming if len(owed) < len(CYCLE) else "")
        return self.runs

    def _ended(self, context: dg.AssetExecutionContext, seconds: float, numbers: str) -> None:
        self.say(f"{_label(context)}  {_asset(context):<22}{seconds:6.1f} s  {numbers}".rstrip())

    def _refuse_drift(self, instance: dg.DagsterInstance, config: RunConfig) -> None:
        """The line's own plans say what it runs under; anything else needs a new line."""
        for number in reversed(range(self.cycles)):
            plan = lineage.latest(instance, "cycle_plan", str(CycleKey(self.line, number)))
            if plan is not None and plan.config is not None:
                stored = with_free_settings(RunConfig.model_validate(plan.config), config)
                refuse_drift(stored, config, f"line {self.line} ({plan.artifact.path})")
                return

    def _owed_base(self, instance: dg.DagsterInstance, config: RunConfig) -> list[str]:
        owed: list[str] = []
        for asset in BASE:
            made = lineage.latest(instance, asset, None)
            if owed or made is None or made.config is None or _differs(RunConfig.model_validate(made.config), config, BASE_SECTIONS[asset]):
                owed.append(asset)
        return owed

    def _refuse_lost(self, instance: dg.DagsterInstance, done: Sequence[str], partition: str | None, resuming: str) -> None:
        """What the event log counts as done must be in the store, or nothing can go on from it."""
        store, log = self.project.store, instance.root_directory
        for asset in done:
            made = lineage.latest(instance, asset, partition, resuming=resuming)
            if made is not None and not (store / made.artifact.path).exists():
                raise DormouseError(f"{store} no longer holds {asset} ({made.artifact.path}), which the event log in {log} counts as done. "
                                    f"Put it back; or begin anew with another --store, or with both folders gone.")

    def _execute(self, defs: dg.Definitions, instance: dg.DagsterInstance, job: str, partition: str | None, owed: Sequence[str],
                 resuming: str = "") -> None:
        done = CycleRun(partition, skipped=tuple(name for name in (BASE if partition is None else CYCLE) if name not in owed))
        self.runs.append(done)
        self._refuse_lost(instance, done.skipped, partition, resuming)
        if not owed:
            self.say(f"{partition or 'base'}: already complete")
            return
        if done.skipped and partition:
            self.say(f"{partition}: going on at {owed[0]} ({len(done.skipped)} of {len(CYCLE)} assets are done)")
        tags = {DRIVER_TAG: "loop", CYCLES_TAG: str(self.cycles)}
        if resuming:
            parent = instance.get_run_by_id(resuming)
            root = parent.root_run_id if parent and parent.root_run_id else resuming
            tags |= {PARENT_RUN_ID_TAG: resuming, ROOT_RUN_ID_TAG: root}
        started = time.perf_counter()
        result = defs.resolve_job_def(job).execute_in_process(
            instance=instance, partition_key=partition, asset_selection=[dg.AssetKey(name) for name in owed], tags=tags,
            run_config=launch_config(self.settings), raise_on_error=False)
        done.wall, done.run_id = time.perf_counter() - started, result.run_id
        for event in result.get_asset_materialization_events():
            shown = event.materialization.metadata
            seconds, checked = (getattr(shown.get(name), "value", None) for name in (lineage.SECONDS, lineage.CHECK_SECONDS))
            done.stages[event.materialization.asset_key.to_user_string()] = float(seconds or 0.0)
            done.checks += float(checked or 0.0)
        if interrupted(result):
            raise KeyboardInterrupt
        if not result.success:
            raise failure_of(result, partition)


def launch_config(settings: Settings, quiet: bool = True) -> dict[str, Any]:
    """The run configuration of these settings, as the launchpad would show it."""
    config: dict[str, Any] = {"resources": {"settings": {"config": {"preset": settings.preset, "sets": list(settings.sets)}}}}
    if quiet:
        config["loggers"] = {"console": {"config": {"log_level": "CRITICAL"}}}
    return config


def load_stages() -> None:
    """Import what the stages stand on (torch, above all) before the first run, not inside it."""
    for module in ("learning.pretrain", "learning.rl", "evaluation.holdout", "evolution.plan", "monitors.collapse"):
        import_module(f"dormouse_core.{module}")


def close_broken_runs(instance: dg.DagsterInstance) -> None:
    """Runs of an earlier `dormouse loop` that never ended: their process is gone, for this one holds the store's lock."""
    for run in instance.get_runs(dg.RunsFilter(tags={DRIVER_TAG: "loop"}, statuses=IN_PROGRESS_RUN_STATUSES)):
        instance.report_run_failed(run, "The process ended before the run did; `dormouse loop` resumes it.")


def last_run(instance: dg.DagsterInstance, partition: str) -> str:
    """The newest run of a partition that ended without success, "" when the newest one succeeded or there is none."""
    runs = instance.get_runs(dg.RunsFilter(tags={"dagster/partition": partition}), limit=1)
    return runs[0].run_id if runs and runs[0].status is not dg.DagsterRunStatus.SUCCESS else ""


def owed_assets(defs: dg.Definitions, instance: dg.DagsterInstance, partition: str, resuming: str) -> list[str]:
    """Assets of a cycle that are not done, in order: not materialised, or standing on one that is not."""
    graph = defs.resolve_asset_graph()
    owed: list[str] = []
    for asset in CYCLE:
        parents = {key.to_user_string() for key in graph.get(dg.AssetKey(asset)).parent_keys}
        if parents & set(owed) or lineage.latest(instance, asset, partition, resuming=resuming) is None:
            owed.append(asset)
    return owed


def interrupted(result: dg.ExecuteInProcessResult) -> bool:
    """Whether Ctrl-C ended the run: Dagster turns it into a step failure."""
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure and event.step_failure_data]
    names = {cause.cls_name for error in errors for cause in (error, error.cause if error else None) if cause}
    return bool(names & {"DagsterExecutionInterruptedError", "KeyboardInterrupt"})


def failure_of(result: dg.ExecuteInProcessResult, partition: str | None) -> RunFailed:
    """The first failed step, as an error for a person."""
    where = partition or "the base"
    for event in result.all_events:
        data = event.step_failure_data if event.is_step_failure else None
        if data is None:
            continue
        said = data.user_failure_data.description if data.user_failure_data else None
        if said:
            return RunFailed(f"{event.step_key} of {where} failed: {said}")
        error = data.error.cause or data.error if data.error else None
        first = error.message.strip().splitlines()[0] if error else "no reason was recorded"
        return RunFailed(f"{event.step_key} of {where} failed: {first}", defect=data.error.to_string() if data.error else "")
    return RunFailed(f"the run of {where} failed before its first stage; `dormouse ui` shows its log (run {result.run_id})")


def _label(context: dg.AssetExecutionContext) -> str:
    return context.partition_key if context.has_partition_key else "base"


def _asset(context: dg.AssetExecutionContext) -> str:
    return context.asset_key.to_user_string()


def _differs(one: RunConfig, other: RunConfig, sections: Sequence[str]) -> bool:
    a, b = config_content(one), config_content(other)
    return any(a[name] != b[name] for name in sections) or one.loop.suite != other.loop.suite
