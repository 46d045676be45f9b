import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.checks import collapse_regime
from dormouse_pipeline.stage_runner import cycle_of, loop_asset, plan_of, run_stage


@loop_asset(kinds={"json"}, checks=[collapse_regime])
def collapse_report(context: dg.AssetExecutionContext, rl_checkpoint: Artifact) -> dg.MaterializeResult[Artifact]:
    """Does the candidate still read its prompt, and still vary? Mutual-information gap and entropy beside those of the cycle's base."""
    from dormouse_core.monitors import collapse

    return run_stage(context, collapse.run, plan_of(context).base, rl_checkpoint, cycle=str(cycle_of(context)))
