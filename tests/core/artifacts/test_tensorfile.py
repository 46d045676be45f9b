"""The format is the safetensors library's, byte for byte, without holding a file twice."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.artifacts import tensorfile
from dormouse_core.artifacts.provenance import Kind
from dormouse_core.artifacts.store import Store
from dormouse_core.artifacts.tensorfile import Incomplete, Malformed, file_chunks, layout, read_table, read_tensor
from tests.core.artifacts.made import checkpoint, provenance

TYPES = st.sampled_from(list(tensorfile._TYPES.values()))
TENSORS = st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
                          st.tuples(TYPES, st.lists(st.integers(0, 4), max_size=3)), max_size=6)


def made(described: dict[str, tuple[torch.dtype, list[int]]]) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return {name: torch.randint(0, 2, shape, generator=rng).to(dtype) for name, (dtype, shape) in described.items()}


def written(tensors: dict[str, torch.Tensor]) -> bytes:
    head, order, size = layout(tensors, {"k": "v"})
    data = b"".join(file_chunks(head, order, tensors))
    assert len(data) == size
    return data


@settings(max_examples=60, deadline=None)
@given(TENSORS)
def test_a_written_file_is_the_safetensors_librarys_byte_for_byte(described: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    tensors = made(described)
    assert written(tensors) == safetensors.torch.save(tensors, metadata={"k": "v"})


@settings(max_examples=40, deadline=None)
@given(TENSORS)
def test_a_file_of_the_library_is_read_to_the_same_tensors(described: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    tensors = made(described)
    file = io.BytesIO(safetensors.torch.save(tensors, metadata={"k": "v"}))
    table = read_table(file)
    assert table.metadata == {"k": "v"} and set(table.entries) == set(tensors)
    for name, entry in table.entries.items():
        back = read_tensor(file, entry)
        assert back.dtype == tensors[name].dtype and torch.equal(back, tensors[name])


def test_chunks_cut_anywhere_are_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": torch.arange(1000.0).view(20, 50).t(), "b": torch.arange(77, dtype=torch.int16), "c": torch.tensor(True)}
    whole = written(tensors)
    monkeypatch.setattr(tensorfile, "CHUNK", 101)
    assert written(tensors) == whole
    file = io.BytesIO(whole)
    assert all(torch.equal(read_tensor(file, e), tensors[n]) for n, e in read_table(file).entries.items())


def test_a_view_is_written_as_what_it_shows() -> None:
    base = torch.arange(12.0).view(3, 4)
    assert written({"v": base[:, 1]}) == written({"v": base[:, 1].clone()})


@pytest.mark.parametrize(("change", "error"), [
    ({"data_offsets": [0, 12]}, Malformed), ({"shape": [5]}, Malformed), ({"shape": [-4]}, Malformed), ({"dtype": "X8"}, Malformed),
    ({"data_offsets": [4, 20]}, Malformed), ({"data_offsets": None}, Malformed), ({"shape": [True, 4]}, Malformed)])
def test_a_table_that_does_not_fit_its_bytes_is_refused(change: dict[str, object], error: type[Exception]) -> None:
    table = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **change}}
    head = json.dumps(table).encode()
    with pytest.raises(error):
        read_table(io.BytesIO(len(head).to_bytes(8, "little") + head + bytes(16)))


def test_a_file_cut_off_or_with_something_behind_it_says_so() -> None:
    data = written({"w": torch.ones(4)})
    for wrong in (data[:-1], data + b"\0", data[:20]):
        with pytest.raises(Incomplete):
            read_table(io.BytesIO(wrong))


def test_a_type_the_format_has_no_name_for_is_refused_before_anything_is_written() -> None:
    with pytest.raises(ValueError, match="complex64"):
        layout({"w": torch.ones(2, dtype=torch.complex64)}, {})


SAVE = """
import sys, torch
from pathlib import Path
from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from tests.core.artifacts.made import provenance
from dormouse_core.artifacts.provenance import Kind
from benchmarks.memory_peak import peak_bytes
peak = lambda: peak_bytes() / 2**20
made = Checkpoint(resolve("tiny"), {"w": torch.ones(32 << 20)}, {"m": torch.ones(32 << 20)}, {})
store, before = Store(Path(sys.argv[1])), peak()
artifact = store.put_checkpoint(made, provenance(Kind.CHECKPOINT))
store.save_resume("stage", made, provenance(Kind.CHECKPOINT))
saved = peak() - before
del made
before = peak()
assert Store(store.root).open(store.path(artifact)).identity == artifact.identity
opened = peak() - before
Store(store.root).read_checkpoint(artifact)
print(saved, opened, peak() - before)
"""


def test_saving_opening_and_reading_take_no_memory_beside_the_tensors(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SAVE, str(tmp_path)], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[3])
    saved, opened, read = map(float, done.stdout.split())
    assert saved < 64 and opened < 64 and read < 64, f"MiB beside 256 MiB of tensors: {saved} {opened} {read}"


def test_a_file_under_any_name_is_adopted_once(store: Store, tmp_path: Path) -> None:
    made_elsewhere = Store(tmp_path / "elsewhere")
    path = tmp_path / "no suffix"
    path.write_bytes(made_elsewhere.path(made_elsewhere.put_checkpoint(checkpoint(), provenance(Kind.CHECKPOINT))).read_bytes())
    first = store.adopt(path)
    assert store.path(first).suffix == ".bin" and store.adopt(path) == first
    assert len(list((store.root / "checkpoint").iterdir())) == 1
