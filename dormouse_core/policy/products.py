"""x W^T with the same bits for a row whatever rows stand around it.

An fp32 product on a CPU has that from MIN_ROWS rows on. A bf16 one chooses how to cut the inner dimension, and so the order of its
sums, by the number of rows too: the same row has other bits among 36 rows than among 37. So bf16 rows are multiplied a fixed number
at a time, the last tile filled up with zeros.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BYTE_TILE, WINDOW_TILE, SEGMENT_TILE = 64, 256, 16
"""Rows of a product while decoding, over a window, and of one expert: few where few rows come, many where weights should be read
rarely. A window's rows and a lane's are never compared bit for bit, so their tiles may differ."""


def linear_rows(x_NX: Tensor, w_YX: Tensor, tile: int) -> Tensor:
    """[N, Y]. fp32 products, and those of another device, are left as they are."""
    if x_NX.dtype is not torch.bfloat16 or x_NX.device.type != "cpu":
        return F.linear(x_NX, w_YX)
    parts = F.pad(x_NX, (0, 0, 0, -len(x_NX) % tile)).split(tile)
    if len(parts) == 1:
        return F.linear(parts[0], w_YX)[: len(x_NX)]
    return torch.cat([F.linear(part, w_YX) for part in parts])[: len(x_NX)]
