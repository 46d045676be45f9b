"""A tiny policy, its gradients, and short runs: shared by the optimizer's tests."""

from typing import Any

import torch
from torch import nn

from dormouse_core.config.optimizer import OptimizerConfig
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.optim.groups import Optimizer
from dormouse_core.policy.model import Policy

TINY = PolicyConfig(
    d_model=32, n_heads=2, head_dim=16, n_experts=4, rank=4, d_ffn=64, shared_rank=8, engram_rows=256, engram_dim=8, readout_rank=16
)
MUON: dict[str, Any] = {
    **{name: {"kind": "muon", "relative_step": 1e-2} for name in ("experts", "factors", "query_key", "memory_key")},
    "tables": {"kind": "adam"}, "expert_scales": {"kind": "adamw", "weight_decay": 0.01},
}  # fmt: skip


def muon_config(**other: Any) -> OptimizerConfig:
    return OptimizerConfig.model_validate({"lr": 1e-2, "warmup": 3, **MUON, **other})


def give_gradients(policy: Policy, step: int) -> None:
    """The gradients of a next-byte loss on bytes that are a function of the step."""
    ids_BL = torch.randint(0, 8, (4, 24), generator=torch.Generator().manual_seed(step))
    logits_BLV = policy(ids_BL).logits_BLV
    nn.functional.cross_entropy(logits_BLV[:, :-1].flatten(0, 1).float(), ids_BL[:, 1:].flatten()).backward()


def train(policy: Policy, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        give_gradients(policy, step)
        optimizer.step()


def values(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.named_parameters()}
