"""One section a stage. Budgets are in steps, episodes or tasks, never in seconds."""

from typing import Annotated, Literal, cast

from pydantic import Field, model_validator

from dormouse_core.config.base import Config
from dormouse_core.config.hacks import HackScreenConfig


class AdamwRow(Config):
    """AdamW (1711.05101), fused."""

    kind: Literal["adamw"] = "adamw"
    lr_scale: float | None = Field(None, gt=0)
    """Times the optimizer's lr. None: table_lr_scale on the tables, 1 elsewhere."""
    weight_decay: float | None = Field(None, ge=0)
    """Per unit of lr. None: the optimizer's weight_decay on matrices and on what could be a matrix of Muon's (query_key,
    memory_key), 0 elsewhere."""


class AdamRow(Config):
    """Plain Adam on the table rows a step has read; the others rest, moments and all. No decay. For the tables."""

    kind: Literal["adam"] = "adam"
    lr_scale: float | None = Field(None, gt=0)
    """Times the optimizer's lr. None: table_lr_scale."""


class MuonRow(Config):
    """Muon+ (2602.21545): momentum, Newton-Schulz, columns then rows to unit length, a step in proportion to the weight.
    For stacks of factors, the query and key projections (a head at a time) and the memory's key projection."""

    kind: Literal["muon"] = "muon"
    relative_step: float = Field(3e-3, gt=0, le=0.5)
    """Frobenius norm of a peak step over that of the weight, entry by entry. It follows the shape of lr's schedule, not
    lr. Pre-training 3e-3, SFT 1e-3, RL 1e-4 to 3e-4 are starting points, not results."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """M <- momentum * M + (1 - momentum) * gradient, no Nesterov."""
    ns_steps: int = Field(5, ge=1, le=12)
    """Newton-Schulz iterations."""
    weight_decay: float = Field(0.0, ge=0)
    """Per unit of lr. Refused on factors: retraction takes any scale back."""
    momentum_dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 halves the memory; what is stored is rounded stochastically."""


class FrozenRow(Config):
    """Nothing moves, nothing is kept; the gradient takes no part in the clip."""

    kind: Literal["frozen"] = "frozen"


Row = Annotated[AdamwRow | AdamRow | MuonRow | FrozenRow, Field(discriminator="kind")]
MUON_ROWS = ("experts", "factors", "query_key", "memory_key")
"""Groups Muon may train: stacks of matrices inside the network. The others hold vectors, tables, embedding and head."""


