"""What is put in comes out, is named by its content, and is refused when its bytes are not what was written."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dormouse_core.artifacts import identity
from dormouse_core.artifacts.provenance import Artifact, Kind
from dormouse_core.artifacts.store import Store, previous_name
from dormouse_core.config.drift import flatten
from dormouse_core.config.resolve import resolve
from dormouse_core.ledger import DormouseError, Ledger
from tests.core.artifacts.made import Note, checkpoint, provenance, table


def put(store: Store, which: str) -> Artifact:
    if which == "record":
        return store.put_record(Note(text="hello"), provenance(Kind.CURRICULUM))
    if which == "table":
        return store.put_table(table(), ["key", "row"], provenance(Kind.VERDICTS), volatile=["ms"])
    return store.put_checkpoint(checkpoint(), provenance(Kind.CHECKPOINT))


def read(store: Store, source: Artifact | Path, which: str) -> object:
    if which == "record":
        return store.read_record(source, Note)
    return store.read_table(source) if which == "table" else store.read_checkpoint(source)


ALL = pytest.mark.parametrize("which", ["record", "table", "checkpoint"])


def test_a_record_comes_out_as_it_went_in(store: Store) -> None:
    assert store.read_record(put(store, "record"), Note) == Note(text="hello")


def test_a_table_comes_out_in_key_order_with_its_types(store: Store) -> None:
    out = store.read_table(put(store, "table"))
    assert out.column("key").to_pylist() == ["a", "b", "c"]
    assert out.schema.field("row").type == pa.int16()
    assert out.drop_columns(["ms"]).to_pylist() == table().sort_by([("key", "ascending")]).drop_columns(["ms"]).to_pylist()


def test_a_checkpoint_comes_out_bit_for_bit(store: Store) -> None:
    made, out = checkpoint(), store.read_checkpoint(put(store, "checkpoint"))
    assert (out.config, out.state) == (made.config, made.state)
    for part in ("model", "optimizer"):
        before, after = getattr(made, part), getattr(out, part)
        assert set(before) == set(after)
        assert all(torch.equal(before[n], after[n]) and before[n].dtype == after[n].dtype for n in before)


@ALL
def test_a_file_names_itself(store: Store, which: str, tmp_path: Path) -> None:
    artifact = put(store, which)
    assert Store(store.root).open(store.path(artifact)) == artifact
    copied = tmp_path / "moved"
    copied.write_bytes(store.path(artifact).read_bytes())
    assert Store(tmp_path / "elsewhere").open(copied).identity == artifact.identity


@ALL
def test_the_same_content_has_the_same_identity_in_any_store_and_run(store: Store, tmp_path: Path, which: str) -> None:
    assert put(store, which) == put(store, which) == put(Store(tmp_path / "other"), which)


def test_run_ids_and_counters_are_no_part_of_an_identity(tmp_path: Path) -> None:
    one = Store(tmp_path / "1").put_record(Note(text="x"), provenance(Kind.CURRICULUM, run_id="r1", asked=3))
    other = Store(tmp_path / "2").put_record(Note(text="x"), provenance(Kind.CURRICULUM, run_id="r2", asked=4))
    assert one.identity == other.identity and one.file_sha256 != other.file_sha256


def test_parents_seed_kind_and_content_are_part_of_an_identity(store: Store) -> None:
    parent = put(store, "checkpoint")
    note = Note(text="x")
    made = [
        store.put_record(note, provenance(Kind.CURRICULUM)), store.put_record(note, provenance(Kind.CURRICULUM, parent)),
        store.put_record(note, provenance(Kind.CURRICULUM, seed=2)), store.put_record(note, provenance(Kind.EVAL_REPORT)),
        store.put_record(Note(text="y"), provenance(Kind.CURRICULUM)),
    ]
    assert len({a.identity for a in made}) == len(made)


def test_volatile_columns_and_fields_are_no_part_of_an_identity(tmp_path: Path) -> None:
    slow = table().set_column(6, "ms", pa.array([9.0, 9.0, 9.0]))
    tables = [Store(tmp_path / name).put_table(t, ["key", "row"], provenance(Kind.VERDICTS), volatile=["ms"])
              for name, t in (("1", table()), ("2", slow))]
    notes = [Store(tmp_path / name).put_record(Note(text="x", seconds=s), provenance(Kind.EVAL_REPORT), volatile=["seconds"])
             for name, s in (("1", 1.0), ("2", 2.0))]
    assert tables[0].identity == tables[1].identity and notes[0].identity == notes[1].identity
    not_volatile = Store(tmp_path / "3").put_table(slow, ["key", "row"], provenance(Kind.VERDICTS))
    assert not_volatile.identity != tables[0].identity


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(3)), cut=st.integers(0, 3))
def test_row_order_and_chunking_change_no_identity(order: list[int], cut: int) -> None:
    shuffled = table().take(order)
    chunked = pa.concat_tables([shuffled.slice(0, cut), shuffled.slice(cut)]).sort_by([("key", "ascending")])
    plain = table().sort_by([("key", "ascending")]).combine_chunks()
    assert identity.column_hashes(chunked) == identity.column_hashes(plain)


@pytest.mark.parametrize(("column", "value"), [
    ("raw", b"x"), ("logs", [0.5]), ("logs", None), ("ok", True), ("deep", {"n": 0, "s": "v"}), ("raw", b"")])
def test_any_changed_cell_changes_the_identity(column: str, value: object) -> None:
    rows = table().to_pylist()
    rows[1][column] = value if rows[1][column] != value else [9.0]
    changed = pa.Table.from_pylist(rows, schema=table().schema)
    before, after = identity.column_hashes(table()), identity.column_hashes(changed)
    assert [n for n in before if before[n] != after[n]] == [column]


def test_rows_that_share_their_keys_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="do not identify a row"):
        store.put_table(table(), ["row"], provenance(Kind.VERDICTS))


def test_settings_that_change_only_speed_are_no_part_of_a_checkpoints_identity(store: Store) -> None:
    fast = resolve("tiny", ["roll.workers=7", "roll.lanes=9", "verify.workers=3", "train.log_every=77", "loop.cycles=9"])
    assert store.put_checkpoint(checkpoint(config=fast), provenance(Kind.CHECKPOINT)).identity == put(store, "checkpoint").identity
    other = resolve("tiny", ["rl.clip=0.3"])
    assert store.put_checkpoint(checkpoint(config=other), provenance(Kind.CHECKPOINT)).identity != put(store, "checkpoint").identity


def test_every_setting_without_effect_is_a_setting() -> None:
    assert set(flatten(resolve("nano").model_dump())) >= identity.NO_EFFECT


@ALL
@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "longer"])
def test_a_damaged_file_is_refused_by_name(store: Store, which: str, damage: str) -> None:
    artifact = put(store, which)
    path = store.path(artifact)
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) * 3 // 4] ^= 0x10
    path.write_bytes({"truncated": data[:-7], "empty": b"", "flipped": bytes(flipped), "longer": data + b"\x00" * 9}[damage])
    for source in (artifact, path):
        with pytest.raises(DormouseError, match=path.name):
            read(Store(store.root), source, which)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.sampled_from(["record", "table", "checkpoint"]), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_anywhere_is_read_as_something_else(tmp_path_factory: pytest.TempPathFactory, which: str, where: float,
                                                           bit: int) -> None:
    store = Store(tmp_path_factory.mktemp("flip"))
    artifact = put(store, which)
    path = store.path(artifact)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1 << bit
    path.write_bytes(bytes(data))
    try:
        found = Store(store.root).open(path)
    except DormouseError:
        return
    assert (found.identity, found.provenance) == (artifact.identity, artifact.provenance), "a flip that goes unseen may change nothing"


def test_a_flipped_bit_of_a_weight_is_refused_even_where_only_the_file_speaks(store: Store) -> None:
    path = store.path(store.put_checkpoint(checkpoint(size=400), provenance(Kind.CHECKPOINT)))
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DormouseError, match="do not match the identity"):
        store.read_checkpoint(path)


@ALL
def test_a_sound_file_that_is_not_the_one_a_handle_names_is_refused(store: Store, which: str) -> None:
    artifact = put(store, which)
    other = artifact.provenance.model_copy(update={"run_id": "another"})
    twin = Store(store.root / "twin")
    made = {"record": lambda: twin.put_record(Note(text="hello"), other),
            "table": lambda: twin.put_table(table(), ["key", "row"], other, volatile=["ms"]),
            "checkpoint": lambda: twin.put_checkpoint(checkpoint(), other)}[which]()
    store.path(artifact).write_bytes(twin.path(made).read_bytes())
    with pytest.raises(DormouseError, match=r"not the .* that were written"):
        read(store, artifact, which)


@ALL
def test_a_foreign_file_is_refused(store: Store, tmp_path: Path, which: str) -> None:
    path = tmp_path / "foreign"
    if which == "record":
        path.write_text('{"hello": 1}')
    elif which == "table":
        pq.write_table(pa.table({"a": [1]}), path)
    else:
        path.write_bytes(safetensors.torch.save({"w": torch.zeros(2)}))
    with pytest.raises(DormouseError, match="not a dormouse"):
        store.open(path)


@pytest.mark.parametrize("data", [
    b"hello world, this is text", b"\x80\x04\x95pickle.....", b"PAR1", b"{", b"\x00" * 64, b"\xff" * 64, b"[1]"])
def test_any_other_bytes_are_refused(store: Store, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(DormouseError, match=r"x\.bin"):
        store.open(tmp_path / "x.bin")


def test_a_missing_file_is_refused_by_path(store: Store) -> None:
    with pytest.raises(DormouseError, match=r"nowhere\.bin"):
        store.read_checkpoint(Path("nowhere.bin"))


def test_a_record_of_another_model_is_refused(store: Store) -> None:
    class Other(Note):
        more: int

    with pytest.raises(DormouseError, match="not a Other"):
        store.read_record(put(store, "record"), Other)


def test_a_number_json_cannot_hold_is_refused_before_anything_is_written(store: Store) -> None:
    with pytest.raises(ValueError, match="JSON"):
        store.put_record(Note(text="x", seconds=float("nan")), provenance(Kind.CURRICULUM))
    assert not store.root.exists()


def test_find_gives_the_stored_artifact_or_none(store: Store) -> None:
    artifact = put(store, "record")
    assert store.find(artifact.kind, artifact.identity) == artifact
    assert store.find(artifact.kind, "0" * 64) is None
    assert store.find(Kind.TASKS, artifact.identity) is None


def test_writing_again_keeps_the_first_file_and_its_run(store: Store) -> None:
    first = store.put_record(Note(text="x"), provenance(Kind.CURRICULUM, run_id="first"))
    assert store.put_record(Note(text="x"), provenance(Kind.CURRICULUM, run_id="second")) == first


def test_writing_again_heals_a_damaged_file(store: Store) -> None:
    artifact = put(store, "record")
    store.path(artifact).write_bytes(b"{")
    assert put(store, "record") == artifact
    assert read(store, artifact, "record") == Note(text="hello")


def test_an_export_keeps_what_stood_there(store: Store, tmp_path: Path) -> None:
    one, other = (store.put_checkpoint(checkpoint(fill), provenance(Kind.CHECKPOINT)) for fill in (1.0, 2.0))
    out = tmp_path / "sft.bin"
    store.export(one, out)
    assert not (tmp_path / "sft.prev.bin").exists()
    store.export(other, out)
    assert store.open(out).identity == other.identity
    assert store.open(tmp_path / "sft.prev.bin").identity == one.identity
    assert sorted(os.listdir(tmp_path)) == ["sft.bin", "sft.prev.bin", "store"]


def test_a_damaged_resume_file_falls_back_to_the_save_before_and_says_so(store: Store, ledger: Ledger) -> None:
    assert store.load_resume("stage", ledger) is None
    for fill in (1.0, 2.0):
        store.save_resume("stage", checkpoint(fill), provenance(Kind.CHECKPOINT))
    newest = store.load_resume("stage", ledger)
    assert newest is not None and newest.model["w"][0, 0] == 2.0 and not ledger.lines
    path = store.resume_path("stage")
    path.write_bytes(path.read_bytes()[:-5])
    before = store.load_resume("stage", ledger)
    assert before is not None and before.model["w"][0, 0] == 1.0
    assert "corrupt" in ledger.lines[0] and ledger.counts["resume_from_previous"] == 1
    previous_name(path).write_bytes(b"")
    with pytest.raises(DormouseError):
        store.load_resume("stage", ledger)
    store.drop_resume("stage")
    assert store.load_resume("stage", ledger) is None
