"""The held-out side is held out, and what a step reads is a function of seed and step alone."""

import os
from pathlib import Path

import numpy as np
import pytest

from dormouse_core.encoding import END, TAG, escape
from dormouse_core.learning import corpus
from dormouse_core.ledger import DormouseError, Ledger


def folder(root: Path, texts: dict[str, bytes]) -> str:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text)
    return str(root)


def numbered(n: int) -> dict[str, bytes]:
    return {f"part{i % 3}/file{i}.txt": f"<this is text number {i}>".encode() for i in range(n)}


def test_the_held_out_side_of_the_standard_library_is_its_test_folders(ledger: Ledger) -> None:
    loaded = corpus.load("stdlib", ledger)
    heldout, train = loaded.heldout_M.tobytes(), loaded.train_N.tobytes()
    here = Path(os.__file__).parent
    assert escape((here / "argparse.py").read_bytes()) in train
    tests = [p for p in sorted(here.rglob("test*.py")) if {"test", "tests"} & set(p.relative_to(here).parts[:-1])]
    tests = [p for p in tests if "site-packages" not in p.parts and p.stat().st_size > 3000][:40]
    assert tests and not any(escape(p.read_bytes()) in train for p in tests)
    assert len(heldout) > 100_000


def test_every_file_stands_whole_on_one_side(tmp_path: Path, ledger: Ledger) -> None:
    texts = numbered(30)
    loaded = corpus.load(folder(tmp_path, texts), ledger)
    sides = [(text in loaded.train_N.tobytes(), text in loaded.heldout_M.tobytes()) for text in texts.values()]
    assert all(train != heldout for train, heldout in sides)
    assert (loaded.train_files, loaded.heldout_files) == (27, 3)


def test_the_carve_does_not_depend_on_what_the_files_say(tmp_path: Path, ledger: Ledger) -> None:
    one = corpus.load(folder(tmp_path / "1", numbered(20)), ledger)
    other = corpus.load(folder(tmp_path / "2", {n: b"not " + t for n, t in numbered(20).items()}), ledger)
    assert other.heldout_M.tobytes() == b"\n".join(b"not " + line for line in one.heldout_M.tobytes().split(b"\n"))


def test_a_text_that_stands_on_both_sides_is_trained_on_only(tmp_path: Path, ledger: Ledger) -> None:
    texts = numbered(20)
    loaded = corpus.load(folder(tmp_path, texts), ledger)
    held = next(n for n, t in texts.items() if t in loaded.heldout_M.tobytes())
    trained = next(n for n, t in texts.items() if t in loaded.train_N.tobytes())
    (tmp_path / held).write_bytes(texts[trained])
    again = corpus.load(str(tmp_path), ledger)
    assert texts[trained] in again.train_N.tobytes() and texts[trained] not in again.heldout_M.tobytes()
    assert ledger.counts["corpus_duplicates_dropped"] == 1


def test_a_corpus_teaches_no_structural_byte(tmp_path: Path, ledger: Ledger) -> None:
    loaded = corpus.load(folder(tmp_path, {n: bytes(range(1, 256)) + t for n, t in numbered(4).items()}), ledger)
    structural = {tag[0] for tag in TAG.values()} | {END[0]}
    assert not structural & set(loaded.train_N.tolist() + loaded.heldout_M.tolist())


def test_binary_files_are_left_out_counted_and_named(tmp_path: Path, ledger: Ledger) -> None:
    corpus.load(folder(tmp_path, {**numbered(5), "model.bin": b"\x00\x01" * 50, ".hidden/x.txt": b"secret"}), ledger)
    assert ledger.counts["corpus_binary_skipped"] == 1
    assert "1 of 6 files" in ledger.lines[0]


@pytest.mark.parametrize(("texts", "hint"), [
    ({}, "nothing left on the training side"), ({"one.txt": b"alone"}, "nothing left on the held-out"),
    ({"a": b"same", "b": b"same"}, "nothing left on the held-out")])
def test_a_folder_with_an_empty_side_stops_the_run(tmp_path: Path, ledger: Ledger, texts: dict[str, bytes], hint: str) -> None:
    with pytest.raises(DormouseError, match=hint):
        corpus.load(folder(tmp_path, texts), ledger)


def test_a_missing_folder_stops_the_run(ledger: Ledger) -> None:
    with pytest.raises(DormouseError, match="no such folder"):
        corpus.load("/nowhere/at/all", ledger)


def test_the_windows_of_a_step_are_a_function_of_seed_and_step() -> None:
    first = corpus.batch_offsets(10_000, 64, 8, seed=1, step=5)
    corpus.batch_offsets(10_000, 64, 8, seed=1, step=6)
    assert (corpus.batch_offsets(10_000, 64, 8, seed=1, step=5) == first).all()
    assert (corpus.batch_offsets(10_000, 64, 8, seed=2, step=5) != first).any()
    assert (corpus.batch_offsets(10_000, 64, 8, seed=1, step=6) != first).any()
    many = corpus.batch_offsets(200, 64, 5000, seed=1, step=0)
    assert (many.min(), many.max()) == (0, 200 - 64)


def test_the_fixed_window_is_the_same_bytes_every_time_and_does_not_overlap() -> None:
    text_N = np.arange(5000) % 251
    one = corpus.fixed_windows(text_N.astype(np.uint8), 7, 100, "held-out")
    assert (one == corpus.fixed_windows(text_N.astype(np.uint8), 7, 100, "held-out")).all()
    positions = np.arange(5000)
    starts = corpus.fixed_windows(positions, 7, 100, "held-out")[:, 0]
    assert (np.diff(starts) >= 100).all() and starts[-1] == 4900


def test_a_text_too_short_for_the_fixed_window_stops_the_run() -> None:
    with pytest.raises(DormouseError, match="needs 700"):
        corpus.fixed_windows(np.zeros(699, dtype=np.uint8), 7, 100, "held-out")
