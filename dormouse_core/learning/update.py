"""One weight update from fixed micro-batches: computed anywhere, summed in order, refused when it is not finite.

A micro-batch's gradient is a function of (weights, micro-batch), so it may be computed in any process; the sum runs in
micro-batch order. Worker count therefore changes no bit of an update.
Not here: what is in a micro-batch (batches.py), the optimizer's rule (optim).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.learning import depth
from dormouse_core.learning.batches import StepBatch, TextBatch
from dormouse_core.learning.loss import RATIO_LIMIT, LossWeights, forward, rl_loss
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy.model import Policy

NORM_LIMIT = 1e18
"""A gradient beyond this would overflow when squared in fp32."""
_PIECE = 1 << 22
"""Elements of a gradient whose norm is taken at once."""


class Pool(Protocol):
    """What an update needs of `rollouts.workers.WorkerPool`."""

    def set_weights(self, policy: Policy) -> None: ...
    def map(self, function: Callable[..., Any], items: Iterable[Any], on_done: Callable[[int, Any], None] | None = None, *,
            reference: bool = False) -> list[Any]: ...


class Optimizer(Protocol):
    """What an update needs of the object `optim.groups.build_optimizer` returns."""

    def step(self) -> float: ...
    def zero_grad(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RlWork:
    """A micro-batch of steps."""

    batch: StepBatch
    weights: LossWeights


@dataclass(frozen=True, slots=True)
class TextWork:
    """A micro-batch of text rows; `scale` multiplies its loss."""

    batch: TextBatch
    deep_weight: float
    scale: float = 1.0
    count_load: bool = False


@dataclass(slots=True)
class Part:
    """What one micro-batch gives: gradient [P] over the touched parameters in their registered order, and its report."""

    packed_P: np.ndarray
    """float32, or the 16 bits of bfloat16 as int16: in the policy's own type, which is what travels and what is summed."""
    touched: tuple[str, ...]
    report: dict[str, float]
    load_E: np.ndarray | None

    @property
    def tensor_P(self) -> Tensor:
        """The gradient in the policy's type; no copy."""
        packed = torch.from_numpy(self.packed_P)
        return packed.view(torch.bfloat16) if packed.dtype is torch.int16 else packed

    @property
    def gradient_P(self) -> np.ndarray:
        """The gradient as float32."""
        return self.tensor_P.float().numpy()

    def size(self) -> float:
        """Its norm in float64."""
        squares = (torch.linalg.vector_norm(piece.double()).square() for piece in self.tensor_P.split(_PIECE))
        return math.sqrt(sum(float(square) for square in squares))


@dataclass(slots=True)
class Outcome:
    """What an update did. `applied` is False where it was skipped: no micro-batch, or not finite."""

    applied: bool = False
    finite: bool = True
    gradient_norm: float = 0.0
    report: dict[str, float] = field(default_factory=dict)
    policy: PolicyConfig | None = None
    """Shape of the policy that was updated, for the counters of its depth arm."""
    load_E: np.ndarray | None = None
    """How often each expert was chosen in the micro-batches that count it; None where none does."""


def gradient(policy: Policy, work: RlWork | TextWork, reference: Policy | None = None) -> Part:
    """Gradient of one micro-batch. Leaves no trace in the policies it is given. reference: the cycle's base, where there is KL."""
    policy.train()
    policy.refresh()  # the weights decoding made for itself are a copy nobody needs now
    policy.count_load = isinstance(work, RlWork) or work.count_load
    load_E = cast(Tensor, policy.load_E)
    kept_E = load_E.clone()
    if isinstance(work, RlWork):
        base_XU = base_log_probs(reference, work.batch) if reference is not None and work.weights.kl else None
        loss, report = rl_loss(policy, work.batch, work.weights, base_XU)
    else:
        loss, report = depth.text_loss(policy, work.batch, work.deep_weight)
        loss = loss * work.scale
    named = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
    found: list[Tensor | None] = list(torch.autograd.grad(loss, [p for _, p in named], allow_unused=True))
    del loss
    touched = [name for (name, _), g in zip(named, found, strict=True) if g is not None]
    packed = _packed(found)
    load = (load_E - kept_E).numpy() if policy.count_load else None
    load_E.copy_(kept_E)
    policy.count_load = False
    return Part(packed, tuple(touched), report, load)


def _packed(found: list[Tensor | None]) -> np.ndarray:
    """The gradients behind one another; each is let go once it is copied, so that there are never two of all."""
    first = next(g for g in found if g is not None)
    flat_P, at = first.new_empty(sum(g.numel() for g in found if g is not None)), 0
    del first
    for i, g in enumerate(found):
        if g is not None:
            flat_P[at : at + g.numel()] = g.detach().reshape(-1)
            at += g.numel()
            found[i] = None
    return (flat_P.view(torch.int16) if flat_P.dtype is torch.bfloat16 else flat_P.float()).numpy()


