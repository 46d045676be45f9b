"""Writing a file so that a reader sees all of it or none of it, whatever dies in the middle."""

import errno
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dormouse_core.ledger import DormouseError

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up", errno.EFBIG: "the file size limit is reached"}
_TEMPORARY = ".writing-"


def write_atomic(path: Path, data: bytes, previous: Path | None = None) -> None:
    """Write `data` to `path`: a temporary file in the same folder, fsync, rename, fsync of the folder.

    With `previous`, the file that stood at `path` keeps standing there under that name (there is no moment without one).
    Raises DormouseError when the disk is full or the folder refuses; what stood before still stands.
    """
    write_chunks(path, [data], len(data), previous)


def write_chunks(path: Path, chunks: Iterable[bytes | memoryview], size: int, previous: Path | None = None) -> str:
    """`write_atomic` of `size` bytes that come in chunks; returns the file's sha256."""
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{path.name}")
    digest = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            _link_over(path, previous)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise write_error(path, size, error) from error
    return digest.hexdigest()


def write_error(path: Path, size: int, error: OSError) -> DormouseError:
    """The error for a person whose file could not be written."""
    cause = _FULL.get(error.errno or 0, error.strerror or str(error))
    return DormouseError(f"could not write {path} ({size:,} bytes): {cause}. Nothing was left half-written and earlier files still stand: "
                         "make room (or point --store elsewhere) and run the same command again; it resumes where it stopped.")


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(root: Path) -> int:
    """Remove temporary files of writers that are no longer alive; returns how many."""
    swept = 0
    for path in root.rglob(f"{_TEMPORARY}*"):
        writer = path.name.removeprefix(_TEMPORARY).split("-", 1)[0]
        if writer.isdigit() and not alive(int(writer)):
            path.unlink(missing_ok=True)
            swept += 1
    return swept


def alive(pid: int) -> bool:
    """Whether a process of this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _link_over(path: Path, previous: Path) -> None:
    """Give the file at `path` the second name `previous`, replacing what had it."""
    spare = previous.with_name(f"{_TEMPORARY}{os.getpid()}-{previous.name}")
    spare.unlink(missing_ok=True)
    os.link(path, spare)
    os.replace(spare, previous)
