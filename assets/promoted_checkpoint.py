import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.stage_runner import cycle_of, loop_asset, run_stage


@loop_asset(kinds={"pytorch"})
def promoted_checkpoint(context: dg.AssetExecutionContext, rl_checkpoint: Artifact, holdout_verdict: Artifact,
                        collapse_report: Artifact) -> dg.MaterializeResult[Artifact]:
    """What the next cycle starts from: the candidate when it is proven better and has not collapsed, else the incumbent, carried over."""
    from dormouse_core.evolution import promotion

    return run_stage(context, promotion.run, rl_checkpoint, holdout_verdict, collapse_report, cycle=str(cycle_of(context)))
