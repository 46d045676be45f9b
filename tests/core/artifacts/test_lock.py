"""One writer a store."""

import os
import signal
import time
from pathlib import Path

import pytest

from dormouse_core.artifacts.lock import StoreLock
from dormouse_core.ledger import DormouseError


def test_a_second_writer_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    with StoreLock(tmp_path, "loop"), pytest.raises(DormouseError, match=f"pid {os.getpid()} \\(loop\\)"), StoreLock(tmp_path):
        pass


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(3):
        with StoreLock(tmp_path):
            pass


def test_a_store_that_cannot_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(DormouseError, match=r"could not write .*lock"), StoreLock(place):
            pass


def test_two_stores_have_two_locks(tmp_path: Path) -> None:
    with StoreLock(tmp_path / "a"), StoreLock(tmp_path / "b"):
        pass


def test_a_killed_holder_leaves_the_lock_free_even_when_its_child_lives_on(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with StoreLock(tmp_path):
            grandchild = os.fork()
            if grandchild == 0:
                time.sleep(30)
                os._exit(0)
            os.write(write_end, str(grandchild).encode())
            time.sleep(30)
            os._exit(0)
    grandchild = int(os.read(read_end, 32))
    with pytest.raises(DormouseError, match=f"pid {pid}"), StoreLock(tmp_path):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        with StoreLock(tmp_path):
            pass
    finally:
        os.kill(grandchild, signal.SIGKILL)