class OptimizerConfig(Config):
    """Schedule, clip, and a table: which rule trains which group of parameters (optim/declared.py names the members)."""

    lr: float = Field(1e-3, gt=0)
    """Peak learning rate."""
    warmup: int = Field(20, ge=0)
    """Steps of linear warm-up."""
    decay: Literal["cosine", "constant"] = "cosine"
    """Shape after the warm-up; cosine ends at a tenth of lr at `steps`."""
    weight_decay: float = Field(0.01, ge=0)
    """On matrices only; factors, tables, norms and scales have none unless their row says so."""
    table_lr_scale: float = Field(5.0, gt=0)
    """Engram rows learn this much faster (2601.07372)."""
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    grad_clip: float = Field(1.0, gt=0)
    """Global gradient norm above which a step is scaled down."""
    experts: Row = AdamwRow()
    """u and v of the routed experts, [E, m, r]."""
    expert_scales: Row = AdamwRow()
    """s of the routed experts, [E, r]. Where factors are retracted, decay belongs here."""
    factors: Row = AdamwRow()
    """u and v of the shared expert and of the readout."""
    scales: Row = AdamwRow()
    """s of the shared expert, the readout and the head."""
    query_key: Row = AdamwRow()
    """KDA's query and key projections."""
    memory_key: Row = AdamwRow()
    """The Engram's key projection."""
    matrices: Row = AdamwRow()
    """Every other weight of two or more dimensions, embedding, controller and the head's factors included."""
    tables: Row = AdamwRow()
    """Engram rows."""
    rest: Row = AdamwRow()
    """Norms, biases, step embeddings, heads of one output."""
    idle_experts: Literal["rest", "move"] | None = None
    """An expert no byte chose: `rest` moves neither its weights nor its moments; `move` lets it run on along old momentum.
    None: rest where Muon trains the experts, move otherwise."""
    freeze_router: bool = False
    """Rows of the controller that score experts stay as they are; its three gates learn on."""
    retract_every: int | None = Field(None, ge=0)
    """Steps between retractions of experts and factors to orthonormal columns; 0 is never. None: 1 for the groups Muon
    trains, never for the others."""
    retract_iters: int = Field(3, ge=1, le=12)
    """Polynomial iterations of a retraction."""
    low_precision: Literal["masters", "stochastic"] = "masters"
    """Parameters held in bfloat16: `masters` keeps an fp32 copy of each, `stochastic` rounds every step stochastically
    instead. Without effect on fp32 parameters."""

    def row(self, group: str) -> "AdamwRow | AdamRow | MuonRow | FrozenRow":
        """The rule of a group, by its name."""
        return cast("AdamwRow | AdamRow | MuonRow | FrozenRow", getattr(self, group))

    @model_validator(mode="after")
    def _legal(self) -> "OptimizerConfig":
        rows = {name: self.row(name) for name in ROWS}
        for name, row in rows.items():
            if isinstance(row, MuonRow) and name not in MUON_ROWS:
                raise ValueError(f"{name} = muon: Newton-Schulz is for matrices inside the network; choose from {', '.join(MUON_ROWS)}")
            if isinstance(row, AdamRow) and name != "tables":
                raise ValueError(f"{name} = adam: plain Adam by touched rows is for the tables; use adamw with weight_decay = 0")
        if all(isinstance(row, FrozenRow) for row in rows.values()):
            raise ValueError("every group is frozen: nothing would be trained")
        if self.idle_experts == "move" and isinstance(self.experts, MuonRow):
            raise ValueError("idle_experts = move with experts = muon: a normalised step takes an expert without bytes as far as others")
        for name in ("experts", "factors"):
            row, retracted = rows[name], self.retracts(name)
            if retracted and not isinstance(row, FrozenRow) and row.kind != "adam" and row.weight_decay:
                raise ValueError(f"{name}.weight_decay with retraction: the polar map takes any scale back; decay the scales instead")
        if self.retract_every and all(isinstance(rows[name], FrozenRow) for name in ("experts", "factors")):
            raise ValueError("retract_every with experts and factors frozen: nothing moves that could be retracted")
        return self

    def retracts(self, group: str) -> int:
        """Steps between retractions of this group; 0: never."""
        row = self.row(group)
        if group not in ("experts", "factors") or isinstance(row, FrozenRow):
            return 0
        return int(isinstance(row, MuonRow)) if self.retract_every is None else self.retract_every

    @property
    def experts_rest(self) -> bool:
        """Whether an expert without a byte stays as it is."""
        return self.idle_experts == "rest" or isinstance(self.experts, MuonRow)


ROWS = tuple(name for name, field in OptimizerConfig.model_fields.items() if isinstance(field.default, AdamwRow))
"""Names of the table's rows, in order."""


class PretrainConfig(Config):
    """`dormouse train`: next-byte prediction on text."""

    data: str = "stdlib"
    """`stdlib` (the running Python's own sources, test folders held out) or a folder of text."""
    steps: int = Field(150, ge=0)
    batch: int = Field(16, ge=1)
    seq_len: int = Field(256, ge=16)
    micro_batches: int = Field(2, ge=1)
    """Fixed parts of a batch whose gradients are summed in order: worker count changes nothing."""
    eval_batches: int = Field(4, ge=1)
    """Fixed held-out window: eval_batches * batch * seq_len bytes, rewound before every evaluation."""
    eval_every: int = Field(0, ge=0)
    """0 evaluates at the end only."""
    log_every: int = Field(10, ge=1)
    ckpt_every: int = Field(100, ge=1)
    """Steps between resume files."""
    optimizer: OptimizerConfig = OptimizerConfig(lr=2e-3)


