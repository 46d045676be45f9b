"""What several tests of the policy need."""

import torch
from torch import Tensor

from dormouse_core.policy.model import Policy


def some_bytes(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed))


def require_same_bits_in_any_batch(policy: Policy) -> None:
    """A row of 29 bytes, alone and among others of other lengths."""
    row_L = some_bytes(29, seed=1)
    with torch.no_grad():
        alone = policy(row_L[None]).logits_BLV[0]
        for batch, length, at in ((2, 29, 1), (7, 33, 0), (16, 50, 11), (33, 29, 32)):
            crowd = some_bytes(batch, length, seed=batch)
            crowd[at, :29] = row_L
            assert torch.equal(policy(crowd).logits_BLV[at, :29], alone), (batch, length, at)
