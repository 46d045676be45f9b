import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.checks import hack_rate
from dormouse_pipeline.stage_runner import cycle_of, loop_asset, plan_of, run_stage


@loop_asset(kinds={"parquet", "duckdb"}, checks=[hack_rate])
def rollouts(context: dg.AssetExecutionContext, cycle_plan: Artifact) -> dg.MaterializeResult[Artifact]:
    """Round 0 of the cycle: a group of trajectories for every task of the plan, every byte and log-prob as sampled, forks included."""
    from dormouse_core.rollouts import stage

    plan = plan_of(context)
    return run_stage(context, stage.run, plan.tasks, plan.base, cycle=str(cycle_of(context)))