class MixConfig(Config):
    """Shares of SFT row kinds; they need not sum to 1 (they are normalised)."""

    expert: float = Field(0.35, ge=0)
    synthetic: float = Field(0.35, ge=0)
    repair: float = Field(0.15, ge=0)
    chat: float = Field(0.15, ge=0)


class SftConfig(Config):
    """`post-train sft`: assistant spans only."""

    rows_per_pool: int = Field(1000, ge=1)
    """The demonstration budget."""
    mix: MixConfig = MixConfig()
    long_share: float = Field(0.2, ge=0, le=1)
    """Share of math and code rows that show a longer working."""
    expert_noise: float = Field(0.2, ge=0, le=1)
    """How often an agent expert acts at random; only passing episodes are kept."""
    mask: Literal["assistant", "all"] = "assistant"
    batch: int = Field(32, ge=1)
    max_epochs: int = Field(40, ge=1)
    eval_every: int = Field(25, ge=1)
    """Optimizer steps between held-out evaluations."""
    patience: int = Field(3, ge=1)
    """Stop after this many evaluations without a better held-out loss; the best weights are kept."""
    heldout_share: float = Field(0.1, gt=0, lt=1)
    observation_loss: float = Field(0.0, ge=0)
    """Weight of the loss on observation bytes (state prediction). 0 is off."""
    micro_batches: int = Field(2, ge=1)
    """Fixed parts of a batch whose gradients are summed in order: worker count changes nothing."""
    interleave_rl: float = Field(0.25, ge=0, le=1)
    """Share of RL's updates that carry an SFT batch; written into the checkpoint, RL follows it unless told otherwise."""
    optimizer: OptimizerConfig = OptimizerConfig(lr=2e-3)


class RolloutConfig(Config):
    """`post-train roll`: how episodes are sampled."""

    prompts: int = Field(16, ge=1)
    """Tasks a round."""
    group_size: int = Field(8, ge=2)
    """G: trajectories a task."""
    temperature: float = Field(1.0, gt=0)
    lanes: int = Field(64, ge=4)
    """Sequences decoded together; changes speed, never a byte."""
    workers: int = Field(2, ge=1)
    """Processes; changes speed, never a byte."""
    fork_share: float = Field(0.25, ge=0, le=1)
    """Forks a round, as a share of its multi-step trajectories. Used by fork-replay only."""
    fork_entropy: float = Field(0.3, ge=0)
    """A step is eligible for a fork when the first byte's entropy at its state, in nats, is above this (a rule of the
    state alone: choosing by the action would bias the update)."""


class ForkReplayAdvantage(Config):
    kind: Literal["fork-replay"] = "fork-replay"
    corrected: bool = True
    """Multiply by 1 - pi(a|s), which makes R - R_fork the exact advantage (2609.33875, docs/mechanisms/fork-replay.md)."""
    leave_one_out: bool = True
    """Baseline of the steps that were not forked: the other members of the group."""


class GroupAdvantage(Config):
    kind: Literal["group"] = "group"
    kappa: float = Field(0.0, ge=0, le=1)
    """Exponent of the group's standard deviation: 0 is Dr. GRPO, 1 is GRPO (2607.00152)."""
    leave_one_out: bool = True
    """Baseline from the other members only; unbiased for any G >= 2."""


Advantage = Annotated[ForkReplayAdvantage | GroupAdvantage, Field(discriminator="kind")]


