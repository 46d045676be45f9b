"""Engram: hashed n-gram tables read at a fixed address (2601.07372). The content learns, the address never does.

For orders 2, 3, 4 the last n bytes are hashed (FNV-1a, 64 bit, standard offset and prime) into a table of R rows. The
rows are projected to a key and a value once a window; an iteration only re-weighs the value by how the key agrees with
its state. The caller bounds the branch (the memory floor, policy/block.py).
Three bytes of left context travel in `State`, so windows and byte-at-a-time decoding read the same rows.
"""

import math
from functools import cache

import torch
from torch import Tensor, nn

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.policy.norms import sigmoid_rows
from dormouse_core.policy.state import CONTEXT

ORDERS = (2, 3, 4)
KEY_EPS = 1e-5
"""Epsilon of the key's RMS normalisation: rows start at std 0.02, so the block's 1e-3 would mute the key."""


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


FNV_OFFSET = _signed(14695981039346656037)
FNV_PRIME = 1099511628211


class Engram(nn.Module):
    """Parameters: rows [3 * R, m] (one table an order, stacked), key [d, 3m], value [d, 3m]."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        width = len(ORDERS) * config.engram_dim
        self.rows = nn.Parameter(torch.empty(len(ORDERS) * config.engram_rows, config.engram_dim))
        self.key = nn.Parameter(torch.empty(config.d_model, width))
        self.value = nn.Parameter(torch.empty(config.d_model, width))


@cache
def _constants(n_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(digest after one byte [256], first row of each order's table [3])."""
    first_V = (torch.arange(256, device=device) ^ FNV_OFFSET) * FNV_PRIME
    return first_V, torch.arange(len(ORDERS), device=device) * n_rows


def hash_rows(bytes_BX: Tensor, n_rows: int) -> Tensor:
    """bytes_BX int64 [B, 3 + L], the first three being left context. Returns row numbers [B, L, 3] into the stacked tables.

    The three orders advance together: each starts at its oldest byte, the longer ones absorb theirs first.
    """
    length = bytes_BX.shape[1] - CONTEXT
    first_V, offset_3 = _constants(n_rows, bytes_BX.device)
    lag = [bytes_BX[:, CONTEXT - n : CONTEXT - n + length].unsqueeze(-1) for n in range(CONTEXT + 1)]
    digest_BL3 = first_V[torch.cat(lag[1:], -1)]
    for n in range(CONTEXT - 1, -1, -1):
        digest_BL3[..., n:].bitwise_xor_(lag[n]).mul_(FNV_PRIME)
    return digest_BL3.bitwise_and_(n_rows - 1).add_(offset_3)


def agreement(key_ND: Tensor, state_ND: Tensor) -> Tensor:
    """The gate [N, 1]: sigmoid of the signed square root of <key, state> / sqrt(d); both arrive RMS-normalised. fp32."""
    s_N1 = (key_ND * state_ND).sum(-1, keepdim=True, dtype=torch.float32) / math.sqrt(key_ND.shape[-1])
    return sigmoid_rows(s_N1.sign() * s_N1.abs().clamp_min(1e-6).sqrt())
