import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.checks import below_uniform
from dormouse_pipeline.stage_runner import loop_asset, run_stage


@loop_asset(kinds={"pytorch"}, group="base", partitioned=False, checks=[below_uniform])
def pretrained_checkpoint(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Artifact]:
    """A policy that has read text: next-byte prediction, scored in bits per byte beside uniform, unigram and 5-gram counting."""
    from dormouse_core.learning import pretrain

    return run_stage(context, pretrain.run)
