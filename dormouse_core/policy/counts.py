"""How large a policy is, counted from the instantiated module (meta device), and what a byte costs."""

from typing import NamedTuple

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.policy.engram import ORDERS
from dormouse_core.policy.model import meta_policy
from dormouse_core.policy.state import CONTEXT


class Counts(NamedTuple):
    """Parameters and costs.

    total: all trained numbers. active: distinct ones a byte can touch (the union over iterations: an upper bound, for two
    iterations may choose one expert). active_one_iteration: the same for one pass of the block. madds_per_byte: multiply-adds
    of a forward, all T iterations, the state's products included. state_bytes: one sequence's decode state.
    """

    total: int
    active: int
    active_one_iteration: int
    madds_per_byte: int
    state_bytes: int


def parameter_counts(config: PolicyConfig) -> Counts:
    sizes = {name: p.numel() for name, p in meta_policy(config).named_parameters()}
    total = sum(sizes.values())
    experts = sum(n for name, n in sizes.items() if name.startswith("block.experts."))
    tables = sizes["block.engram.rows"]
    dense, one_expert = total - experts - tables, experts // config.n_experts
    read = len(ORDERS) * config.engram_dim
    touched = min(config.n_experts, config.max_iter * config.moe_topk)
    return Counts(
        total=total,
        active=dense + touched * one_expert + read,
        active_one_iteration=dense + config.moe_topk * one_expert + read,
        madds_per_byte=_madds(sizes, one_expert, config),
        state_bytes=4 * config.max_iter * config.d_model * config.head_dim + CONTEXT,
    )


def _madds(sizes: dict[str, int], one_expert: int, config: PolicyConfig) -> int:
    """Matrix entries a byte meets, once an iteration for the loop's part (of the controller the half that reads the iteration's state;
    the other reads h_0, once); 4 K V a head for the recurrence's state. The head counts multiplied out."""
    start = sizes["block.controller"] // 2
    once = sizes["block.engram.key"] + sizes["block.engram.value"] + sizes["readout.u"] + sizes["readout.v"] + config.d_model * 256 + start
    loop = -start + sum(n for name, n in sizes.items() if name.startswith(("block.kda.", "block.shared", "block.mem", "block.contr")))
    state = 4 * config.d_model * config.head_dim
    return once + config.max_iter * (loop + config.moe_topk * one_expert + state)
