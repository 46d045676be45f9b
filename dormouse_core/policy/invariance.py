"""The promise that a row decodes to the same bits whatever else is in the batch, tried on the machine at hand before it is relied on.

CPU products give a row the same bits in every batch of at least MIN_ROWS rows, as far as was measured; another processor, library or
thread count could differ. So the first batch a process decodes at a width is preceded by one comparison: a few rows alone, and among
others at that width.
"""

import torch

from dormouse_core.ledger import Ledger
from dormouse_core.policy.network import Policy
from dormouse_core.seeding import key

BYTES, ROWS = 2, 3
WHAT = "a row's bits do not depend on its batch"
_tried: dict[tuple[str, int, int, str], bool] = {}


@torch.inference_mode()
def invariant(policy: Policy, lanes: int) -> bool:
    """Whether ROWS rows decode to the same bits by themselves and spread over a batch of `lanes`."""
    rng = torch.Generator().manual_seed(key("invariance"))
    crowd_LB = torch.randint(0, 256, (BYTES, lanes), generator=rng)
    chosen = torch.linspace(0, lanes - 1, min(ROWS, lanes)).long()
    device = policy.embedding.device

    def last(ids_LB: torch.Tensor) -> torch.Tensor:
        state = policy.initial_state(ids_LB.shape[1])
        for ids_B in ids_LB.to(device):
            logits_BV, _ = policy.decode(ids_B, state)
        return logits_BV

    return torch.equal(last(crowd_LB)[chosen.to(device)], last(crowd_LB[:, chosen]))


def retest(policy: Policy, lanes: int, ledger: Ledger) -> None:
    """Try once a process, shape and width; count it, and say it aloud where it does not hold."""
    name = (repr(policy.config), lanes, torch.get_num_threads(), str(policy.embedding.device))
    if name not in _tried:
        _tried[name] = invariant(policy, lanes)
    ledger.ask(WHAT, _tried[name])
    if not _tried[name]:
        ledger.loud(f"rollouts: on this machine a row decoded among {lanes} lanes has other bits than alone (torch threads: "
                    f"{torch.get_num_threads()}). Bytes are still sampled from the policy, but the same seed may give others under another "
                    "roll.lanes, and forks may not repeat their trunk. Use one thread (runtime.threads=1), or keep roll.lanes as it is.")
