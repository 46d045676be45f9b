import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.stage_runner import loop_asset, run_stage


@loop_asset(kinds={"json"})
def curriculum(context: dg.AssetExecutionContext, cycle_plan: Artifact, rl_checkpoint: Artifact) -> dg.MaterializeResult[Artifact]:
    """What the verifier has said of every cell by the end of the cycle: pass rates, bands, and the share each would get next."""
    from dormouse_core.evolution import curriculum as stage

    return run_stage(context, stage.run, cycle_plan, rl_checkpoint)
