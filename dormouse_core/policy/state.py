"""State: all a sequence leaves behind. Constant in its length, so forking at any byte is one copy.

One KDA stream per iteration of the loop (carrying it from one iteration to the next would leak the future) and the last
three bytes, which the n-gram memory hashes together with the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MIN_ROWS = 16
"""CPU products x W^T give a row the same bits in every batch of at least 16 rows, and other bits in smaller ones (measured
for inner widths up to 5,632; the policy's tests measure it again)."""
CONTEXT = 3
"""Bytes of left context: the longest n-gram order minus one."""

Rows = Tensor | Sequence[int]


def _index(rows: Rows, of: Tensor) -> Tensor:
    """Row numbers as int64 on the device of the tensor they index."""
    return rows.to(of.device) if isinstance(rows, Tensor) else torch.tensor(rows, dtype=torch.int64, device=of.device)


@dataclass(slots=True)
class State:
    """Decode state of `batch` sequences. Storage is padded to 16 rows; the padding is never read back."""

    kda_TBHKV_padded: Tensor
    """[T, max(B, 16), H, K, V] fp32."""
    tail_B3_padded: Tensor
    """[max(B, 16), 3] int64: the last three bytes, oldest first; 0 before the first byte of a sequence."""
    batch: int

    @classmethod
    def zeros(cls, batch: int, iterations: int, heads: int, width: int, device: torch.device | str = "cpu") -> "State":
        rows = max(batch, MIN_ROWS)
        return cls(
            torch.zeros(iterations, rows, heads, width, width, device=device),
            torch.zeros(rows, CONTEXT, dtype=torch.int64, device=device),
            batch,
        )

    @property
    def kda_BTHKV(self) -> Tensor:
        """View of the KDA streams, rows first."""
        return self.kda_TBHKV_padded[:, : self.batch].transpose(0, 1)

    @property
    def tail_B3(self) -> Tensor:
        return self.tail_B3_padded[: self.batch]

    def copy_(self, dst_rows: Rows, src: "State", src_rows: Rows) -> "State":
        """Overwrite rows of this state with rows of another one (or of itself): a fork, a hand-off, a lane refill. The two may be
        on different devices."""
        for held, given, dim in ((self.kda_TBHKV_padded, src.kda_TBHKV_padded, 1), (self.tail_B3_padded, src.tail_B3_padded, 0)):
            held.index_copy_(dim, _index(dst_rows, held), given.index_select(dim, _index(src_rows, given)).to(held.device))
        return self

    def reset_(self, rows: Rows) -> "State":
        """Rows become the state before the first byte."""
        index = _index(rows, self.kda_TBHKV_padded)
        self.kda_TBHKV_padded.index_fill_(1, index, 0.0)
        self.tail_B3_padded.index_fill_(0, index, 0)
        return self

    def select(self, rows: Rows) -> "State":
        """A new state that holds copies of the given rows, in that order."""
        _, _, heads, width, _ = self.kda_TBHKV_padded.shape
        fresh = State.zeros(len(rows), len(self.kda_TBHKV_padded), heads, width, self.kda_TBHKV_padded.device)
        return fresh.copy_(range(len(rows)), self, rows)

    def first(self, rows: int) -> "State":
        """The first rows, in the same memory: what moves here moves there. Of fewer than 16 rows, those up to the sixteenth are padding."""
        stored = max(rows, MIN_ROWS)
        return State(self.kda_TBHKV_padded[:, :stored], self.tail_B3_padded[:stored], rows)

    def clone(self) -> "State":
        return State(self.kda_TBHKV_padded.clone(), self.tail_B3_padded.clone(), self.batch)

    def detach(self) -> "State":
        return State(self.kda_TBHKV_padded.detach(), self.tail_B3_padded, self.batch)

    def row_bytes(self, i: int) -> bytes:
        """Row i as bytes: [T, H, K, V] fp32 little-endian, then the tail, one byte each."""
        if not 0 <= i < self.batch:
            raise IndexError(f"row {i} of a state with {self.batch} rows")
        streams = self.kda_TBHKV_padded[:, i].detach().cpu().contiguous().numpy()
        return streams.astype("<f4", copy=False).tobytes() + bytes(self.tail_B3_padded[i].tolist())

    @classmethod
    def from_bytes(cls, rows: Sequence[bytes], iterations: int, heads: int, width: int, device: torch.device | str = "cpu") -> "State":
        """Inverse of `row_bytes` for a batch of rows. Raises ValueError where a row has another length."""
        state = cls.zeros(len(rows), iterations, heads, width, device)
        size = 4 * iterations * heads * width * width
        for i, row in enumerate(rows):
            if len(row) != size + CONTEXT:
                raise ValueError(f"row {i} holds {len(row)} bytes, a state of this policy {size + CONTEXT}")
            streams = np.frombuffer(row, dtype="<f4", count=size // 4).astype(np.float32)
            state.kda_TBHKV_padded[:, i] = torch.from_numpy(streams).view(iterations, heads, width, width)
            state.tail_B3_padded[i] = torch.tensor(list(row[size:]), dtype=torch.int64)
        return state
