"""What is read off the loop: the action distribution, and the value, Q and depth-router heads.

`action_log_probs` is the one distribution of the product: sampling, SFT, RL and evaluation all use it, so the log-prob a
trainer recomputes is the log-prob a sampler stored.
"""

from functools import cache

import torch
from torch import Tensor, nn

from dormouse_core.encoding import POLICY_MAY_WRITE


class LinearHead(nn.Module):
    """w . hidden + b, one number a position, fp32."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(()))

    def forward(self, hidden_XD: Tensor) -> Tensor:
        return hidden_XD.float() @ self.weight.float() + self.bias.float()


@cache
def _forbidden_V(device: torch.device) -> Tensor:
    """0 where the policy may write, -inf at the role tags."""
    forbidden = torch.zeros(len(POLICY_MAY_WRITE))
    forbidden[torch.from_numpy(~POLICY_MAY_WRITE)] = float("-inf")
    return forbidden.to(device)


def action_log_probs(logits_XV: Tensor, temperature: float = 1.0) -> Tensor:
    """fp32 log-probabilities over the bytes the policy may write; the role tags get -inf."""
    if not temperature > 0:
        raise ValueError(f"temperature {temperature} must be positive; greedy choice is an argmax over the log-probs")
    logits_XV = logits_XV.float() if temperature == 1.0 else logits_XV.float() / temperature
    return torch.log_softmax(logits_XV + _forbidden_V(logits_XV.device), -1)


def entropy(log_probs_XV: Tensor) -> Tensor:
    """Entropy in nats of the distribution `action_log_probs` returned; bytes without mass add nothing."""
    return -(log_probs_XV.exp() * log_probs_XV.masked_fill(log_probs_XV == float("-inf"), 0.0)).sum(-1)
