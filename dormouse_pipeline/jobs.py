"""The two jobs: a base to start from, and one evolve cycle. Ad-hoc materialisation of any node works beside them."""

import dagster as dg

BASE = ("pretrained_checkpoint", "sft_checkpoint")
CYCLE = ("cycle_plan", "rollouts", "verified_trajectories", "failure_memory", "rl_checkpoint", "collapse_report", "holdout_verdict",
         "promoted_checkpoint", "curriculum", "strategy_review")

LOOP_TAG = "dormouse/loop"
DRIVER_TAG = "dormouse/driver"
CYCLES_TAG = "dormouse/cycles"

base_job = dg.define_asset_job("base", selection=list(BASE), tags={LOOP_TAG: "base"}, executor_def=dg.in_process_executor,
                               description="Pretrain on text, then SFT: the base every line starts from.")
evolve_job = dg.define_asset_job("evolve_cycle", selection=list(CYCLE), tags={LOOP_TAG: "evolve"},
                                 executor_def=dg.in_process_executor,
                                 description="One evolve cycle of one line, from its plan to its promoted checkpoint.")
