"""Text to pretrain on, with its held-out side carved by file before anything is read for training.

`stdlib` is the running Python's own sources; what lies below a `test`, `tests` or `idle_test` folder is held out. A folder of
your own holds out a tenth of its files, chosen by the hash of their paths. A file whose content stands on both sides stays on
the training side only. Content is escaped, so a corpus can never teach a structural byte as text.
"""

import hashlib
import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dormouse_core import seeding
from dormouse_core.encoding import escape
from dormouse_core.ledger import DormouseError, Ledger

HELD_OUT_FOLDERS = frozenset({"test", "tests", "idle_test"})
_NOT_SOURCES = frozenset({"site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True)
class Corpus:
    """Stream bytes of the two sides; files are joined by a newline."""

    name: str
    train_N: np.ndarray  # uint8
    heldout_M: np.ndarray  # uint8
    train_files: int
    heldout_files: int

    @property
    def sha256(self) -> str:
        """Names the text itself: a resumed run must find the same."""
        return hashlib.sha256(self.train_N.tobytes() + b"\x00" + self.heldout_M.tobytes()).hexdigest()


def load(data: str, ledger: Ledger) -> Corpus:
    """The corpus of `stdlib` or of a folder. Raises DormouseError when there is no such folder or one side is empty."""
    if data == "stdlib":
        train, heldout = _stdlib()
    else:
        train, heldout = _folder(Path(data), ledger)
    seen: set[bytes] = set()
    train_text = [text for text in map(_read, train) if _first(text, seen)]
    heldout_text = [text for text in map(_read, heldout) if _first(text, seen)]
    ledger.count("corpus_duplicates_dropped", len(train) + len(heldout) - len(train_text) - len(heldout_text))
    if not any(train_text) or not any(heldout_text):
        raise DormouseError(f"--data {data}: nothing left on the {'held-out' if any(train_text) else 'training'} side "
                            f"({len(train_text)} files to train on, {len(heldout_text)} held out). Give a folder of at least two different "
                            "text files.")
    return Corpus(data, _join(train_text), _join(heldout_text), len(train_text), len(heldout_text))


def batch_offsets(length: int, window: int, batch: int, seed: int, step: int) -> np.ndarray:
    """Where the windows of a step start in the training text: int64 [batch], a function of (seed, step) alone."""
    stream_B = np.full(batch, seeding.key("pretrain", seed), dtype=np.int64)
    uniform_B = seeding.uniform(stream_B, np.full(batch, step), np.arange(batch))
    return (uniform_B * (length - window + 1)).astype(np.int64)


def windows(text_N: np.ndarray, offset_B: np.ndarray, window: int) -> np.ndarray:
    """int64 [B, window] of text from each offset on."""
    return text_N[offset_B[:, None] + np.arange(window)].astype(np.int64)


def fixed_windows(text_N: np.ndarray, count: int, window: int, which: str) -> np.ndarray:
    """The same `count` windows at every call, spread evenly over a text, not overlapping: int64 [count, window].

    Raises DormouseError when the text is too short for them.
    """
    if count * window > len(text_N):
        raise DormouseError(f"the {which} text has {len(text_N):,} bytes and the fixed window needs {count * window:,}: lower "
                            "train.eval_batches, train.batch or train.seq_len, or give more text.")
    starts = np.floor(np.linspace(0, len(text_N) - window, count)) if count > 1 else np.zeros(1)
    return windows(text_N, starts.astype(np.int64), window)


def _stdlib() -> tuple[list[Path], list[Path]]:
    root = Path(sysconfig.get_path("stdlib"))
    sources = [p for p in sorted(root.rglob("*.py")) if not _NOT_SOURCES & set(p.relative_to(root).parts)]
    heldout = [p for p in sources if HELD_OUT_FOLDERS & set(p.relative_to(root).parts[:-1])]
    held = set(heldout)
    if not sources or not heldout:
        raise DormouseError(f"the standard library at {root} has {len(sources)} sources, {len(heldout)} of them in test folders, which are "
                            "held out: this Python is packaged without them. Use another Python, or --data FOLDER with text of your own.")
    return [p for p in sources if p not in held], heldout


def _folder(root: Path, ledger: Ledger) -> tuple[list[Path], list[Path]]:
    if not root.is_dir():
        raise DormouseError(f"--data {root}: no such folder. Give a folder of text files, or leave it out for Python's own sources.")
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and not any(part.startswith(".") for part in p.relative_to(root).parts)]
    text = [p for p in files if not _binary(p)]
    ledger.count("corpus_binary_skipped", len(files) - len(text))
    if len(text) < len(files):
        ledger.loud(f"corpus {root}: {len(files) - len(text)} of {len(files)} files hold NUL bytes and were left out as binary")
    by_hash = sorted(text, key=lambda p: hashlib.sha256(p.relative_to(root).as_posix().encode()).digest())
    held = set(by_hash[: math.ceil(len(by_hash) / 10)] if len(by_hash) > 1 else [])
    return [p for p in text if p not in held], [p for p in text if p in held]


def _binary(path: Path) -> bool:
    return b"\x00" in _read(path)[:8192]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DormouseError(f"cannot read {path}: {error.strerror}. Text that cannot be read stops the run: make it readable or move it "
                            "out of the folder.") from error


def _first(text: bytes, seen: set[bytes]) -> bool:
    """Whether this content is seen for the first time."""
    digest = hashlib.sha256(text).digest()
    fresh = digest not in seen
    seen.add(digest)
    return fresh


def _join(texts: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"\n".join(map(escape, texts)), dtype=np.uint8)
