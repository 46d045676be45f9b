import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline.checks import dead_groups, hack_rate, log_prob_parity, no_verdict_share
from dormouse_pipeline.stage_runner import loop_asset, parent_of, plan_of, run_stage, settled_config


@loop_asset(kinds={"pytorch"}, checks=[no_verdict_share, log_prob_parity, hack_rate, dead_groups])
def rl_checkpoint(context: dg.AssetExecutionContext, cycle_plan: Artifact, rollouts: Artifact,
                  verified_trajectories: Artifact) -> dg.MaterializeResult[Artifact]:
    """The candidate: learned from the stored, judged round, then from rounds rolled and judged from the weights as they move."""
    from dormouse_core.evolution.plan import source_of
    from dormouse_core.learning import rl

    source = source_of(settled_config(context), cycle_plan, context.resources.workshop.store)
    return run_stage(context, rl.run, plan_of(context).base, rollouts, verified_trajectories, parent_of(context, rollouts, "tasks"),
                     source=source)
