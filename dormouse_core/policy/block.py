"""The LoopBlock: the one block of weights the policy runs T times, written as two large products around its arms.

With c = h + e_n and n = RMS(c), everything that reads u = n * g_norm is one product of n: q, k, v, the decay bottleneck,
the output gate, beta, the controller, the shared expert's first factor and, when experts are narrow, theirs. Everything
that is added to h is one product too: W_o, W_d, and the last factors of the experts. `Fused` holds the two weight
matrices; it is built from the parameters once a forward (differentiable) and once a weight change for decoding.

    y = w_a KDA(u) + [lam * Engram(n) + (1 - lam) * W_d u] + w_f (shared(u) + sum_i gate_i expert_i(u)),  lam = min(w_m, lam_max)
    h <- c + rho * y
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.policy.depth import muted
from dormouse_core.policy.engram import Engram, agreement
from dormouse_core.policy.entrance import Memory
from dormouse_core.policy.experts import Experts, Factors, Route, Tsct, mix_dense, mix_sorted, mix_wide, route
from dormouse_core.policy.kda import Kda, attend_byte, attend_window
from dormouse_core.policy.norms import rms_normalise, sigmoid_rows, silu_rows
from dormouse_core.policy.products import BYTE_TILE, WINDOW_TILE, linear_rows

GATES = 3
"""Controller columns before the router's: attention, memory, experts."""


