import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.checks import suite_bounds
from dormouse_pipeline.stage_runner import cycle_of, loop_asset, plan_of, run_stage


@loop_asset(kinds={"json"}, checks=[suite_bounds])
def holdout_verdict(context: dg.AssetExecutionContext, cycle_plan: Artifact, rl_checkpoint: Artifact) -> dg.MaterializeResult[Artifact]:
    """Incumbent and candidate on the same fresh tasks, which did not exist while the candidate was trained: promote or not, and why."""
    from dormouse_core.evaluation import holdout

    return run_stage(context, holdout.run, plan_of(context).base, rl_checkpoint, cycle=str(cycle_of(context)))