def base_log_probs(policy: Policy, batch: StepBatch) -> Tensor:
    """Log-probs [X, U] of the policy given (the cycle's base) at the bytes of a batch, for its KL."""
    with torch.no_grad():
        policy.eval()
        return forward(policy, batch)[0]


def score_text(policy: Policy, batch: TextBatch) -> float:
    """This batch's part of the held-out loss (weights as in the batch)."""
    with torch.no_grad():
        policy.eval()
        return float(depth.text_loss(policy, batch, 0.0, train=False)[0])


def update(policy: Policy, optimizer: Optimizer, pool: Pool, works: Sequence[RlWork | TextWork], reference: bool = False) -> Outcome:
    """Compute, sum, check and apply. Without micro-batches nothing moves, not even the optimizer's moments.

    reference: the pool's reference is the base of a KL term.

    A loss or gradient that is not finite, or a step whose ratio blew up, is not applied: weights and moments stay as they were.
    """
    if not works:
        return Outcome()
    total = _Sum(policy)
    parts: list[Part] = pool.map(gradient, works, total.take, reference=reference)
    outcome = Outcome(report=merged([p.report for p in parts]), policy=policy.config)
    whole = outcome.report.get("log_ratio_max", 0.0) <= RATIO_LIMIT and math.isfinite(outcome.report.get("text_sum", 0.0))
    if not (whole and total.size < NORM_LIMIT):
        optimizer.zero_grad()
        outcome.finite = False
        return outcome
    loads = [(work, part.load_E) for work, part in zip(works, parts, strict=True) if part.load_E is not None]
    if loads:
        outcome.load_E = np.sum([load_E for _, load_E in loads], axis=0)
    for work, load_E in loads:
        if isinstance(work, TextWork):  # what balancing reads; steps of reinforcement learning are counted and never balanced
            cast(Tensor, policy.load_E).add_(torch.from_numpy(load_E))
    outcome.gradient_norm = optimizer.step()
    optimizer.zero_grad()
    outcome.applied = True
    return outcome


def merged(reports: Sequence[dict[str, float]]) -> dict[str, float]:
    """Sums of `*_sum`, maxima of `*_max`, in micro-batch order."""
    out: dict[str, float] = {}
    for report in reports:
        for name, value in report.items():
            out[name] = max(out[name], value) if name in out and name.endswith("_max") else out.get(name, 0.0) + value
    return out


def load_of(outcomes: Sequence[Outcome]) -> np.ndarray | None:
    """How often each expert was chosen in these updates together; None where none was counted."""
    counted = [o.load_E for o in outcomes if o.load_E is not None]
    return np.sum(counted, axis=0) if counted else None


class _Sum:
    """Adds parts into `.grad` in micro-batch order as they come, and lets each go: there is never more than one beside the sum, but
    for those that come early. Parameters no part touched keep None, so the optimizer leaves them alone."""

    def __init__(self, policy: Policy) -> None:
        self.parameters = dict(policy.named_parameters())
        self.early: dict[int, Part] = {}
        self.next, self.size = 0, 0.0

    def take(self, index: int, part: Part) -> None:
        self.early[index] = part
        while self.next in self.early:
            self._add(self.early.pop(self.next))
            self.next += 1

    def _add(self, part: Part) -> None:
        self.size += part.size()
        gradient_P, offset = part.tensor_P, 0
        for name in part.touched:
            p = self.parameters[name]
            piece = gradient_P[offset : offset + p.numel()].view_as(p).to(p)
            p.grad = piece.clone() if p.grad is None else p.grad.add_(piece)
            offset += p.numel()
        part.packed_P = np.empty(0, dtype=part.packed_P.dtype)


class Fuse:
    """Stops a stage whose updates keep being refused: one is skipped and said aloud, the second in a row is an error."""

    def __init__(self, stage: str, ledger: Ledger) -> None:
        self.stage, self.ledger, self.blown = stage, ledger, 0

    def check(self, outcome: Outcome, where: str) -> None:
        if outcome.policy is not None:
            depth.count(outcome.policy, self.stage, outcome.report, self.ledger)
        if outcome.finite:
            self.blown = 0
            return
        self.blown += 1
        self.ledger.count("updates_not_finite")
        what = f"largest step log-ratio {outcome.report.get('log_ratio_max', 0.0):.3g}"
        self.ledger.loud(f"{self.stage}: the gradient at {where} is not finite or a ratio blew up ({what}); the update is skipped and the "
                         "weights stay as they were")
        if self.blown > 1:
            raise DormouseError(f"{self.stage}: two updates in a row were not finite ({where}; {what}). The last good weights are in the "
                                "resume file. Lower the learning rate (--lr) or raise KL (--kl), and start the stage again.")
