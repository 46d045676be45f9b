"""One writer a store, held once a process: `dormouse loop` keeps the lock over all its runs, a run of the UI over itself."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dormouse_core.artifacts.lock import StoreLock

_HELD: dict[Path, int] = {}


@contextmanager
def hold_store(store: Path, what: str = "loop") -> Iterator[None]:
    """Hold the store's lock; free to enter again in the process that holds it. Raises DormouseError naming another holder."""
    store = store.resolve()
    if _HELD.get(store):
        _HELD[store] += 1
        try:
            yield
        finally:
            _HELD[store] -= 1
        return
    with StoreLock(store, what):
        _HELD[store] = 1
        try:
            yield
        finally:
            del _HELD[store]


def holder_of(store: Path) -> str | None:
    """Who holds the store's lock in another process, or None when nobody does."""
    if _HELD.get(store.resolve()):
        return "this process"
    path = store / "lock"
    if not path.exists():
        return None
    with open(path, encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().strip() or "another process"
    return None
