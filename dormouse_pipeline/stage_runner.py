"""The one way an asset runs a stage: `loop_asset` declares the node, `run_stage` calls the stage function and says what it did.

Not here: any algorithm, path or format. Those are the stage's, the store's and the IO manager's business.
"""

import inspect
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import dagster as dg

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind
from dormouse_core.config.run import RunConfig
from dormouse_core.kernels.seen import report
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_pipeline import lineage
from dormouse_pipeline.carried import Carried, carried_into
from dormouse_pipeline.checks import Edge, Made
from dormouse_pipeline.facts import facts_of, headline
from dormouse_pipeline.metadata import describe
from dormouse_pipeline.partitions import CycleKey, cycles

if TYPE_CHECKING:
    from dormouse_core.evolution.plan import Start
    from dormouse_pipeline.resources import Settings

Stage = Callable[..., Artifact]
_EDGES: WeakKeyDictionary[dg.OpDefinition, tuple[Edge, ...]] = WeakKeyDictionary()
"""The checks `loop_asset` was given, by the node it made: two nodes of one name do not share them."""
ARTIFACT_TYPE = dg.PythonObjectDagsterType(Artifact, name="Artifact", description="A handle on a file in the store.")


def loop_asset(*, kinds: set[str], group: str = "evolve", checks: Sequence[Edge] = (), partitioned: bool = True,
               **options: Any) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """A node of the loop. Its docstring is its description in the UI; its code version is that of the library."""

    def declare(function: Callable[..., Any]) -> dg.AssetsDefinition:
        function.__annotations__.pop("return", None)  # with check specs Dagster reads MaterializeResult[T] as a second output
        made: dg.AssetsDefinition = dg.asset(
            group_name=group, kinds=kinds, io_manager_key="store_io", required_resource_keys={"workshop", "settings"},
            dagster_type=ARTIFACT_TYPE, partitions_def=cycles if partitioned else None, code_version=code_version()[:16],
            check_specs=[edge.spec(function.__name__) for edge in checks] or None, **options)(function)
        assert isinstance(made.op, dg.OpDefinition)  # one function is one op, never a graph
        _EDGES[made.op] = tuple(checks)
        return made

    return declare


def cycle_of(context: dg.AssetExecutionContext) -> CycleKey:
    return CycleKey.parse(context.partition_key)


def settled_config(context: dg.AssetExecutionContext) -> RunConfig:
    """The configuration this node runs under: the cycle's, frozen in its `cycle_plan`; before there is one, the launch settings. What the
    plan does not freeze is the limit at which training halts: a person decides that when the stage has stopped, by launching it again."""
    if context.has_partition_key and context.asset_key.to_user_string() != "cycle_plan":
        plan = _plan_record(context)
        if plan.config is None:
            raise dg.Failure(f"the cycle_plan of {context.partition_key} holds no configuration: materialise it again.",
                             allow_retries=False)
        frozen, settings = RunConfig.model_validate(plan.config), context.resources.settings
        try:
            decided = settings.config(frozen).honeypots.halt_above
        except DormouseError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        return frozen.model_copy(update={"honeypots": frozen.honeypots.model_copy(update={"halt_above": decided})})
    return launched_config(context)


def launched_config(context: dg.AssetExecutionContext) -> RunConfig:
    """The launch settings. For a cycle after the first, those of the cycle before, unless the launch names a preset: then both must
    agree. Raises dg.Failure with the field-by-field difference."""
    settings: Settings = context.resources.settings
    before = carried(context) if context.has_partition_key else Carried()
    try:
        return before.config(settings.config(RunConfig.model_validate(before.plan.config) if before.plan else None))
    except DormouseError as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def plan_of(context: dg.AssetExecutionContext) -> "Start":
    """What this cycle starts from. Read from the event log, so that a node needs no edge to the plan to look something up in it."""
    from dormouse_core.evolution.plan import start_of

    return start_of(_plan_record(context).artifact, context.resources.workshop.store)


def carried(context: dg.AssetExecutionContext) -> Carried:
    """What this cycle takes over from the one before. Raises dg.Failure naming what is missing."""
    try:
        return carried_into(context.instance, cycle_of(context))
    except DormouseError as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def _plan_record(context: dg.AssetExecutionContext) -> lineage.Materialised:
    made = lineage.latest(context.instance, "cycle_plan", context.partition_key, current=context.run.run_id)
    if made is None:
        raise dg.Failure(f"{context.partition_key} has no cycle_plan: materialise it first.", allow_retries=False)
    return made


def parent_of(context: dg.AssetExecutionContext, artifact: Artifact, role: str) -> Artifact:
    """The artifact that was `role` to this one, found in the store. Raises dg.Failure when the file is gone."""
    parent = next((p for p in artifact.provenance.parents if p.role == role), None)
    if parent is None:
        raise dg.Failure(f"{artifact.path} names no parent in the role {role!r}", allow_retries=False)
    return stored(context, parent.kind, parent.identity, f"the {role} of {artifact.path}")


def stored(context: dg.AssetExecutionContext, kind: Kind, identity: str, what: str) -> Artifact:
    """The artifact with this identity. Raises dg.Failure when the store does not hold it."""
    found: Artifact | None = context.resources.workshop.store.find(kind, identity)
    if found is None:
        raise dg.Failure(f"{what} ({kind} {identity[:16]}) is not in the store: restore it, or run the stage that made it again.",
                         allow_retries=False)
    return found


def run_stage(context: dg.AssetExecutionContext, stage: Stage, /, *inputs: Artifact | None, extra: dict[str, Any] | None = None,
              **keywords: Any) -> dg.MaterializeResult[Artifact]:
    """Call `stage(config, *inputs, store=, ledger=, run_id=, **keywords)`; return its artifact with everything a person wants to
    see beside it. A DormouseError becomes a failure that is not retried: it says what to change."""
    settled = settled_config(context)
    workshop = context.resources.workshop
    ledger: Ledger = workshop.make_ledger(context)
    if "pool" in inspect.signature(stage).parameters:
        keywords["pool"] = workshop.crew.pool(settled)
    started = time.perf_counter()
    try:
        artifact = stage(settled, *inputs, store=workshop.store, ledger=ledger, run_id=context.run.run_id, **keywords)
    except DormouseError as error:
        raise dg.Failure(str(error), metadata=dict(error.facts), allow_retries=False) from error
    seconds = time.perf_counter() - started
    report(ledger)
    made = Made(artifact=artifact, store=workshop.store, ledger=ledger, config=settled)
    partition = context.partition_key if context.has_partition_key else None
    facts = facts_of(made, seconds)
    workshop.say(context, seconds, headline(facts))
    started = time.perf_counter()
    results = [edge.result(made) for edge in _EDGES.get(context.op_def, ())]
    checked = {lineage.CHECK_SECONDS: round(time.perf_counter() - started, 3)} if results else {}
    metadata = {**describe(made, facts, seconds), **checked, **(extra or {})}
    if context.asset_key.to_user_string() == "cycle_plan" or partition is None:
        metadata[lineage.CONFIG] = dg.MetadataValue.json(settled.model_dump(mode="json"))
    return dg.MaterializeResult(
        value=artifact, data_version=dg.DataVersion(artifact.identity), metadata=metadata,
        check_results=results)
