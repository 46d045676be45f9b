"""SFT rows as streams with their masks, and which of them are held out.

Not here: what rows there are (demonstrations.py), batching (batches.py).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dormouse_core.encoding import TAG, Role, Span, render
from dormouse_core.ledger import DormouseError

_OBSERVATION = TAG[Role.OBSERVATION][0]
_TAGS = np.array(sorted(tag[0] for tag in TAG.values()), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Rows:
    """Parallel lists, one entry a row of L bytes: stream_L uint8, mask_L bool (targets), observed_L bool (observation content)."""

    streams: list[np.ndarray]
    masks: list[np.ndarray]
    observed: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.streams)

    def lengths(self) -> list[int]:
        return [len(s) for s in self.streams]

    def pick(self, rows: Sequence[int] | np.ndarray) -> "Rows":
        return Rows([self.streams[i] for i in rows], [self.masks[i] for i in rows], [self.observed[i] for i in rows])

    def target_bytes(self) -> int:
        return sum(int(m.sum()) for m in self.masks)


def rendered(conversations: Sequence[Sequence[Span]], every_span: bool = False) -> Rows:
    """Render conversations and check every mask: a row with nothing to learn, or nothing to learn it from, is refused.

    Raises DormouseError naming the first such row.
    """
    rows = Rows([], [], [])
    for number, spans in enumerate(conversations):
        stream, mask_L = render(spans, every_span)
        if not mask_L.any() or mask_L.all():
            what = "no byte" if not mask_L.any() else "every byte"
            raise DormouseError(f"SFT row {number} ({stream[:48]!r}) has {what} under loss: its mask is all {int(mask_L.any())}. A row "
                                "needs an assistant span, and something before it; look at it with --show-mask and correct or drop it.")
        stream_L = np.frombuffer(stream, dtype=np.uint8)
        rows.streams.append(stream_L)
        rows.masks.append(mask_L)
        rows.observed.append(observation_mask(stream_L) & ~mask_L)
    return rows


def observation_mask(stream_L: np.ndarray) -> np.ndarray:
    """True at the content bytes of observation spans: bytes whose last role tag is the observation's."""
    is_tag_L = np.isin(stream_L, _TAGS)
    last_L = np.maximum.accumulate(np.where(is_tag_L, np.arange(len(stream_L)), 0))
    return ~is_tag_L & (stream_L[last_L] == _OBSERVATION)


def heldout_side(rows: Rows, share: float) -> np.ndarray:
    """[N] bool, True for held-out rows. A row's side is a function of its bytes alone, so equal rows never straddle.

    Raises DormouseError where a side would be empty.
    """
    points = [int.from_bytes(hashlib.sha256(s.tobytes()).digest()[:8], "little") for s in rows.streams]
    out = np.array([p < share * 2.0**64 for p in points], dtype=bool)
    if out.all() or not out.any():
        side = "no training" if out.all() else "no held-out"
        raise DormouseError(f"{len(rows)} SFT rows at sft.heldout_share = {share} leave {side} rows; give more rows or another share.")
    return out


SCHEMA = pa.schema([
    ("row", pa.int32()), ("kind", pa.string()), ("pool", pa.string()), ("cell", pa.string()), ("task_id", pa.string()),
    ("long", pa.bool_()), ("heldout", pa.bool_()), ("stream", pa.binary()), ("mask", pa.binary()), ("observed", pa.binary()),
])
KEYS = ("row",)


def to_table(rows: Rows, about: Mapping[str, Sequence[object]], heldout_N: np.ndarray) -> pa.Table:
    """Rows with what they are (`about`: kind, pool, cell, task_id, long) and their side; masks are one byte a byte."""
    columns = dict(about) | {
        "row": list(range(len(rows))), "heldout": heldout_N.tolist(), "stream": [s.tobytes() for s in rows.streams],
        "mask": [m.tobytes() for m in rows.masks], "observed": [o.tobytes() for o in rows.observed]}
    return pa.table([pa.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)


def training_rows(table: pa.Table) -> Rows:
    """The training side of a stored demonstration table."""
    kept = table.filter(pc.invert(table["heldout"]))
    return Rows([np.frombuffer(b, dtype=np.uint8) for b in kept["stream"].to_pylist()],
                [np.frombuffer(b, dtype=bool) for b in kept["mask"].to_pylist()],
                [np.frombuffer(b, dtype=bool) for b in kept["observed"].to_pylist()])
