"""Rows of different lengths in one window: each leaves the state it leaves when it runs alone, to the bit."""

import pytest
import torch

from dormouse_core.config.policy import PolicyConfig
from tests.core.policy.test_model import NANO, TINY, WIDE, lively, some_bytes


@pytest.mark.parametrize("config", [TINY, WIDE, NANO], ids=["tiny", "wide", "nano"])
def test_a_row_leaves_the_state_it_leaves_alone_whatever_longer_rows_stand_beside_it(config: PolicyConfig) -> None:
    policy = lively(config)
    with torch.no_grad():
        for lengths in ([5], [1, 2], [3, 40, 16, 17, 31], list(range(2, 66, 3))):
            ids_BL = some_bytes(len(lengths), max(lengths), seed=len(lengths))
            together = policy(ids_BL, length_B=torch.tensor(lengths))
            for row, length in enumerate(lengths):
                alone = policy(ids_BL[row : row + 1, :length])
                assert together.state.row_bytes(row) == alone.state.row_bytes(0), (lengths, row)
                assert torch.equal(together.logits_BLV[row, :length], alone.logits_BLV[0]), (lengths, row)


def test_a_row_that_ends_goes_on_from_its_own_end() -> None:
    policy, ids_BL = lively(TINY), some_bytes(2, 30)
    with torch.no_grad():
        first = policy(ids_BL, length_B=torch.tensor([9, 30])).state
        byte_B = torch.tensor([7, 7])
        logits_BV, _ = policy.decode(byte_B, first)
        whole = policy(torch.cat((ids_BL[:1, :9], byte_B[:1, None]), 1)).logits_BLV[0, -1]
    torch.testing.assert_close(logits_BV[0], whole, atol=2e-5, rtol=1e-5)
