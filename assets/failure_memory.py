import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.stage_runner import loop_asset, parent_of, plan_of, run_stage


@loop_asset(kinds={"parquet"})
def failure_memory(context: dg.AssetExecutionContext, rollouts: Artifact,
                   verified_trajectories: Artifact) -> dg.MaterializeResult[Artifact]:
    """What nobody solved: diagnosis, task and state digest of each, added to the memory of the cycle before. Never the failed answer."""
    from dormouse_core.evolution import failure_memory as stage

    return run_stage(context, stage.run, rollouts, verified_trajectories, parent_of(context, rollouts, "tasks"),
                     previous=plan_of(context).failure_memory)
