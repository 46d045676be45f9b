import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.stage_runner import loop_asset, run_stage


@loop_asset(kinds={"pytorch"}, group="base", partitioned=False)
def sft_checkpoint(context: dg.AssetExecutionContext, pretrained_checkpoint: Artifact) -> dg.MaterializeResult[Artifact]:
    """The base of every line: fine-tuned on assistant spans of a fixed number of demonstrations, best weights by held-out loss."""
    from dormouse_core.learning import sft

    return run_stage(context, sft.run, pretrained_checkpoint)
