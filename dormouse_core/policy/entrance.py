"""What bytes bring into the loop: their embedding, the controller's half that reads it, and what the n-gram tables say about them."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from dormouse_core.kernels.engram import gather
from dormouse_core.policy.engram import KEY_EPS, hash_rows
from dormouse_core.policy.norms import rms_normalise
from dormouse_core.policy.products import linear_rows
from dormouse_core.policy.state import CONTEXT


class Memory(NamedTuple):
    """What the n-gram tables say about every byte of a window, the same for all iterations. Both [N, d]; the key has unit RMS."""

    key_ND: Tensor
    value_ND: Tensor


class Entered(NamedTuple):
    """The state before the first iteration, the controller's half that reads it, and the memory."""

    h_BLD: Tensor
    start_NP: Tensor
    memory: Memory


class Entrance(NamedTuple):
    """The weights of it."""

    embedding_VD: Tensor
    table_RM: Tensor
    start_PD: Tensor
    engram_XM: Tensor  # key rows, then value rows

    def of(self, bytes_BX: Tensor, table_rows: int, eps: float, tile: int) -> Entered:
        """bytes_BX: three bytes of context, then the window; int64. table_rows: rows of one order's table."""
        h_BLD = F.embedding(bytes_BX[:, CONTEXT:], self.embedding_VD)
        start_NP = linear_rows(rms_normalise(h_BLD.flatten(0, 1), eps), self.start_PD, tile)
        read_NM = gather(hash_rows(bytes_BX, table_rows).flatten(0, 1), self.table_RM)
        key_ND, value_ND = linear_rows(read_NM, self.engram_XM, tile).chunk(2, -1)
        return Entered(h_BLD, start_NP, Memory(rms_normalise(key_ND, KEY_EPS), value_ND))
