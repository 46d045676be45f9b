"""A stage that died finds what is done and what is owed."""

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dormouse_core.artifacts.journal import StageJournal, stage_key
from dormouse_core.artifacts.store import Store

UNITS = [f"round-{i}" for i in range(6)]


def written(store: Store, units: list[str] = UNITS) -> Path:
    journal = StageJournal(store, "k")
    for i, unit in enumerate(units):
        journal.commit(unit, {"n": i})
    return store.root / "journal" / "k.jsonl"


def test_a_reopened_journal_knows_what_is_done(store: Store) -> None:
    written(store, UNITS[:4])
    journal = StageJournal(store, "k")
    assert (journal.done("round-2"), journal.done("round-4")) == ({"n": 2}, None)
    assert journal.owed(UNITS) == UNITS[4:]
    journal.clear()
    assert journal.owed(UNITS) == StageJournal(store, "k").owed(UNITS) == UNITS


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1))
def test_a_torn_last_line_is_owed_again_and_harms_no_other(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    store = Store(tmp_path_factory.mktemp("torn"))
    path = written(store)
    data = path.read_bytes()
    size = int(cut * len(data))
    path.write_bytes(data[:size])
    whole = data[: size + 1].count(b"\n")  # a line whose newline alone is lost is whole
    journal = StageJournal(store, "k")
    assert journal.owed(UNITS) == UNITS[whole:]
    for unit in journal.owed(UNITS):
        journal.commit(unit, "again")
    after = StageJournal(store, "k")
    assert not after.owed(UNITS)
    assert [after.done(u) for u in UNITS] == [{"n": i} if i < whole else "again" for i in range(6)]


def test_a_damaged_line_is_owed_again_and_counted(store: Store) -> None:
    path = written(store)
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b'"n":2', b'"n":7')
    path.write_bytes(b"\n".join(lines))
    journal = StageJournal(store, "k")
    assert (journal.owed(UNITS), journal.torn) == (["round-2"], 1)


def test_a_unit_is_committed_once(store: Store) -> None:
    journal = StageJournal(store, "k")
    journal.commit("u", [1])
    journal.commit("u", [1])
    with pytest.raises(ValueError, match="another payload"):
        journal.commit("u", [2])
    with pytest.raises(ValueError, match="read as owed"):
        journal.commit("v", None)


def test_sigkill_while_committing_loses_no_acknowledged_unit(store: Store) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            journal = StageJournal(store, "k")
            for i in range(10_000):
                journal.commit(f"u{i}", i)
                os.write(write_end, b".")
        finally:
            os._exit(1)
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(write_end)
    acknowledged = len(os.read(read_end, 1 << 20))
    os.close(read_end)
    journal = StageJournal(store, "k")
    assert acknowledged > 0
    assert [journal.done(f"u{i}") for i in range(acknowledged)] == list(range(acknowledged))


def test_a_stage_on_other_inputs_has_another_journal() -> None:
    assert len({stage_key("rl"), stage_key("rl", "a"), stage_key("rl", "a", "b"), stage_key("rl", "ab"), stage_key("sft", "a")}) == 5