class RewardConfig(Config):
    """R = R_test * S_sol * S_beh; a zero in any factor cannot be bought back."""

    solution: bool = True
    """S_sol: reference steps / steps, floored at solution_floor; off means 1, and says so."""
    solution_floor: float = Field(0.5, ge=0, le=1)
    behaviour: bool = True
    """S_beh: 1 minus the weighted rates below; off means 1, and says so."""
    malformed_weight: float = Field(0.5, ge=0, le=1)
    repeated_weight: float = Field(0.25, ge=0, le=1)
    needless_weight: float = Field(0.0, ge=0, le=1)
    literal_weight: float = Field(0.25, ge=0, le=1)
    """Code only: penalty of a body that is mostly literals."""
    graded: bool = False
    """R_test is the share of hidden cases or milestones instead of 0/1."""
    lambda_tokens: float = Field(0.0, ge=0)
    """Penalty a byte, passing members only."""
    lambda_cost: float = Field(0.0, ge=0)
    """Penalty a tool call, passing members only."""
    length_alpha: float = Field(0.0, ge=0)
    """Group-relative length penalty, passing members of groups whose pass rate reaches length_gamma."""
    length_gamma: float = Field(0.5, ge=0, le=1)


class NoConsolidation(Config):
    kind: Literal["off"] = "off"


class PassesConsolidation(Config):
    """Supervised steps on the cycle's distinct verified passes, after its rounds (docs/mechanisms/consolidation.md)."""

    kind: Literal["passes"] = "passes"
    steps: int = Field(100, ge=1)
    batch: int = Field(64, ge=1)
    """Passing trajectories a step; epochs go over all of them, exact repeats once."""
    ckpt_every: int = Field(100, ge=1)
    """Steps between resume files."""
    optimizer: OptimizerConfig = OptimizerConfig(lr=2e-3)


Consolidation = Annotated[NoConsolidation | PassesConsolidation, Field(discriminator="kind")]


class RlConfig(Config):
    """`post-train rl`: rounds of roll, verify, update; then consolidation."""

    advantage: Advantage = ForkReplayAdvantage()
    reward: RewardConfig = RewardConfig()
    rounds: int = Field(40, ge=1)
    """R: rounds a cycle. Round 0 is the stored rollouts; the rest are sampled from the current weights."""
    clip: float = Field(0.2, ge=0)
    """Step-level ratio clip; exp of the mean log-ratio over a step's bytes stays in [1 - clip, 1 + clip]. 0 is off, and
    says so."""
    kl: float = Field(0.01, ge=0)
    """Weight of KL to the cycle's base. 0 is off, and says so."""
    entropy: float = Field(0.0, ge=0)
    """Entropy bonus."""
    value: float = Field(0.1, ge=0)
    """Weight of the value head's regression on outcomes at step boundaries (its input is detached)."""
    interleave_sft: float | None = Field(None, ge=0, le=1)
    """Share of updates that add an SFT batch; None follows the SFT checkpoint. 0 is off, and says so."""
    sft_weight: float = Field(1.0, ge=0)
    """Weight of the interleaved SFT loss."""
    consolidation: Consolidation = NoConsolidation()
    """The last phase of the stage; off says so."""
    aggregation: Literal["prompt_mean", "trajectory_mean", "byte_mean"] = "prompt_mean"
    """How a loss is averaged: inside a trajectory, then inside a prompt, then over prompts."""
    epochs: int = Field(1, ge=1)
    """Passes over a round's batch."""
    micro_batches: int = Field(4, ge=1)
    """Fixed parts of a batch whose gradients are summed in order: worker count changes nothing."""
    dead_round_limit: int = Field(5, ge=1)
    """Rounds without any live group after which the stage ends with `no_signal`."""
    no_verdict_limit: float = Field(0.05, ge=0, le=1)
    """Share of trajectories without a verdict above which the stage fails."""
    truncation_limit: float = Field(0.9, ge=0, le=1)
    """Share of the first round that the byte budget may cut off before the stage refuses to learn from it; 1 never refuses."""
    ckpt_every: int = Field(10, ge=1)
    """Rounds between resume files."""
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-3, warmup=5, decay="constant")


