"""The optimizer as a table: which rule trains which group of parameters, its schedule and its clip (docs/optimizers.md)."""

from typing import Annotated, Literal, cast

from pydantic import Field, model_validator

from dormouse_core.config.base import Config


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
    """Peak learning rate. Groups Muon trains have their own `relative_step`; `--lr` of a command moves both (config/rate.py)."""
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
