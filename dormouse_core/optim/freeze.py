"""What a rollout and its update must share: the router. Its rows may be frozen, its selection bias is; both have a version.

An importance ratio is a ratio of two policies that route alike. If the selection bias moved between sampling and update, equal
weights give other log-probs, and the ratio blames the weights. RL therefore never calls optim/balance.py; `RouterWatch` proves
it, and that frozen rows stayed too. `lfb_version` counts the bias's moves; the digest names the routing itself, so two
checkpoints of one version from different lines are told apart.
Not here: whether freezing helps (a comparison's to say), replay of a rollout's expert choices.
"""

import hashlib
from typing import NamedTuple, cast

import torch
from torch import Tensor

from dormouse_core.ledger import DormouseError
from dormouse_core.policy.block import GATES
from dormouse_core.policy.model import Policy


def router_rows(policy: Policy) -> slice:
    """Rows of the controller that score experts."""
    return slice(GATES, GATES + policy.config.n_experts)


def gate_rows(policy: Policy) -> Tensor:
    """Numbers of the controller's other rows: the three gates and the padding."""
    controller, rows = policy.block.controller, router_rows(policy)
    keep = torch.ones(controller.shape[0], dtype=torch.bool, device=controller.device)
    keep[rows] = False
    return keep.nonzero().squeeze(1)


class RouterVersion(NamedTuple):
    """balance: how often the selection bias has moved. bias, rows: sha256 of the bias and of the controller's router rows."""

    balance: int
    bias: str
    rows: str

    @property
    def number(self) -> int:
        """63 bits that name this routing: equal exactly where bias and rows are (a table's int64 column)."""
        return int(hashlib.sha256((self.bias + self.rows).encode()).hexdigest()[:16], 16) >> 1


def router_version(policy: Policy) -> RouterVersion:
    """The version of the routing as it is now."""
    bias = cast(Tensor, policy.balance_bias_E)
    return RouterVersion(policy.lfb_version, _digest(bias), _digest(policy.block.controller[router_rows(policy)]))


class RouterWatch:
    """Remembers the routing at the start of a rollout-and-update cycle and refuses to go on when what is frozen has moved."""

    def __init__(self, policy: Policy, rows: bool, bias: bool = True) -> None:
        self._policy, self._rows, self._bias, self.started = policy, rows, bias, router_version(policy)

    def check(self, where: str) -> RouterVersion:
        """The version now. Raises DormouseError naming the frozen part that is no longer what it was."""
        now = router_version(self._policy)
        if self._bias and (now.bias, now.balance) != (self.started.bias, self.started.balance):
            raise DormouseError(
                f"{where}: the router's selection bias moved (balance version {self.started.balance} -> {now.balance}) while it is frozen;"
                " log-probs of trajectories sampled before are no longer this policy's. Balance in pre-training and SFT only, or"
                " sample again after every move."
            )
        if self._rows and now.rows != self.started.rows:
            raise DormouseError(
                f"{where}: the router's rows changed while optimizer.freeze_router is on. Something other than the optimizer wrote into"
                " block.controller; start the stage again from its base."
            )
        return now


def _digest(t: Tensor) -> str:
    raw = t.detach().cpu().contiguous()
    return hashlib.sha256(f"{raw.dtype}{tuple(raw.shape)}".encode() + raw.view(torch.uint8).numpy().tobytes()).hexdigest()
