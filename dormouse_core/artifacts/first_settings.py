"""The settings that the first checkpoints knew. Any other came later.

A setting that came later is left out of identities while it has its default (identity.py), so its default must stay what was done
before there was the setting. Never add to this list.
"""

FIRST = frozenset("""
    curriculum.bands.archived curriculum.bands.boundary curriculum.bands.frontier curriculum.bands.mastered curriculum.discount
    curriculum.enabled curriculum.failure_share curriculum.k curriculum.pool_floor curriculum.target curriculum.target_bonus
    curriculum.use_failure_memory eval.bootstrap eval.budgets eval.frozen eval.samples eval.suite eval.tasks_per_pool loop.cycles
    loop.line loop.suite policy.chunk policy.d_ffn policy.d_model policy.decay_bias policy.deep_loss policy.embedding_std
    policy.engram_dim policy.engram_rows policy.head_dim policy.kda_std policy.lam_max policy.lfb_step policy.max_iter
    policy.max_seq_len policy.moe_topk policy.n_experts policy.n_heads policy.norm_eps policy.rank policy.readout_rank
    policy.shared_rank preset rl.advantage.corrected rl.advantage.kappa rl.advantage.kind rl.advantage.leave_one_out rl.aggregation
    rl.ckpt_every rl.clip rl.dead_round_limit rl.entropy rl.epochs rl.interleave_sft rl.kl rl.micro_batches rl.no_verdict_limit
    rl.optimizer.beta1 rl.optimizer.beta2 rl.optimizer.decay rl.optimizer.grad_clip rl.optimizer.lr rl.optimizer.table_lr_scale
    rl.optimizer.warmup rl.optimizer.weight_decay rl.reward.behaviour rl.reward.graded rl.reward.lambda_cost rl.reward.lambda_tokens
    rl.reward.length_alpha rl.reward.length_gamma rl.reward.literal_weight rl.reward.malformed_weight rl.reward.needless_weight
    rl.reward.repeated_weight rl.reward.solution rl.reward.solution_floor rl.rounds rl.sft_weight rl.truncation_limit rl.value
    roll.fork_entropy roll.fork_share roll.group_size roll.lanes roll.prompts roll.temperature roll.workers runtime.seed
    runtime.threads sft.batch sft.eval_every sft.expert_noise sft.heldout_share sft.interleave_rl sft.long_share sft.mask
    sft.max_epochs sft.micro_batches sft.mix.chat sft.mix.expert sft.mix.repair sft.mix.synthetic sft.observation_loss
    sft.optimizer.beta1 sft.optimizer.beta2 sft.optimizer.decay sft.optimizer.grad_clip sft.optimizer.lr sft.optimizer.table_lr_scale
    sft.optimizer.warmup sft.optimizer.weight_decay sft.patience sft.rows_per_pool train.batch train.ckpt_every train.data
    train.eval_batches train.eval_every train.log_every train.micro_batches train.optimizer.beta1 train.optimizer.beta2
    train.optimizer.decay train.optimizer.grad_clip train.optimizer.lr train.optimizer.table_lr_scale train.optimizer.warmup
    train.optimizer.weight_decay train.seq_len train.steps verify.cpu_seconds verify.memory_mib verify.wall_seconds verify.workers
""".split())  # noqa: SIM905 - read as a list of words
