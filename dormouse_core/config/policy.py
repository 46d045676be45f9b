"""The policy's shape. Names and meanings: docs/policy.md; presets give every number."""

from typing import Literal

from pydantic import Field, model_validator

from dormouse_core.config.base import Config
from dormouse_core.config.depth import Depth, FixedDepth, refuse_illegal


class PolicyConfig(Config):
    d_model: int = Field(96, ge=8)
    """Width of the residual state."""
    n_heads: int = Field(3, ge=1)
    """KDA heads; n_heads * head_dim must equal d_model."""
    head_dim: int = Field(32, ge=4)
    """Key and value width of one KDA head."""
    max_iter: int = Field(2, ge=1)
    """T: how often the one weight-shared block runs. Depth comes from here, not from layers."""
    depth: Depth = FixedDepth()
    """Which of them a byte runs and is read out from: fixed | random | mor | skip | q_stop | ponder."""
    n_experts: int = Field(8, ge=2)
    """E: routed TSCT experts."""
    moe_topk: int = Field(2, ge=1)
    """Experts a byte uses in one iteration."""
    rank: int = Field(8, ge=1)
    """Rank of a routed expert's factors."""
    d_ffn: int = Field(192, ge=8)
    """Inner width of an expert."""
    shared_rank: int = Field(32, ge=1)
    """Rank of the always-on shared expert (same d_ffn)."""
    readout_rank: int | None = Field(None, ge=1)
    """Rank of the readout every logit passes through; None follows `rank`. Raise it where `rank` is small: at rank 8 the
    next byte is chosen from 8 numbers."""
    engram_rows: int = Field(1024, ge=16)
    """Rows of each hashed n-gram table (orders 2, 3, 4); a power of two."""
    engram_dim: int = Field(16, ge=1)
    """Width of one table row."""
    lam_max: float = Field(0.5, gt=0, le=0.5)
    """Memory floor: the table can never own more than this share of its branch."""
    norm_eps: float = Field(1e-3, gt=0)
    """RMSNorm epsilon."""
    embedding_std: float = Field(1.0, gt=0)
    """Spread of the byte embedding at the start. Small presets learn faster from a quiet embedding: at 1 the block's first
    outputs are drowned by it."""
    kda_std: float = Field(0.02, gt=0)
    """Spread of the KDA projections at the start. 0.02 suits d 768 and up; near 1 / sqrt(d_model) suits small presets."""
    decay_bias: tuple[float, float] = (-4.6, -4.6)
    """Decay logit of the first and the last head at the start, evenly between. alpha = exp(-5 sigmoid(bias)): -4.6 is a
    memory of about 20 bytes, -1 of about one. The sign is the lever: any logit above 0 caps alpha at 0.082."""
    chunk: int = Field(16, ge=1, le=16)
    """KDA chunk; at most 16 so that cumulative decay stays inside fp32."""
    lfb_step: float = Field(1e-3, ge=0)
    """Loss-free balancing: how far a selection bias moves an optimizer step. 0 turns balancing off, and says so."""
    deep_loss: float = Field(0.25, ge=0)
    """Weight of the per-iteration readout loss in pre-training and SFT; RL never uses it."""
    compute: Literal["torch", "native"] = "torch"
    """What computes on a CPU. native: compiled calls in place of hundreds of small ones (kernels/native, needs a C++ compiler), several
    times faster, the same numbers within rounding but not the same bits: rollouts of one seed differ between the two."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights, activations and gradients. Under bfloat16 the decay, the KDA state, router scores, norms' reductions, the head
    product, logits, losses and values stay fp32. Half the memory; several times faster where the machine has bf16 products."""
    recompute: bool = False
    """Training keeps each iteration's input and computes the rest again in the backward: about a T-th of the activation memory
    for a third more time, and the same bits."""
    max_seq_len: int = Field(512, ge=16)
    """Longest window trained at once, bytes. Decoding has no limit."""

    @model_validator(mode="after")
    def _legal(self) -> "PolicyConfig":
        if self.n_heads * self.head_dim != self.d_model:
            raise ValueError(f"n_heads * head_dim = {self.n_heads * self.head_dim} must equal d_model = {self.d_model}")
        if self.moe_topk > self.n_experts:
            raise ValueError(f"moe_topk {self.moe_topk} exceeds n_experts {self.n_experts}")
        if self.moe_topk == 1:
            raise ValueError("moe_topk 1 with renormalised gates gives the router a zero gradient: use 2 or more")
        if self.engram_rows & (self.engram_rows - 1):
            raise ValueError(f"engram_rows {self.engram_rows} must be a power of two")
        sides = min(self.d_model, self.d_ffn)
        for name, rank, most in (("rank", self.rank, sides), ("shared_rank", self.shared_rank, sides),
                                 ("readout_rank", self.readout_rank or self.rank, self.d_model)):
            if rank > most:
                raise ValueError(f"{name} {rank} exceeds {most}, the smaller side of what it factors: its columns could not be orthonormal")
        refuse_illegal(self.depth, self.max_iter)
        return self
