import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.stage_runner import loop_asset, run_stage


@loop_asset(kinds={"json"})
def strategy_review(context: dg.AssetExecutionContext, holdout_verdict: Artifact) -> dg.MaterializeResult[Artifact]:
    """After a lost holdout: the number that lost, and the cells whose share the next plan moves, each with its cause."""
    from dormouse_core.evolution import strategy_review as stage

    return run_stage(context, stage.run, holdout_verdict)
