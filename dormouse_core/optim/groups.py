"""Which optimizer trains what: one declared policy over parameter identities, and the AdamW that runs it.

factors   TSCT u and v of the experts, the shared expert and the readout: no weight decay (their scale carries the size)
matrices  every other weight of two or more dimensions, the head's factors included: weight decay
tables    Engram rows: a faster learning rate, no decay
rest      norms, scales, biases, step embeddings: no decay

Each parameter belongs to exactly one group, or the optimizer refuses to start. The selection bias of the router is a
buffer: optim/balance.py moves it, no gradient does. Not here: Muon and retraction.
"""

import math
from collections.abc import Mapping
from enum import StrEnum

import torch
from torch import Tensor, nn

from dormouse_core.config.stages import OptimizerConfig
from dormouse_core.ledger import DormouseError
from dormouse_core.policy.model import Policy


class Group(StrEnum):
    FACTORS = "factors"
    MATRICES = "matrices"
    TABLES = "tables"
    REST = "rest"


def declared_groups(policy: Policy) -> dict[Group, dict[str, nn.Parameter]]:
    """The declaration: group -> name -> parameter, by the identity of the parameters' owners."""
    block, experts = policy.block, policy.block.experts
    factored = (block.shared_up, block.shared_down, policy.readout)
    factors = [p for t in factored for p in (t.u, t.v)] + [experts.up_u, experts.up_v, experts.down_u, experts.down_v]
    tables = [block.engram.rows]
    flat = [block.norm, block.iter_embed, block.rho, policy.final_norm, policy.head.s, experts.up_s, experts.down_s]
    flat += [block.kda.decay_bias, block.kda.decay_rate, block.kda.out_norm] + [t.s for t in factored]
    flat += [p for head in (policy.value_head, policy.q_head, policy.mor_router) for p in (head.weight, head.bias)]
    kda = block.kda
    matrices = [kda.query, kda.key, kda.value, kda.gate, kda.out, kda.decay_up, kda.decay_down, kda.beta, block.mem_dense]
    matrices += [block.controller, block.engram.key, block.engram.value, policy.embedding, policy.head.u, policy.head.v]
    declared = {Group.FACTORS: factors, Group.MATRICES: matrices, Group.TABLES: tables, Group.REST: flat}
    return _named(policy, declared)


def _named(policy: Policy, declared: Mapping[Group, list[nn.Parameter]]) -> dict[Group, dict[str, nn.Parameter]]:
    """Names for the declaration; refuses parameters in no group or in two."""
    owners: dict[int, list[Group]] = {}
    for group, members in declared.items():
        for p in members:
            owners.setdefault(id(p), []).append(group)
    named: dict[Group, dict[str, nn.Parameter]] = {group: {} for group in declared}
    wrong = []
    for name, p in policy.named_parameters():
        groups = owners.pop(id(p), [])
        if len(groups) != 1:
            wrong.append(f"{name} in {' and '.join(groups) or 'no group'}")
        else:
            named[groups[0]][name] = p
    if wrong or owners:
        raise DormouseError(
            f"optimizer refused: every parameter must be in exactly one group, but {'; '.join(wrong) or 'unknown parameters are declared'}."
            " Declare new parameters in dormouse_core/optim/groups.py."
        )
    return named


class Optimizer:
    """AdamW over the declared groups, with warm-up, decay shape and a global gradient clip. Resume is bit-exact."""

    def __init__(self, policy: Policy, config: OptimizerConfig, steps: int) -> None:
        self.config, self.steps, self.done, self._policy = config, steps, 0, policy
        self.groups = declared_groups(policy)
        self._names = {name: p for members in self.groups.values() for name, p in members.items()}
        scale = {Group.TABLES: config.table_lr_scale}
        self._scale = [scale.get(group, 1.0) for group in self.groups]
        self._adam = torch.optim.AdamW(
            [
                {"params": list(members.values()), "weight_decay": config.weight_decay if group is Group.MATRICES else 0.0}
                for group, members in self.groups.items()
            ],
            lr=config.lr, betas=(config.beta1, config.beta2), eps=1e-8, fused=True,
        )  # fmt: skip

    def lr(self) -> float:
        """Learning rate of the next step: linear warm-up, then constant or a cosine that ends at a tenth."""
        c = self.config
        if self.done < c.warmup:
            return c.lr * (self.done + 1) / c.warmup
        if c.decay == "constant":
            return c.lr
        progress = min(1.0, (self.done - c.warmup) / max(1, self.steps - c.warmup))
        return c.lr * (0.55 + 0.45 * math.cos(math.pi * progress))

    def step(self) -> float:
        """Clip, update, advance the schedule. Returns the gradient norm before the clip; refuses a norm that is not finite."""
        gradients = [p.grad for p in self._names.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(norm):
            raise DormouseError(self._blame())
        torch.nn.utils.clip_grads_with_norm_(self._names.values(), self.config.grad_clip, norm)
        lr = self.lr()
        for settings, scale in zip(self._adam.param_groups, self._scale, strict=True):
            settings["lr"] = lr * scale
        self._adam.step()
        self._policy.refresh()  # the fused kernel writes without raising the tensors' versions
        self.done += 1
        return float(norm)

    def _blame(self) -> str:
        names = [n for n, p in self._names.items() if p.grad is not None and not torch.isfinite(p.grad).all()]
        return (
            f"step {self.done} refused: the gradient is not finite ({', '.join(names[:5]) or 'its norm overflows'}). Nothing was changed;"
            " lower the learning rate (--set ….optimizer.lr=…) and resume from the last resume file."
        )

    def zero_grad(self) -> None:
        self._adam.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Everything a resume needs, as tensors: steps done, and moments and step of every parameter that has moved."""
        state = {"done": torch.tensor(self.done, dtype=torch.int64)}
        for name, p in self._names.items():
            state |= {f"{key}/{name}": value.detach().clone() for key, value in self._adam.state.get(p, {}).items()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state()` of another run of the same policy. Raises DormouseError where it does not fit."""
        moments: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            if key == "done":
                continue
            kind, _, name = key.partition("/")
            if name not in self._names or (kind != "step" and value.shape != self._names[name].shape):
                raise DormouseError(
                    f"optimizer state {key} of shape {tuple(value.shape)} does not fit this policy: resume with the preset the"
                    " file was written with, or start from its weights alone."
                )
            moments.setdefault(name, {})[kind] = value.detach().clone()
        self.done = int(state["done"])
        self._adam.state.clear()
        for name, values in moments.items():
            self._adam.state[self._names[name]] = values


def build_optimizer(policy: Policy, config: OptimizerConfig, steps: int) -> Optimizer:
    """The optimizer of a stage of `steps` updates."""
    return Optimizer(policy, config, steps)
