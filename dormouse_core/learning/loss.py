"""How credit meets log-probabilities: step-level ratio, exact byte KL, entropy, value (docs/mechanisms/{step-ratio,prompt-mean}.md).

policy   - sum_S w_S min(r A, clip(r, 1 - c, 1 + c) A), r_S = exp(mean over the step's bytes of log pi - log mu)
KL       + kl * sum over the same bytes of the exact KL(pi || base) over the action distribution's support
entropy  - entropy * sum over the same bytes of H(pi)
value    + value * sum_S v_S (V(s) - target)^2 / 2, its input detached: it moves the value head alone
All log-probs are of the sampled distribution (temperature and support applied). The weights w, v come with the batch.
Not here: where credit comes from (advantage.py); dead groups, which are not in the batch and so take no KL either.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dormouse_core.config.stages import RlConfig
from dormouse_core.encoding import POLICY_MAY_WRITE
from dormouse_core.learning.batches import StepBatch, TextBatch
from dormouse_core.ledger import Ledger
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, PolicyOutput

SUPPORT = np.flatnonzero(POLICY_MAY_WRITE)
"""[U] byte values the policy may write: the columns a KL or entropy is summed over."""
RATIO_LIMIT = 20.0
"""A step whose mean log-ratio is beyond this blew up: the update is not to be used."""


@dataclass(frozen=True, slots=True)
class LossWeights:
    """The scalars of the RL loss, as plain values that travel to a worker."""

    clip: float
    kl: float
    entropy: float
    value: float

    @classmethod
    def of(cls, config: RlConfig) -> "LossWeights":
        return cls(config.clip, config.kl, config.entropy, config.value)


def announce(config: RlConfig, ledger: Ledger) -> None:
    """One loud line for each part of the loss that is switched off."""
    if config.kl == 0:
        ledger.loud("rl: KL to the cycle's base is off (rl.kl = 0)")
    if config.clip == 0:
        ledger.loud("rl: the step-ratio clip is off (rl.clip = 0)")
    if config.aggregation != "prompt_mean":
        ledger.loud(f"rl: loss is averaged by {config.aggregation}, not by prompt")


def forward(policy: Policy, batch: StepBatch) -> tuple[Tensor, Tensor]:
    """(log-probs over the support at every written byte [X, U], hidden at every step boundary [S, D])."""
    out: PolicyOutput = policy(torch.from_numpy(batch.ids_BL).long())
    before = torch.from_numpy(batch.position_X - 1)
    logits_XV = out.logits_BLV[torch.from_numpy(batch.row_X), before]
    log_probs_XV = action_log_probs(logits_XV, batch.temperature)
    hidden_SD = out.hidden_BLD[torch.from_numpy(batch.row_S), torch.from_numpy(batch.boundary_S)]
    return log_probs_XV[:, torch.from_numpy(SUPPORT)], hidden_SD


def written(log_probs_XU: Tensor, batch: StepBatch) -> Tensor:
    """Log-prob [X] of the byte that was written at each place. A byte outside the support was never the policy's: ValueError."""
    column = np.full(256, -1, dtype=np.int64)
    column[SUPPORT] = np.arange(len(SUPPORT))
    at_X = column[batch.ids_BL[batch.row_X, batch.position_X]]
    if np.any(at_X < 0):
        raise ValueError("a step holds a role tag, which the policy cannot have written")
    return log_probs_XU.gather(1, torch.from_numpy(at_X)[:, None])[:, 0]


def rl_loss(policy: Policy, batch: StepBatch, weights: LossWeights, base_XU: Tensor | None) -> tuple[Tensor, dict[str, float]]:
    """(this micro-batch's part of the loss of the whole batch, sums for the report).

    base_XU: log-probs of the cycle's base on the same bytes (`forward`); needed where weights.kl > 0.
    Report: `*_sum` values add over micro-batches; `*_max` values take the maximum.
    """
    log_probs_XU, hidden_SD = forward(policy, batch)
    step_X, bytes_S = torch.from_numpy(batch.step_X), torch.from_numpy(batch.bytes_S)
    gap_X = written(log_probs_XU, batch) - torch.from_numpy(batch.sampled_X)
    log_ratio_S = torch.zeros_like(bytes_S).index_add(0, step_X, gap_X) / bytes_S
    ratio_S, advantage_S = log_ratio_S.exp(), torch.from_numpy(batch.advantage_S)
    free_S = ratio_S * advantage_S
    held_S = ratio_S.clamp(1 - weights.clip, 1 + weights.clip) * advantage_S if weights.clip else free_S
    weight_S = torch.from_numpy(batch.weight_S)
    policy_term = -(weight_S * torch.minimum(free_S, held_S)).sum()
    byte_weight_X = (weight_S / bytes_S)[step_X]
    entropy_X = -(log_probs_XU.exp() * log_probs_XU).sum(1)
    loss = policy_term - weights.entropy * (byte_weight_X * entropy_X).sum() if weights.entropy else policy_term
    report = {"policy_sum": policy_term.item(), "entropy_sum": entropy_X.sum().item(), "bytes_sum": float(len(step_X)),
              "steps_sum": float(len(bytes_S)), "clipped_sum": float((held_S < free_S).sum()),
              "log_ratio_max": log_ratio_S.detach().abs().max().item(), "byte_gap_max": gap_X.detach().abs().max().item()}
    if weights.kl:
        if base_XU is None:
            raise ValueError("KL needs the base's log-probs")
        kl_X = (log_probs_XU.exp() * (log_probs_XU - base_XU)).sum(1)
        loss = loss + weights.kl * (byte_weight_X * kl_X).sum()
        report["kl_sum"] = kl_X.sum().item()
    if weights.value:
        target_S, share_S = torch.from_numpy(batch.value_S), torch.from_numpy(batch.value_weight_S)
        value_S = policy.value(hidden_SD.detach())
        loss = loss + weights.value * 0.5 * (share_S * (value_S - target_S).square()).sum()
        error_S = (value_S.detach() - target_S)[share_S > 0]
        labels_S = target_S[share_S > 0]
        report |= {"value_error_sum": error_S.square().sum().item(), "value_label_sum": labels_S.sum().item(),
                   "value_square_sum": labels_S.square().sum().item(), "value_sum": float(len(labels_S))}
    return loss, report


def text_loss(policy: Policy, batch: TextBatch, deep_weight: float) -> tuple[Tensor, dict[str, float]]:
    """Next-byte loss on the action distribution at temperature 1, weights as in the batch, plus deep_weight times the mean
    over iterations of the same loss on each iteration's own readout. Logits are taken at target bytes only."""
    weight_BL = batch.weight_BL + batch.observation_BL
    row_X, position_X = np.nonzero(weight_BL)
    weight_X = torch.from_numpy(weight_BL[row_X, position_X])
    at_X = torch.from_numpy(batch.ids_BL[row_X, position_X]).long()
    row, before = torch.from_numpy(row_X), torch.from_numpy(position_X - 1)
    out: PolicyOutput = policy(torch.from_numpy(batch.ids_BL).long(), deep=deep_weight > 0)

    def mean(logits_BLV: Tensor) -> Tensor:
        return -(weight_X * action_log_probs(logits_BLV[row, before]).gather(1, at_X[:, None])[:, 0]).sum()

    loss = mean(out.logits_BLV)
    report = {"text_sum": loss.item(), "text_bytes_sum": float(np.count_nonzero(batch.weight_BL))}
    if out.deep_TBLV is not None:
        loss = loss + deep_weight * torch.stack([mean(logits) for logits in out.deep_TBLV]).mean()
    return loss, report
