"""How deep a byte goes through the loop: one arm, chosen by `policy.depth.kind`, so that two can never be named at once.

Every arm but `fixed` says that it ran and is a page in docs/mechanisms/depth-*.md.
"""

from typing import Annotated, Literal

from pydantic import Field

from dormouse_core.config.base import Config


class FixedDepth(Config):
    """All `max_iter` iterations for every byte."""

    kind: Literal["fixed"] = "fixed"


class RandomDepth(Config):
    """Pre-training and SFT run a drawn number of iterations, so that depth becomes a knob of the trained policy."""

    kind: Literal["random"] = "random"
    least: int = Field(1, ge=1)
    """Smallest depth drawn; the largest is max_iter."""
    iterations: int | None = Field(None, ge=1)
    """Depth outside that training (sampling, RL, evaluation); None is max_iter. Between `least` and max_iter."""


class MorDepth(Config):
    """A router ranks the iterations of each byte; the best `slots` of them are read out (2507.10524)."""

    kind: Literal["mor"] = "mor"
    slots: int = Field(1, ge=1)
    """k: iterations a byte's readout is the mean of; below max_iter."""
    weight: float = Field(0.05, ge=0)
    """Weight of the router's cross-entropy against its own top-k. Nothing else trains the router; 0 is off, and says so."""
    ramp: float = Field(0.1, gt=0)
    """Scores this close to the k-th place share it, so that rounding cannot flip a choice."""


class SkipDepth(Config):
    """A gate skips iterations byte by byte (2404.02258, in the threshold form that needs no look at later bytes)."""

    kind: Literal["skip"] = "skip"
    threshold: float = Field(-0.5, ge=-8, le=8)
    """Score at which an iteration runs half. At -0.5 with ramp 1 a new policy skips nothing."""
    ramp: float = Field(1.0, gt=0)
    """Width of scores between skipped and run whole: the gate is continuous, so rounding cannot flip it."""
    price: float = Field(0.01, ge=0)
    """Nats a byte an iteration costs in training: the gate learns to skip what buys less. 0 is off, and says so."""


class QStopDepth(Config):
    """The Q head foretells after each iteration how likely the byte read out now is right; enough of it stops the byte."""

    kind: Literal["q_stop"] = "q_stop"
    threshold: float = Field(0.9, ge=0, le=1)
    """Foretold probability at which the rest of the iterations run half."""
    ramp: float = Field(0.1, gt=0)
    """Width of foretold probability between running on and stopped: continuous, so rounding cannot flip it."""
    weight: float = Field(0.1, ge=0)
    """Weight of the Q head's regression in pre-training and SFT (its input is detached). 0 is off, and says so."""


class PonderDepth(Config):
    """A halting distribution over iterations mixes their answers (2107.05407). It has collapsed elsewhere: here to be refuted."""

    kind: Literal["ponder"] = "ponder"
    prior: float = Field(0.5, gt=0, lt=1)
    """Halting probability of the truncated geometric prior."""
    beta: float = Field(0.01, ge=0)
    """Weight of KL(halting || prior). 0 is off, and says so."""


Depth = Annotated[FixedDepth | RandomDepth | MorDepth | SkipDepth | QStopDepth | PonderDepth, Field(discriminator="kind")]


def refuse_illegal(depth: Depth, max_iter: int) -> None:
    """Raise ValueError where an arm does not fit a loop of `max_iter` iterations. Nothing is clamped."""
    if depth.kind == "fixed":
        return
    if max_iter == 1:
        raise ValueError(f"depth.kind {depth.kind} with max_iter 1 has nothing to choose from: raise max_iter or use kind fixed")
    if depth.kind == "random":
        if depth.least >= max_iter:
            raise ValueError(f"depth.least {depth.least} must lie below max_iter {max_iter}: there is nothing to draw otherwise")
        if depth.iterations is not None and not depth.least <= depth.iterations <= max_iter:
            raise ValueError(f"depth.iterations {depth.iterations} is outside the trained depths {depth.least}..{max_iter}")
    if depth.kind == "mor" and depth.slots >= max_iter:
        raise ValueError(f"depth.slots {depth.slots} must lie below max_iter {max_iter}: reading all of them is kind fixed")
