"""Loss-free balancing of the routed experts (2408.15664): the selection bias integrates the sign of the load error.

Once an optimizer step, in pre-training and SFT only: bias_i += u * sign(mean load - load_i), then the mean is taken out.
Loads are hard selections summed over micro-batches and iterations. Below 8 bytes an expert the sign is mostly noise, so
counts are kept until there are enough. RL freezes the bias: a moved bias would change the ratio of equal weights.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from dormouse_core.policy.model import Policy

MIN_MEAN_LOAD = 8
COLD = 0.1
"""An expert with less than this share of the mean load is cold."""


class Load(NamedTuple):
    """The router's instruments, of the counts since the last move: shares of the hard selection, their entropy over
    ln(E) in [0, 1], experts without a byte, coefficient of variation, max over mean minus 1, and the share of experts with
    less than a tenth of the mean load."""

    shares: tuple[float, ...]
    entropy: float
    dead: int
    cv: float
    max_violation: float
    cold: float

    def metrics(self) -> dict[str, float]:
        """As columns of a stage's table (the shares left out)."""
        return {
            "load_cv": self.cv, "load_cold_share": self.cold, "load_dead": float(self.dead), "load_entropy": self.entropy,
            "load_max_violation": self.max_violation,
        }  # fmt: skip


def read_load(load_E: Tensor) -> Load | None:
    """None when nothing was counted: an arm that did not run reports nothing."""
    total = int(load_E.sum())
    if total == 0:
        return None
    share_E = load_E.double() / total
    mean = 1 / len(load_E)
    entropy = float(-torch.special.xlogy(share_E, share_E).sum() / torch.log(torch.tensor(float(len(load_E)))))
    return Load(
        tuple(share_E.tolist()), entropy, int((load_E == 0).sum()), float(share_E.std(correction=0) / mean),
        float(share_E.max() / mean - 1), float((share_E < COLD * mean).double().mean()),
    )  # fmt: skip


@torch.no_grad()
def balance(policy: Policy, step: float) -> Load | None:
    """Move the bias by `step` (PolicyConfig.lfb_step) and clear the counts. Returns what was counted; None when nothing was.

    With fewer than 8 counts an expert, or step 0, the bias stays; with too few, the counts stay too.
    """
    load_E, bias_E = cast(Tensor, policy.load_E), cast(Tensor, policy.balance_bias_E)
    seen = read_load(load_E)
    if seen is None or int(load_E.sum()) < MIN_MEAN_LOAD * len(load_E):
        return seen
    if step > 0:
        error_E = load_E.double().mean() - load_E.double()
        bias_E += step * error_E.sign().float()
        bias_E -= bias_E.mean()
        cast(Tensor, policy.balance_version).add_(1)
    load_E.zero_()
    return seen
