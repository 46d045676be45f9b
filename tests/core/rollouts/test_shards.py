"""Shards: what is stored is what was sampled, whole or not at all."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError
from dormouse_core.rollouts.schema import from_tables, to_tables
from dormouse_core.rollouts.shards import ShardHead, commit_path, committed, find_shard, folder, read_shards, write_shard
from dormouse_core.rollouts.trajectory import Start, Step, Trajectory
from tests.core.rollouts.made import bits

_FLOATS = st.lists(st.floats(-20, 0, width=32), min_size=0, max_size=6)


@st.composite
def steps(draw, number: int) -> Step:
    log_probs = np.array(draw(_FLOATS), dtype=np.float32)
    return Step(number, draw(st.binary(max_size=8)), draw(st.booleans()), draw(st.text(max_size=4)), draw(st.binary(max_size=8)), "o", "s",
                draw(st.sampled_from(["", "move"])), draw(st.booleans()), log_probs, log_probs * -1, draw(st.floats(0, 1)),
                draw(st.floats(0, 9)), draw(st.floats(0, 9)))


@st.composite
def trajectories(draw) -> Trajectory:
    own = tuple(draw(steps(i)) for i in range(draw(st.integers(0, 3))))
    return replace(
        _trajectory(draw(st.integers(0, 7))), id=draw(st.uuids()).hex, steps=own, start=draw(st.sampled_from(Start)),
        fork_step=draw(st.integers(-1, 2)), seed=draw(st.integers(0, 2**63 - 1)), temperature=draw(st.floats(0, 2)),
        prompt=draw(st.binary(max_size=8)), stop=draw(st.sampled_from(StopReason)), probe=draw(st.booleans()), verifier_kind="exact",
        fork_count=1, div_gate_fired=2, extra=draw(st.dictionaries(st.sampled_from(["pi", "redraws"]), st.floats(0, 1))))


def _trajectory(number: int = 0, ms: float = 1.0, action: bytes = b"\xff\xfe\x00\xc3") -> Trajectory:
    values = np.array([-0.5] * (len(action) + 1), dtype=np.float32)
    step = Step(0, action, True, "p", b"\x00\xff", "o", "s", "move", True, values, values * -1, 0.5, ms, ms)
    return Trajectory(f"id{number}", "main.c0000", 2, "task", "agent", "machine/d1", "group", number, Start.ROOT, "", -1, 5, "weights", 0,
                      1.0, b"prompt", (step,), StopReason.SOLVED)


@settings(max_examples=60, deadline=None)
@given(st.lists(trajectories(), max_size=4, unique_by=lambda t: t.id))
def test_tables_give_back_every_bit(made):
    tables = to_tables(made)
    back = from_tables(tables["trajectories"], tables["steps"])
    assert [bits(t) for t in back] == [bits(t) for t in sorted(made, key=lambda t: t.id)]
    for before, after in zip(sorted(made, key=lambda t: t.id), back, strict=True):
        assert [(s.policy_ms, s.env_ms) for s in before.steps] == [(s.policy_ms, s.env_ms) for s in after.steps]
        assert (before.probe, before.verifier_kind, before.div_gate_fired) == (after.probe, after.verifier_kind, after.div_gate_fired)


HEAD = ShardHead(key="k" * 64, slot="s" * 64, cycle="main.c0000", round=2, policy="weights", lfb_version=0, code_version="code",
                 tasks=("task",))


def _files(root: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder(root, "main.c0000").iterdir()}


def test_bytes_that_are_no_text_survive_the_store(tmp_path):
    record = write_shard(tmp_path, HEAD, [_trajectory()], {"n": 1})
    back = read_shards(tmp_path, [record])[0]
    assert back.steps[0].action_bytes == b"\xff\xfe\x00\xc3" and bits(back) == bits(_trajectory())
    assert find_shard(tmp_path, "main.c0000", HEAD.key) == record
    assert committed(tmp_path) == [record]


def test_a_finished_shard_is_never_written_again_not_even_its_timings(tmp_path):
    first = write_shard(tmp_path, HEAD, [_trajectory(ms=1.0)], {})
    before = _files(tmp_path)
    assert write_shard(tmp_path, HEAD, [_trajectory(ms=7.0)], {}) == first
    assert _files(tmp_path) == before


def test_identity_is_blind_to_timings_and_sees_every_byte_and_log_prob(tmp_path):
    base = write_shard(tmp_path / "a", HEAD, [_trajectory(ms=1.0)], {})
    slower = write_shard(tmp_path / "b", HEAD, [_trajectory(ms=7.0)], {})
    assert slower.identity == base.identity and slower.steps.sha256 != base.steps.sha256
    other = _trajectory(action=b"\xff\xfe\x00\xc4")
    step = replace(other.steps[0], action_bytes=b"\xff\xfe\x00\xc3", log_probs=np.nextafter(other.steps[0].log_probs, np.float32(0)))
    for i, changed in enumerate((other, replace(other, steps=(step,)))):
        assert write_shard(tmp_path / f"c{i}", HEAD, [changed], {}).identity != base.identity


@pytest.mark.parametrize("cut", [0, 1, 10, 200, -1])
def test_a_torn_commit_record_is_owed_and_never_read(tmp_path, cut):
    write_shard(tmp_path, HEAD, [_trajectory()], {})
    path = commit_path(tmp_path, "main.c0000", HEAD.key)
    path.write_bytes(path.read_bytes()[:cut])
    assert find_shard(tmp_path, "main.c0000", HEAD.key) is None and committed(tmp_path) == []
    assert read_shards(tmp_path, [write_shard(tmp_path, HEAD, [_trajectory()], {})])


def test_an_edited_commit_record_does_not_count(tmp_path):
    write_shard(tmp_path, HEAD, [_trajectory()], {})
    path = commit_path(tmp_path, "main.c0000", HEAD.key)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"policy": "somebody else's"}))
    assert committed(tmp_path) == []


@pytest.mark.parametrize("table", ["trajectories", "steps"])
@pytest.mark.parametrize("how", ["missing", "truncated", "flipped"])
def test_a_table_that_is_not_what_was_written_is_owed_by_a_resume_and_refused_by_a_reader(tmp_path, table, how):
    record = write_shard(tmp_path, HEAD, [_trajectory()], {})
    path = folder(tmp_path, "main.c0000") / getattr(record, table).file
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-7] if how == "truncated" else data[:40] + bytes([data[40] ^ 1]) + data[41:])
    assert find_shard(tmp_path, "main.c0000", HEAD.key) is None
    with pytest.raises(DormouseError, match=path.name):
        read_shards(tmp_path, [record])


def test_the_record_is_written_last(tmp_path, monkeypatch):
    import dormouse_core.rollouts.shards as shards
    written = []
    write = shards.write_atomic
    monkeypatch.setattr(shards, "write_atomic", lambda path, data: (written.append(path.name), write(path, data)))
    write_shard(tmp_path, HEAD, [_trajectory()], {})
    assert len(written) == 3 and written[-1].endswith(".shard.json")


def test_a_full_disk_leaves_the_shard_owed(tmp_path, monkeypatch):
    import errno
    import os
    real = os.replace

    def full(source, target):
        if str(target).endswith("steps.parquet"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DormouseError, match="disk is full"):
        write_shard(tmp_path, HEAD, [_trajectory()], {})
    monkeypatch.undo()
    assert find_shard(tmp_path, "main.c0000", HEAD.key) is None and committed(tmp_path) == []
    assert not [p for p in folder(tmp_path, "main.c0000").iterdir() if "writing" in p.name]
    assert math.isclose(read_shards(tmp_path, [write_shard(tmp_path, HEAD, [_trajectory()], {})])[0].temperature, 1.0)


def test_a_slot_rolled_by_two_versions_of_the_code_is_shown_once_and_both_files_stay(tmp_path):
    old = write_shard(tmp_path, HEAD, [_trajectory()], {})
    new = write_shard(tmp_path, HEAD.model_copy(update={"key": "n" * 64, "code_version": code_version()}), [_trajectory()], {})
    assert committed(tmp_path) == [new]
    assert read_shards(tmp_path, [old]) and read_shards(tmp_path, [new])


def test_a_commit_record_still_under_its_temporary_name_does_not_count(tmp_path):
    write_shard(tmp_path, HEAD, [_trajectory()], {})
    path = commit_path(tmp_path, "main.c0000", HEAD.key)
    path.rename(path.with_name(f".writing-1-{path.name}"))
    assert committed(tmp_path) == []
