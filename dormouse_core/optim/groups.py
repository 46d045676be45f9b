"""The optimizer of a stage: schedule, clip, and the configured rule of every declared group of parameters.

Who belongs to which group: optim/declared.py. The rules: optim/adam.py, optim/muon.py; what holds factors orthonormal:
optim/retraction.py; how bf16 parameters take small steps: optim/precision.py; what stays frozen in RL: optim/freeze.py.
A step is a function of weights, gradients, state and configuration, and the state is in the resume file: killed and resumed
equals never stopped.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from dormouse_core.config.optimizer import AdamRow, FrozenRow, MuonRow, OptimizerConfig
from dormouse_core.ledger import DormouseError
from dormouse_core.optim import adam
from dormouse_core.optim.adam import adam_step
from dormouse_core.optim.declared import DECAYED, EXPERT_GROUPS, Group, clip_order, declared_groups, stack_shape
from dormouse_core.optim.freeze import gate_rows, router_rows
from dormouse_core.optim.muon import muon_step
from dormouse_core.optim.precision import ALL, CHUNK, Index, Slot
from dormouse_core.optim.retraction import Worst, retract, worst
from dormouse_core.policy.model import Policy

__all__ = ["Group", "Optimizer", "build_optimizer", "declared_groups"]

ORTHONORMAL = (Group.EXPERTS, Group.FACTORS)
"""Groups whose matrices start with orthonormal columns, and are retracted to them where the configuration says so."""
_UPDATES, _MOVED = "expert_updates", "expert_moved"


class Optimizer:
    """All parameters of a policy, each under the rule of its group. Resume is bit-exact."""

    def __init__(self, policy: Policy, config: OptimizerConfig, steps: int, seed: int = 0) -> None:
        self.config, self.steps, self.done, self._policy = config, steps, 0, policy
        self.groups = declared_groups(policy)
        self._names = clip_order(policy, self.groups)
        self._slots = {group: [self._slot(group, name, p, seed) for name, p in members.items()] for group, members in self.groups.items()}
        self._frozen = {name for group, members in self.groups.items() if config.row(group.value).kind == "frozen" for name in members}
        for name, p in self._names.items():
            p.requires_grad_(name not in self._frozen)
        experts = policy.config.n_experts
        self.expert_updates_E = torch.zeros(experts, dtype=torch.int64)
        """Steps in which an expert had a gradient: with experts that rest, how often it moved."""
        self._moved_E = torch.zeros(experts, dtype=torch.bool)

    def lr(self) -> float:
        """Learning rate of the next step: linear warm-up, then constant or a cosine that ends at a tenth."""
        c = self.config
        if self.done < c.warmup:
            return c.lr * (self.done + 1) / c.warmup
        if c.decay == "constant":
            return c.lr
        progress = min(1.0, (self.done - c.warmup) / max(1, self.steps - c.warmup))
        return c.lr * (0.55 + 0.45 * math.cos(math.pi * progress))

    def rates(self) -> dict[str, float]:
        """What the next step uses, group by group: a learning rate, or the relative step of a group Muon trains; 0 is frozen."""
        return {group.value: self._rate(group) for group in Group}

    @torch.no_grad()
    def step(self) -> float:
        """Clip, update, retract, advance the schedule. Returns the gradient norm before the clip; refuses one that is not finite."""
        self._drop_frozen()
        gradients = [p.grad for p in self._names.values() if p.grad is not None]
        norm = _total_norm(gradients)
        if not torch.isfinite(norm):
            raise DormouseError(self._blame())
        live = self._live_experts()
        torch.nn.utils.clip_grads_with_norm_(self._names.values(), self.config.grad_clip, norm)
        for group in Group:
            self._update(group, live)
        self._retract()
        self._policy.refresh()  # the fused kernel writes without raising the tensors' versions
        self.done += 1
        return float(norm)

    def zero_grad(self) -> None:
        for p in self._names.values():
            p.grad = None

    def orthonormality(self) -> Worst:
        """The factor furthest from orthonormal columns, whether or not it is retracted."""
        return worst({name: p for group in ORTHONORMAL for name, p in self.groups[group].items()})

    def metrics(self) -> dict[str, float]:
        """Rates of the next step, the monitor of the factors, and how evenly experts were updated. A function of the state."""
        rates = {f"rate.{name}": value for name, value in self.rates().items()}
        return rates | {"orthonormality_worst": self.orthonormality().error} | self.expert_counts()

    def expert_counts(self) -> dict[str, float]:
        """How evenly the experts were updated so far; empty before one was (and where they are frozen)."""
        count_E = self.expert_updates_E.double()
        mean = float(count_E.mean())
        if not mean:
            return {}
        return {
            "expert_updates_mean": mean,
            "expert_updates_min": float(count_E.min()),
            "expert_updates_max": float(count_E.max()),
            "expert_updates_cv": float(count_E.std(correction=0)) / mean,
            "experts_never_updated": float((count_E == 0).sum()),
        }

    # --- a step

    def _rate(self, group: Group) -> float:
        row = self.config.row(group.value)
        if isinstance(row, FrozenRow):
            return 0.0
        if isinstance(row, MuonRow):
            return row.relative_step * (self.lr() / self.config.lr)
        scale = row.lr_scale if row.lr_scale is not None else self.config.table_lr_scale if group is Group.TABLES else 1.0
        return self.lr() * scale

    def _drop_frozen(self) -> None:
        """What must not move has no gradient: it would shrink the others' through the clip."""
        for name in self._frozen:
            self._names[name].grad = None
        controller = self._policy.block.controller
        if self.config.freeze_router and controller.grad is not None:
            controller.grad[router_rows(self._policy)] = 0

    def _live_experts(self) -> Tensor | None:
        """Which experts a byte has reached in this step: those with a gradient, exactly. None where no expert is trained."""
        slots = [s for group in EXPERT_GROUPS for s in self._slots[group] if s.parameter.grad is not None]
        if not slots:
            return None
        live_E = torch.stack([s.grad.flatten(1).any(1) for s in slots]).any(0)
        self.expert_updates_E += live_E.cpu()
        self._moved_E |= live_E.cpu() if self.config.experts_rest else torch.ones_like(self._moved_E)
        return live_E if self.config.experts_rest else None

    def _update(self, group: Group, live_E: Tensor | None) -> None:
        row, lr = self.config.row(group.value), self.lr()
        slots = [slot for slot in self._slots[group] if slot.parameter.grad is not None]
        chosen = [(slot, self._entries(group, slot, live_E)) for slot in slots]
        chosen = [(slot, index) for slot, index in chosen if isinstance(index, slice) or len(index)]
        if isinstance(row, MuonRow):
            for slot, index in chosen:
                muon_step(slot, index, row, lr / self.config.lr, lr, group in ORTHONORMAL, self.done)
        elif not isinstance(row, FrozenRow):
            decay = 0.0 if isinstance(row, AdamRow) else row.weight_decay
            if decay is None:
                decay = self.config.weight_decay if group in DECAYED else 0.0
            adam_step(chosen, self._rate(group), (self.config.beta1, self.config.beta2), decay, self.done)

    def _entries(self, group: Group, slot: Slot, live_E: Tensor | None) -> Index:
        """Which leading entries of a parameter move in this step."""
        if group in EXPERT_GROUPS and live_E is not None:
            moving = live_E
        elif isinstance(self.config.row(group.value), AdamRow):
            moving = slot.grad.flatten(1).any(1)
        elif self.config.freeze_router and slot.parameter is self._policy.block.controller:
            return gate_rows(self._policy)
        else:
            return ALL
        return ALL if bool(moving.all()) else moving.nonzero().squeeze(1)

    def _retract(self) -> None:
        """Retract what has moved since the last time, where this step's number asks for it."""
        for group in ORTHONORMAL:
            every = self.config.retracts(group.value)
            if not every or (self.done + 1) % every:
                continue
            index: Index = ALL
            if group is Group.EXPERTS:
                index = ALL if bool(self._moved_E.all()) else self._moved_E.nonzero().squeeze(1)
                self._moved_E.zero_()
            for slot in (s for s in self._slots[group] if s.parameter.grad is not None):
                retract(slot, index if isinstance(index, slice) else index.to(slot.parameter.device), self.config.retract_iters, self.done)

    def _slot(self, group: Group, name: str, p: nn.Parameter, seed: int) -> Slot:
        muon = isinstance(self.config.row(group.value), MuonRow)
        shape = stack_shape(self._policy, group, p) if muon or group in ORTHONORMAL else tuple(p.shape) or (1,)
        return Slot(name, p, shape, self.config.low_precision, seed)

    def _blame(self) -> str:
        names = [n for n, p in self._names.items() if p.grad is not None and not torch.isfinite(p.grad).all()]
        return (
            f"step {self.done} refused: the gradient is not finite ({', '.join(names[:5]) or 'its norm overflows'}). Nothing was changed;"
            " lower the learning rate (--set ….optimizer.lr=…, and ….relative_step=… of groups Muon trains) and resume from the last"
            " resume file."
        )

    # --- state

    def _all(self) -> Iterator[tuple[Group, Slot]]:
        return ((group, slot) for group, slots in self._slots.items() for slot in slots)

    def state(self) -> dict[str, Tensor]:
        """Everything a resume needs, as tensors: steps done, counts of the experts, and the moments of what has moved. The moments
        are those of the optimizer, not copies: a save of a large policy has no room for them. A next step changes them."""
        state = {"done": torch.tensor(self.done, dtype=torch.int64), _UPDATES: self.expert_updates_E.clone()}
        if self.config.retracts(Group.EXPERTS.value) > 1:
            state[_MOVED] = self._moved_E.clone()
        for _, slot in self._all():
            state |= {f"{kind}/{slot.name}": value.detach() for kind, value in slot.state.items()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state()` of another run of the same policy and rules. Raises DormouseError where it does not fit."""
        slots = {slot.name: (slot, self._kinds(group, slot)) for group, slot in self._all()}
        counts = {_UPDATES: self.expert_updates_E, _MOVED: self._moved_E}
        found: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if key == "done" or (key in counts and value.shape == counts[key].shape):
                continue
            slot, kinds = slots.get(name, (None, ()))
            if slot is None or kind not in kinds or (kind != "step" and value.shape != slot.parameter.shape):
                raise DormouseError(
                    f"optimizer state {key} of shape {tuple(value.shape)} does not fit this policy and its optimizer table: resume with"
                    " the preset the file was written with, or start from its weights alone."
                )
            found.setdefault(name, {})[kind] = value.detach().to(slot.parameter.device, copy=True)
        self.done = int(state["done"])
        for key, held in counts.items():
            held.copy_(state[key]) if key in state else held.zero_()
        for name, (slot, _) in slots.items():
            slot.state = found.get(name, {})

    def _kinds(self, group: Group, slot: Slot) -> tuple[str, ...]:
        """Names of the state a slot may have."""
        row = self.config.row(group.value)
        kinds = () if isinstance(row, FrozenRow) else ("momentum",) if isinstance(row, MuonRow) else adam.STATE
        masters = slot.parameter.dtype != torch.float32 and slot.low_precision == "masters" and kinds
        return (*kinds, "master") if masters else tuple(kinds)


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """Norm of all gradients together, in fp32 also where they are held in less."""
    if all(g.dtype == torch.float32 for g in gradients):
        return torch.nn.utils.get_total_norm(gradients)
    pieces = [piece for g in gradients for piece in g.reshape(-1).split(CHUNK)]
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(piece, dtype=torch.float32) for piece in pieces]))


def build_optimizer(policy: Policy, config: OptimizerConfig, steps: int, seed: int = 0) -> Optimizer:
    """The optimizer of a stage of `steps` updates. seed: root of the noise of stochastic rounding."""
    return Optimizer(policy, config, steps, seed)