def controller_width(config: PolicyConfig) -> int:
    """3 gates and E router scores, padded to a multiple of 4."""
    return -(-(GATES + config.n_experts) // 4) * 4


def narrow(config: PolicyConfig) -> bool:
    """True when all experts' outer factors fit into the block's two products."""
    return config.n_experts * config.rank <= 2 * config.d_model


class LoopBlock(nn.Module):
    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        d, f = config.d_model, config.d_ffn
        self.norm = nn.Parameter(torch.empty(d))
        self.iter_embed = nn.Parameter(torch.empty(config.max_iter, d))
        self.rho = nn.Parameter(torch.empty(()))
        self.controller = nn.Parameter(torch.empty(controller_width(config), 2 * d))
        self.mem_dense = nn.Parameter(torch.empty(d, d))
        self.kda = Kda(config)
        self.engram = Engram(config)
        self.experts = Experts(config)
        self.shared_up = Tsct(d, f, config.shared_rank)
        self.shared_down = Tsct(f, d, config.shared_rank)


class Fused(NamedTuple):
    """The block's weights as a forward uses them; rows of w_in and columns of w_out in the order of `split_in`/`join`."""

    w_in_XD: Tensor
    w_start_PD: Tensor  # the controller's half that reads h_0
    w_decay_DK: Tensor
    b_decay_D: Tensor
    w_out_DX: Tensor
    w_engram_XM: Tensor  # key rows, then value rows times rho
    shared_v_FR: Tensor
    shared_u_FR: Tensor
    factors: Factors
    norm_D: Tensor
    rho: Tensor


def fuse(block: LoopBlock, config: PolicyConfig) -> Fused:
    """Concatenate and fold: norm weights into what reads them, scales into factors, rho into what is added to h.

    Folding copies a factor. Of many experts only the two short factors are copied: the tall ones are most of a large policy.
    """
    kda, experts, d = block.kda, block.experts, config.d_model
    small = narrow(config)
    reads_u: list[Tensor] = [kda.query, kda.key, kda.value, kda.decay_up, kda.gate, kda.beta]
    codes = [(block.shared_up.u * block.shared_up.s).t()]
    shared_out = block.shared_down.scaled_v()
    adds = [kda.out * kda.out_norm.repeat(config.n_heads), block.mem_dense * block.norm, shared_out]
    up_u = experts.up_u * experts.up_s.unsqueeze(1)
    if small:
        codes.append(up_u.transpose(1, 2).reshape(-1, d))
        adds.append(experts.down_v.transpose(0, 1).reshape(d, -1))
    norm_controller = block.controller[:, :d]
    rate_D = kda.rate_D()
    return Fused(
        torch.cat([torch.cat(reads_u) * block.norm, norm_controller, torch.cat(codes) * block.norm]),
        block.controller[:, d:],
        kda.decay_down * rate_D.unsqueeze(1),
        kda.decay_bias * rate_D,
        torch.cat(adds, 1) * block.rho,
        torch.cat([block.engram.key, block.engram.value * block.rho]),
        block.shared_up.v,
        block.shared_down.u,
        Factors(experts.up_v, experts.down_u * experts.down_s.unsqueeze(1), None, None)
        if small
        else Factors(experts.up_v, experts.down_u, up_u, experts.down_v * (experts.down_s * block.rho).unsqueeze(1)),
        block.norm,
        block.rho,
    )


class Reads(NamedTuple):
    """The block's input product, cut into what its arms take. beta and control are fp32 whatever the rest is."""

    qkv: Tensor
    decay: Tensor
    gate: Tensor
    beta: Tensor
    control: Tensor
    shared: Tensor
    code: Tensor


def split_in(n_ND: Tensor, start_NP: Tensor, fused: Fused, config: PolicyConfig, tile: int) -> Reads:
    """Sigmoids are taken together: gate, beta and controller columns lie side by side."""
    d, heads, width = config.d_model, config.n_heads, config.head_dim
    pad = controller_width(config)
    product = linear_rows(n_ND, fused.w_in_XD, tile)
    rest = product.shape[1] - 3 * d - width - d - heads - pad - config.shared_rank
    qkv, decay, gates, shared, code = product.split((3 * d, width, d + heads + pad, config.shared_rank, rest), -1)
    gate, beta, control = gates.split((d, heads, pad), -1)
    control = sigmoid_rows((control + start_NP).float())
    return Reads(qkv, decay, sigmoid_rows(gate), sigmoid_rows(beta.float()), control, shared, code)


def join(
    attended_ND: Tensor, n_ND: Tensor, reads: Reads, memory: Memory, choice: Route, fused: Fused, config: PolicyConfig, dense: bool
) -> tuple[Tensor, Tensor]:
    """All that is added to c, as (rho * lam * memory [N, d] plus wide experts, the input of the output product [N, X])."""
    attention_N1, memory_N1, expert_N1 = reads.control[:, :GATES].to(n_ND.dtype).unsqueeze(-1).unbind(1)
    lam_N1 = memory_N1.clamp_max(config.lam_max)
    added_ND = memory.value_ND * (agreement(memory.key_ND, n_ND) * lam_N1).to(n_ND.dtype)
    tile = BYTE_TILE if dense else WINDOW_TILE
    shared_NR = linear_rows(silu_rows(linear_rows(reads.shared, fused.shared_v_FR, tile)), fused.shared_u_FR.t(), tile)
    parts = [attended_ND * reads.gate * attention_N1, n_ND * (1 - lam_N1), shared_NR * expert_N1]
    if narrow(config):
        code_NER = reads.code.unflatten(-1, (config.n_experts, config.rank))
        mix = mix_dense if dense else mix_sorted
        parts.append(mix(code_NER, choice, fused.factors) * expert_N1)
    else:
        added_ND = added_ND + mix_wide(n_ND * fused.norm_D, choice, fused.factors) * expert_N1
    return added_ND, torch.cat(parts, -1)


def iterate_window(
    h_BLD: Tensor, iteration: int, start_NP: Tensor, memory: Memory, state_BHKV: Tensor, bias_E: Tensor, block: LoopBlock,
    fused: Fused, config: PolicyConfig, past_BL: Tensor | None = None, gate_N1: Tensor | None = None,
) -> tuple[Tensor, Tensor, Route]:
    """One iteration over a window: (h, this iteration's final KDA state, the router's choice). past_BL: True past a row's end.
    gate_N1: share with which each byte runs it (0: it passes unchanged and without a trace); None: all do."""
    batch, length, d = h_BLD.shape
    c_ND = h_BLD.reshape(-1, d) + block.iter_embed[iteration]
    n_ND = rms_normalise(c_ND, config.norm_eps)
    reads = split_in(n_ND, start_NP, fused, config, WINDOW_TILE)
    decay_ND = F.linear(reads.decay.float(), fused.w_decay_DK, fused.b_decay_D)
    decay_ND, beta_NH = (decay_ND, reads.beta) if gate_N1 is None else muted(decay_ND, reads.beta, gate_N1)
    attended_BLD, state = attend_window(
        reads.qkv.unflatten(0, (batch, length)), decay_ND.view(batch, length, d), beta_NH.unflatten(0, (batch, length)),
        state_BHKV, config.chunk, past_BL,
    )
    choice = route(reads.control[:, GATES : GATES + config.n_experts], bias_E, config.moe_topk)
    added_ND, joined_NX = join(attended_BLD.reshape(-1, d), n_ND, reads, memory, choice, fused, config, dense=False)
    h_ND = c_ND + added_ND + linear_rows(joined_NX, fused.w_out_DX, WINDOW_TILE)
    if gate_N1 is not None:
        h_ND = torch.lerp(h_BLD.reshape(-1, d), h_ND, gate_N1.to(h_ND.dtype))
    return h_ND.view(batch, length, d), state, choice


def iterate_byte(
    h_BD: Tensor, iteration: int, start_BP: Tensor, memory: Memory, state_BHKV: Tensor, bias_E: Tensor, block: LoopBlock,
    fused: Fused, config: PolicyConfig, gate_B1: Tensor | None = None,
) -> Tensor:
    """One iteration for one byte a row; the KDA state is updated in place. gate_B1 as in `iterate_window`."""
    c_BD = h_BD + block.iter_embed[iteration]
    n_BD = rms_normalise(c_BD, config.norm_eps)
    reads = split_in(n_BD, start_BP, fused, config, BYTE_TILE)
    decay_BD = F.linear(reads.decay.float(), fused.w_decay_DK, fused.b_decay_D)
    decay_BD, beta_BH = (decay_BD, reads.beta) if gate_B1 is None else muted(decay_BD, reads.beta, gate_B1)
    attended_BD = attend_byte(reads.qkv, decay_BD, beta_BH, state_BHKV)
    choice = route(reads.control[:, GATES : GATES + config.n_experts], bias_E, config.moe_topk)
    added_BD, joined_BX = join(attended_BD, n_BD, reads, memory, choice, fused, config, dense=True)
    if c_BD.dtype is torch.float32:
        after_BD = torch.addmm(c_BD + added_BD, joined_BX, fused.w_out_DX.t())
    else:
        after_BD = c_BD + added_BD + linear_rows(joined_BX, fused.w_out_DX, BYTE_TILE)
    return after_BD if gate_B1 is None else torch.lerp(h_BD, after_BD, gate_B1.to(h_BD.dtype))