class VerifyConfig(Config):
    """`post-train verify`: judging stored rollouts."""

    cpu_seconds: float = Field(1.0, gt=0)
    """CPU limit of one candidate, all its cases together."""
    wall_seconds: float = Field(10.0, gt=0)
    """Backstop for a candidate that sleeps."""
    memory_mib: int = Field(256, ge=16)
    workers: int = Field(2, ge=1)
    """Runner processes."""
    jail: Literal["best", "full", "no_files"] = "best"
    """`best`: every layer this machine allows, what is missing said aloud. `full`: all layers or no verdicts. `no_files`: candidates
    open no file at all; for machines with neither Landlock nor namespaces."""
    hack_screen: HackScreenConfig = HackScreenConfig()
    """Labels on judged programs, and what they set aside."""
    fork_budget: int = Field(0, ge=0)
    """Stored forks and trajectories that `verify` plays again from a snapshot and judges again; they must repeat themselves."""
    math_verify: bool = False
    """Closed forms the exact verifier cannot decide are put to math-verify (the extra `math`), in a process that can be killed. Off:
    they are `undecided`."""


class EvalConfig(Config):
    """`post-train eval` and the holdout verdict."""

    suite: str = "nano"
    """Suite name (packaged) or a TOML file: families and difficulties of each pool."""
    tasks_per_pool: int = Field(100, ge=2)
    samples: int = Field(4, ge=1)
    """Sampled answers a task, beside one greedy answer."""
    budgets: tuple[int, ...] = (8, 16, 32, 64, 128)
    """correct@budget(bytes): new bytes an answer may use."""
    bootstrap: int = Field(2000, ge=100)
    """Resamples of the task bootstrap."""
    frozen: bool = True
    """Also score the frozen split (trend line only, never promotion)."""


class BandConfig(Config):
    """Sampling mass of the curriculum's bands (normalised over the bands that have cells)."""

    mastered: float = Field(0.05, ge=0)
    frontier: float = Field(0.70, ge=0)
    boundary: float = Field(0.20, ge=0)
    archived: float = Field(0.05, ge=0)


class CurriculumConfig(Config):
    enabled: bool = True
    """Off: cells are drawn evenly, and the plan says so."""
    bands: BandConfig = BandConfig()
    k: int = Field(8, ge=1)
    """pass@k the frontier's 30-60 % target is read at."""
    discount: float = Field(0.9, gt=0, le=1)
    """A cell's counts shrink by this a round, so the estimate follows the policy."""
    use_failure_memory: bool = True
    """Failed cells named by the failure memory gain mass. Off: the plan says so."""
    failure_share: float = Field(0.1, ge=0, le=1)
    """Share of a round's tasks re-drawn from cells the failure memory names."""
    target: tuple[float, float] = (0.3, 0.6)
    """pass@k between which a frontier cell's weight is raised."""
    target_bonus: float = Field(1.0, ge=0)
    """How much: weight times 1 + bonus * P(pass@k in target). 0 leaves p(1-p) alone."""
    pool_floor: float = Field(0.6, ge=0, le=1)
    """Share of a round split evenly over the pools, so that none is given up; the rest goes where there is most to learn."""


class RuntimeConfig(Config):
    threads: int = Field(1, ge=1)
    """Torch threads of each process; part of what makes a run reproducible."""
    seed: int = Field(1, ge=0)
    """Root of every draw."""


class LoopConfig(Config):
    cycles: int = Field(3, ge=1)
    line: str = "main"
    """Name of the evolution line; partitions are `line.c0000`, ..."""
    suite: str = "nano"
    """Families and difficulties trained on (packaged name or TOML file)."""

    @model_validator(mode="after")
    def _plain(self) -> "LoopConfig":
        if not self.line.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"line {self.line!r} may hold letters, digits, - and _ only")
        return self
