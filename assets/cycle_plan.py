import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.checks import admission, verifier_bench
from dormouse_pipeline.stage_runner import carried, cycle_of, loop_asset, run_stage


@loop_asset(kinds={"json"}, checks=[verifier_bench, admission])
def cycle_plan(context: dg.AssetExecutionContext, sft_checkpoint: Artifact) -> dg.MaterializeResult[Artifact]:
    """What the cycle starts from, frozen: checkpoint, cells and their shares with the cause of each change, tasks of round 0, seeds.

    The first cycle of a line starts from the SFT base; every other from what the cycle before promoted, learned and reviewed.
    """
    from dormouse_core.evolution import plan

    before = carried(context)
    roles = ("promotion", "curriculum", "failure_memory", "strategy_review")
    return run_stage(context, plan.run, before.sft(context.resources.workshop.store, sft_checkpoint), *map(before.artifact, roles),
                     cycle=str(cycle_of(context)), origins=before.origins(), extra=before.metadata())
