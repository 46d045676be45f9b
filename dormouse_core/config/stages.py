"""One section a stage. Budgets are in steps, episodes or tasks, never in seconds."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dormouse_core.config.base import Config
from dormouse_core.config.hacks import HackScreenConfig
from dormouse_core.config.optimizer import OptimizerConfig


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

    profile: Literal["quick", "full"] = "quick"
    """`post-train eval` only. `full` is for a release or a claim: beside the suite it lays at least 200 baits (`honeypots.episodes`) and
    reports the proven hack rate. `quick` says that it does not."""
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
