"""Splits: which keyed stream a task is drawn from, and the rule by which no training task can equal a measured one.

A draw's seed is HMAC-SHA256 of its names under the split's own key, so streams of two splits share nothing by accident.
Content decides the rest: every problem falls, by the hash of its canonical content, into one bucket of 100; training
takes problems of the first buckets only, frozen and fresh sets of the others, whatever seed drew them.
Not here: which cells a split holds (suites), and how often they are drawn (evolution).
"""

import hashlib
import hmac
from collections.abc import Iterable

from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.task import Split, Task, Use

FROZEN_ROOT = "frozen-1"
"""Root of the frozen split: fixed once. Changing it makes another frozen set, and ends every trend line."""

_BUCKETS = 100
_TRAIN, _FROZEN = range(0, 75), range(75, 83)
_FRESH = range(83, 100)
_ALLOWED = {Split.TRAIN: _TRAIN, Split.FROZEN: _FROZEN, Split.FRESH: _FRESH, Split.BEYOND: _FRESH, Split.UNSEEN: _FRESH}


def split_seed(split: Split, family: str, difficulty: int, index: int, root: str) -> int:
    """The 63-bit seed of draw `index` of a cell. root: the run's seed for TRAIN, the candidate's identity for FRESH, BEYOND
    and UNSEEN, ignored for FROZEN."""
    root = FROZEN_ROOT if split is Split.FROZEN else root
    names = [part.encode() for part in (family, str(difficulty), str(index), root)]
    message = b"".join(len(n).to_bytes(4, "little") + n for n in names)
    digest = hmac.new(b"dormouse task split " + split.value.encode(), message, hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def bucket(family: str, content: str) -> int:
    """Bucket in [0, 100) of one problem's canonical content."""
    return int.from_bytes(hashlib.sha256(f"{family}\0{content}".encode()).digest()[:8], "little") % _BUCKETS


def admits(split: Split, family: str, content: str) -> bool:
    """True where a problem of this content may be drawn by `split`. Raises ValueError for PUBLIC, which is loaded, not drawn."""
    if split not in _ALLOWED:
        raise ValueError(f"split {split} is loaded from files, not drawn")
    return bucket(family, content) in _ALLOWED[split]


def require_trainable(tasks: Iterable[Task], where: str) -> None:
    """Raises DormouseError naming the first tasks that may only be measured on, never trained on."""
    refused = [t for t in tasks if t.use is not Use.TRAIN or t.split not in (Split.TRAIN, Split.PUBLIC)]
    if refused:
        shown = ", ".join(f"{t.cell} {t.id[:12]} ({t.split}, use: {t.use})" for t in refused[:3])
        raise DormouseError(
            f"{where} refuses {len(refused)} task(s) that are for evaluation only: {shown}. Training on them would make every later "
            f"measurement a lie; draw tasks of the train split, or load the training part of the data set")
