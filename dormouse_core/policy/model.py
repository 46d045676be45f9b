"""The front door of the policy: built with seeded initial values, loaded from a checkpoint, or on the meta device for its shapes alone."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from dormouse_core.artifacts.checkpoint import Checkpoint, check_tensors
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.policy.depth import same_knobs
from dormouse_core.policy.init import fan_in_scale, fan_in_uniform, generator, head_ramp, normal, orthonormal
from dormouse_core.policy.network import Policy, PolicyOutput

__all__ = ["Policy", "PolicyOutput", "build_policy", "expected_tensors", "load_policy", "meta_policy"]

Fill = Callable[[tuple[int, ...], torch.Generator], Tensor]


def _constant(value: float) -> Fill:
    return lambda shape, rng: torch.full(shape, value)


def _normal(std: float) -> Fill:
    return lambda shape, rng: normal(shape, std, rng)


def initial_values(config: PolicyConfig) -> Mapping[str, Fill]:
    """How each parameter starts, by name. A parameter without a row here is a KeyError in `build_policy`."""
    d, f = config.d_model, config.d_ffn
    fills: dict[str, Fill] = {"embedding": _normal(config.embedding_std), "final_norm": _constant(1.0), "block.norm": _constant(1.0)}
    fills |= {"block.iter_embed": _constant(0.0), "block.rho": _constant(1.0)}
    fills |= {f"block.kda.{name}": _normal(config.kda_std) for name in ("query", "key", "value", "gate", "out")}
    fills |= {f"block.kda.{name}": _normal(0.02) for name in ("decay_up", "decay_down", "beta")}
    fills |= {"block.kda.decay_bias": lambda shape, rng: head_ramp(config.decay_bias, config.n_heads, shape[0])}
    fills |= {"block.kda.decay_rate": _constant(0.0)}
    fills |= {"block.kda.out_norm": _constant(1.0), "block.engram.rows": _normal(0.02)}
    fills |= dict.fromkeys(("block.controller", "block.mem_dense", "block.engram.key", "block.engram.value"), fan_in_uniform)
    factored = {
        "readout.{}": (d, config.readout_rank or config.rank), "head.{}": (256, min(d, 256)),
        "block.shared_up.{}": (f, config.shared_rank), "block.shared_down.{}": (d, config.shared_rank),
        "block.experts.up_{}": (f, config.rank), "block.experts.down_{}": (d, config.rank),
    }  # fmt: skip
    for name, (n_out, rank) in factored.items():
        fills |= {name.format("u"): orthonormal, name.format("v"): orthonormal, name.format("s"): _constant(fan_in_scale(n_out, rank))}
    for head in ("value_head", "q_head", "mor_router"):
        fills |= {f"{head}.weight": _constant(0.0), f"{head}.bias": _constant(0.0)}
    return fills


def build_policy(config: PolicyConfig, seed: int) -> Policy:
    """A policy with the initial values of this seed: the same on every machine and in every order of construction."""
    policy, fills = Policy(config), initial_values(config)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            parameter.copy_(fills[name](tuple(parameter.shape), generator(seed, name)))
    return policy


def meta_policy(config: PolicyConfig) -> Policy:
    """The module without storage: names, shapes and counts of any size of policy."""
    with torch.device("meta"):
        return Policy(config)


def load_policy(checkpoint: Checkpoint, config: PolicyConfig, where: str) -> Policy:
    """The policy whose weights and buffers a checkpoint holds. `where` names the file in errors. The scalars of a depth arm are the
    file's; where this config names another arm, or another start for them than the file's own config, they start anew.

    Raises DormouseError where tensor names, shapes or dtypes are not those of a policy of this config.
    """
    policy, model = Policy(config), dict(checkpoint.model)
    if not same_knobs(checkpoint.config.policy, config):
        model.pop("depth_knobs", None)
        model |= {name: t for name, t in policy.state_dict().items() if name == "depth_knobs"}
    check_tensors(model, expected_tensors(config), where)
    policy.load_state_dict(model)
    return policy


def expected_tensors(config: PolicyConfig) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name -> (shape, dtype) of every tensor in a checkpoint of this config, from the meta device."""
    return {name: (tuple(t.shape), t.dtype) for name, t in meta_policy(config).state_dict().items()}
