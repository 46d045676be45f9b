"""One writer a store: a second `loop` on the same folder is told who holds it, instead of interleaving with it."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from dormouse_core.artifacts.atomic import sweep, write_error
from dormouse_core.ledger import DormouseError


class StoreLock:
    """Context manager. The kernel releases the lock when the holder dies, however it dies; forked children never inherit it."""

    def __init__(self, root: Path, what: str = "loop") -> None:
        self._path = Path(root) / "lock"
        self._what = what
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        """Take the lock and sweep up after dead writers. Raises DormouseError naming the holder, or why the file cannot be written."""
        holding = f"pid {os.getpid()} ({self._what})\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._take(holding)
        except OSError as error:
            raise write_error(self._path, len(holding), error) from error
        os.register_at_fork(after_in_child=self._forget)
        sweep(self._path.parent)
        return self

    def _take(self, holding: str) -> None:
        file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115 - held open as long as the lock is
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise DormouseError(f"the store {self._path.parent} is in use by {holder}. Wait for it, stop it (it resumes where it stopped), "
                                "or give this run its own --store.") from error
        file.truncate(0)
        file.write(holding)
        file.flush()
        self._file = file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None

    def _forget(self) -> None:
        """In a forked child: drop the descriptor, or an orphan would keep its dead parent's lock."""
        if self._file is not None:
            self._file.close()
            self._file = None
