"""Every artifact can be walked back to the base from the files alone."""

import os
import shutil
from pathlib import Path

import pytest

from dormouse_core.artifacts.lineage import render, walk
from dormouse_core.artifacts.provenance import Artifact, Kind
from dormouse_core.artifacts.store import Store
from tests.core.artifacts.made import Note, checkpoint, provenance, table


def line(store: Store, cycles: int = 2) -> list[Artifact]:
    """base <- (rollouts <- verdicts) <- next, `cycles` times; every artifact in order."""
    made = [store.put_checkpoint(checkpoint(-1.0), provenance(Kind.CHECKPOINT))]
    for cycle in range(cycles):
        base = made[-1]
        rollouts = store.put_table(table(), ["key"], provenance(Kind.ROLLOUTS, base))
        verdicts = store.put_record(Note(text=str(cycle)), provenance(Kind.VERDICTS, rollouts))
        origin = provenance(Kind.CHECKPOINT, base, rollouts, verdicts, run_id=f"r{cycle}")
        made += [rollouts, verdicts, store.put_checkpoint(checkpoint(cycle), origin)]
    return made


def test_lineage_reaches_the_base_through_every_parent(store: Store) -> None:
    made = line(store)
    tree = walk(store, made[-1])
    assert set(tree.found) == {a.identity for a in made}
    assert tree.complete and tree.origins == [made[0]]


def test_lineage_needs_the_files_alone(store: Store, tmp_path: Path) -> None:
    made = line(store)
    shutil.copytree(store.root, tmp_path / "elsewhere")
    shutil.copy(store.path(made[-1]), tmp_path / "taken.bin")
    fresh = Store(tmp_path / "elsewhere")
    assert len(walk(fresh, fresh.open(tmp_path / "taken.bin")).found) == len(made)


def test_a_line_of_a_thousand_cycles_is_walked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # 2,000 of them are slow, and no power is lost here
    note = store.put_record(Note(text="0"), provenance(Kind.CURRICULUM))
    for i in range(1000):
        note = store.put_record(Note(text=str(i)), provenance(Kind.CURRICULUM, note))
    tree = walk(store, note)
    assert len(tree.found) == 1001
    assert len(render(tree).splitlines()) == 1001


def test_what_is_shared_is_unfolded_once(store: Store) -> None:
    made = line(store)
    text = render(walk(store, made[-1]))
    assert text.splitlines()[0].startswith(f"checkpoint {made[-1].identity[:16]}  by test seed 1 run r1")
    unfolded = [row for row in text.splitlines() if made[4].identity[:16] in row and "unfolded above" not in row]
    assert len(unfolded) == 1
    assert "<- made_from: verdicts" in text


def test_a_missing_and_a_damaged_ancestor_are_named_and_the_rest_is_shown(store: Store) -> None:
    made = line(store)
    store.path(made[0]).unlink()
    store.path(made[2]).write_bytes(b"{")
    tree = walk(Store(store.root), made[-1])
    assert not tree.complete
    assert set(tree.problems) == {made[0].identity, made[2].identity}
    text = render(tree)
    assert "MISSING: not in the store" in text and "corrupt" in text
    assert made[1].identity in tree.found
