"""Which parameter belongs to which group: declared once, by the identity of the parameters' owners.

experts        u and v of the routed experts, stacks [E, m, r] with orthonormal columns
expert_scales  their s, [E, r]
factors        u and v of the shared expert and of the readout, [m, r] with orthonormal columns
scales         s of the shared expert, of the readout and of the head
query_key      KDA's query and key projections: a stack of [head_dim, d] blocks, one a head
memory_key     the Engram's key projection
matrices       every other weight of two or more dimensions; embedding, controller and the head's factors are here
tables         Engram rows
rest           norms, biases, step embeddings, heads of one output

Which rule trains a group is a row of the configuration (config/stages.py). The router's selection bias is a buffer:
optim/balance.py moves it, no gradient does.
"""

from collections.abc import Mapping
from enum import StrEnum

from torch import nn

from dormouse_core.ledger import DormouseError
from dormouse_core.policy.model import Policy


class Group(StrEnum):
    """Order counts: the clip's norm sums the gradients in it."""

    EXPERTS = "experts"
    FACTORS = "factors"
    QUERY_KEY = "query_key"
    MEMORY_KEY = "memory_key"
    MATRICES = "matrices"
    TABLES = "tables"
    EXPERT_SCALES = "expert_scales"
    SCALES = "scales"
    REST = "rest"


CLIP_ORDER = (
    (Group.EXPERTS, Group.FACTORS), (Group.QUERY_KEY, Group.MEMORY_KEY, Group.MATRICES), (Group.TABLES,),
    (Group.EXPERT_SCALES, Group.SCALES, Group.REST),
)  # fmt: skip
"""In which the norms of gradients are added up (inside a family by the policy's own order): an order is part of a sum's bits."""
DECAYED = frozenset({Group.QUERY_KEY, Group.MEMORY_KEY, Group.MATRICES})
"""Groups whose weight decay is the optimizer's where their row gives none."""
EXPERT_GROUPS = frozenset({Group.EXPERTS, Group.EXPERT_SCALES})
"""Groups whose leading dimension counts routed experts."""


def declared_groups(policy: Policy) -> dict[Group, dict[str, nn.Parameter]]:
    """The declaration: group -> name -> parameter. Raises DormouseError naming a parameter that is in no group or in two."""
    block, kda, experts = policy.block, policy.block.kda, policy.block.experts
    factored = (block.shared_up, block.shared_down, policy.readout)
    matrices = [kda.value, kda.gate, kda.out, kda.decay_up, kda.decay_down, kda.beta, block.mem_dense, block.controller]
    matrices += [block.engram.value, policy.embedding, policy.head.u, policy.head.v]
    rest = [block.norm, block.iter_embed, block.rho, policy.final_norm, kda.decay_bias, kda.decay_rate, kda.out_norm]
    rest += [p for head in (policy.value_head, policy.q_head, policy.mor_router) for p in (head.weight, head.bias)]
    return _named(policy, {
        Group.EXPERTS: [experts.up_u, experts.up_v, experts.down_u, experts.down_v],
        Group.FACTORS: [p for t in factored for p in (t.u, t.v)],
        Group.QUERY_KEY: [kda.query, kda.key],
        Group.MEMORY_KEY: [block.engram.key],
        Group.MATRICES: matrices,
        Group.TABLES: [block.engram.rows],
        Group.EXPERT_SCALES: [experts.up_s, experts.down_s],
        Group.SCALES: [t.s for t in (*factored, policy.head)],
        Group.REST: rest,
    })  # fmt: skip


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
            " Declare new parameters in dormouse_core/optim/declared.py."
        )
    return named


def clip_order(policy: Policy, groups: Mapping[Group, Mapping[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    """All parameters by name, in the order their gradient norms are added up."""
    family = {name: at for at, members in enumerate(CLIP_ORDER) for group in members for name in groups[group]}
    return dict(sorted(policy.named_parameters(), key=lambda item: family[item[0]]))


def stack_shape(policy: Policy, group: Group, p: nn.Parameter) -> tuple[int, int, int]:
    """(entries, rows, columns) of a matrix as Muon sees it: experts one entry each, query and key one a head, others whole."""
    if group is Group.QUERY_KEY:
        return policy.config.n_heads, policy.config.head_dim, p.shape[1]
    return (1, p.shape[0], p.shape[1]) if p.dim() == 2 else (p.shape[0], p.shape[1], p.shape[2])
