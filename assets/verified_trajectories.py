import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.checks import canaries, no_verdict_share
from dormouse_pipeline.stage_runner import loop_asset, parent_of, run_stage


@loop_asset(kinds={"parquet"}, checks=[canaries, no_verdict_share])
def verified_trajectories(context: dg.AssetExecutionContext, rollouts: Artifact) -> dg.MaterializeResult[Artifact]:
    """Every stored trajectory of round 0 with its verdict, and the verifier run that gave it. Rollouts are read, never changed."""
    from dormouse_core.rollouts import verify

    return run_stage(context, verify.run, rollouts, parent_of(context, rollouts, "tasks"))
