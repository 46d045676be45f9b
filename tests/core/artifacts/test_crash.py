"""Whatever dies in the middle of a write, what stood before still stands and loads."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dormouse_core.artifacts import atomic
from dormouse_core.artifacts.journal import StageJournal
from dormouse_core.artifacts.provenance import Kind
from dormouse_core.artifacts.store import Store
from dormouse_core.ledger import DormouseError, Ledger
from tests.core.artifacts.made import Note, checkpoint, provenance


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; its wait status. The child never returns into pytest."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child must not unwind into the test runner
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def save(store: Store, fill: float, size: int = 4) -> None:
    store.save_resume("stage", checkpoint(fill, size=size), provenance(Kind.CHECKPOINT))


def loaded(store: Store) -> float:
    """Fill of the resume file, which must load without a fallback."""
    ledger = Ledger()
    found = store.load_resume("stage", ledger)
    assert found is not None and not ledger.lines
    return float(found.model["w"][0, 0])


def kill_at_line(number: int) -> None:
    """SIGKILL this process at the number-th line executed in atomic.py."""
    seen = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != atomic.__file__:
            return None
        if event == "line":
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def test_sigkill_at_any_line_of_a_save_leaves_a_loadable_checkpoint(store: Store) -> None:
    save(store, 1.0)
    save(store, 2.0)
    killed, number = 0, 0
    while True:
        number += 1

        def work(number: int = number) -> None:
            kill_at_line(number)
            save(store, 3.0)

        status = in_child(work)
        assert loaded(store) in (2.0, 3.0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0 and loaded(store) == 3.0
            break
        killed += 1
        save(store, 2.0)
    assert killed >= 15, "the save has fewer lines to die at than it has steps"


def test_sigkill_at_any_moment_of_a_large_save_leaves_a_loadable_checkpoint(store: Store) -> None:
    save(store, 0.0)
    size = 300_000  # 3.6 MB of weights: most of a save is inside write and fsync
    for attempt in range(12):
        pid = os.fork()
        if pid == 0:
            try:
                while True:
                    save(store, 1.0 + attempt, size)
            finally:
                os._exit(1)
        time.sleep(0.01 + 0.013 * attempt)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert 0.0 <= loaded(store) <= 1.0 + attempt


def test_a_killed_put_leaves_no_artifact_and_its_litter_is_swept(store: Store) -> None:
    def work() -> None:
        kill_at_line(6)
        store.put_record(Note(text="x"), provenance(Kind.CURRICULUM))

    assert os.WIFSIGNALED(in_child(work))
    litter = [p.name for p in store.root.rglob("*") if p.is_file()]
    assert litter and all(name.startswith(".writing-") for name in litter)
    assert atomic.sweep(store.root) == len(litter)
    assert not [p for p in store.root.rglob("*") if p.is_file()]


def test_a_living_writers_temporary_file_is_not_swept(store: Store) -> None:
    store.root.mkdir()
    (store.root / f".writing-{os.getpid()}-x.bin").write_bytes(b"half")
    assert atomic.sweep(store.root) == 0


def test_the_file_size_limit_stops_a_save_with_the_cause_and_leaves_the_one_before(store: Store) -> None:
    save(store, 1.0)
    before = sorted(store.root.rglob("*"))

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            save(store, 2.0, size=4000)
        except DormouseError as error:
            assert "file size limit" in str(error) and "resumes where it stopped" in str(error)
        else:
            raise AssertionError("the limit was not met")

    assert in_child(work) == 0
    assert loaded(store) == 1.0
    assert sorted(store.root.rglob("*")) == before


FULL_DISK = """
import sys
from pathlib import Path
from dormouse_core.artifacts.journal import StageJournal
from dormouse_core.artifacts.provenance import Kind
from dormouse_core.artifacts.store import Store
from dormouse_core.ledger import DormouseError, Ledger
from tests.core.artifacts.made import checkpoint, provenance
store = Store(Path(sys.argv[1]))
store.save_resume("stage", checkpoint(1.0), provenance(Kind.CHECKPOINT))
before = sorted(p.name for p in store.root.rglob("*"))
try:
    store.save_resume("stage", checkpoint(2.0, size=50_000), provenance(Kind.CHECKPOINT))
    sys.exit("no error")
except DormouseError as error:
    assert "the disk is full" in str(error), error
assert sorted(p.name for p in store.root.rglob("*")) == before
assert store.load_resume("stage", Ledger()).model["w"][0, 0] == 1.0
print("held")
"""


def test_a_full_disk_stops_a_save_with_the_cause_and_leaves_the_one_before(tmp_path: Path) -> None:
    mount, script = tmp_path / "mount", tmp_path / "full.py"
    mount.mkdir()
    script.write_text(FULL_DISK)
    inside = f'mount -t tmpfs -o size=96k none "{mount}" || exit 77; exec "{sys.executable}" "{script}" "{mount}/store"'
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare: a small disk cannot be made here (the file size limit above stands in)")
    done = subprocess.run([unshare, "-rm", "sh", "-c", inside], capture_output=True, text=True, check=False,
                          cwd=Path(__file__).resolve().parents[3], env={**os.environ, "PYTHONPATH": "."})
    if done.returncode in (1, 77) and "held" not in done.stdout and "Traceback" not in done.stderr:
        pytest.skip(f"the kernel refuses a private mount here: {done.stderr.strip()}")
    assert done.stdout.strip() == "held", done.stderr


@pytest.mark.parametrize(("number", "cause"), [
    (errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota"), (errno.EACCES, "Permission denied")])
def test_an_error_of_the_disk_is_an_error_for_a_person(store: Store, monkeypatch: pytest.MonkeyPatch, number: int, cause: str) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    save(store, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(DormouseError, match=cause):
            save(store, 2.0)
        with pytest.raises(DormouseError, match=cause):
            StageJournal(store, "stage").commit("unit", 1)
    assert loaded(store) == 1.0
    assert not list(store.root.rglob(".writing-*"))
