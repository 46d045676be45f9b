"""A user's own conversations: what a line becomes, and that a broken one costs itself alone."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core.artifacts.provenance import Kind
from dormouse_core.artifacts.store import Store
from dormouse_core.encoding import Role, Span, parse, render
from dormouse_core.learning import sft
from dormouse_core.learning.conversations import read_conversations
from dormouse_core.ledger import DormouseError, Ledger
from tests.core.learning.made import config, pretrained

ASKED = [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.text(st.characters(exclude_categories=["Cs"]))),
                max_size=6))
def test_any_text_of_any_role_comes_back_from_the_stream(tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[str, str]]) -> None:
    messages = [("user", "?"), *turns, ("assistant", "!")]
    file = written(tmp_path_factory.mktemp("data") / "x.jsonl", {"messages": [{"role": r, "content": c} for r, c in messages]})
    (row,) = read_conversations(file, Ledger())
    stream, mask_L = render(row.segments)
    roles = {"system": Role.SYSTEM, "user": Role.PROMPT, "assistant": Role.ASSISTANT, "tool": Role.OBSERVATION}
    assert parse(stream) == [Span(roles[r], c.encode()) for r, c in messages]
    assert mask_L.sum() >= len(messages[-1][1]) + 1


@pytest.mark.parametrize("broken", [
    "{", "[]", '"text"', "{}", json.dumps({"messages": []}), json.dumps({"messages": ASKED, "weight": 2}),
    json.dumps({"messages": [{"role": "oracle", "content": "5"}, *ASKED]}), json.dumps({"messages": ASKED[:1] * 2}),
    json.dumps({"messages": [ASKED[1], ASKED[0]]}), json.dumps({"messages": [{"role": "user"}, ASKED[1]]})])
def test_a_broken_line_is_named_skipped_and_counted(tmp_path: Path, broken: str) -> None:
    file = written(tmp_path / "x.jsonl", {"messages": ASKED}, broken, "")
    rows = read_conversations(file, ledger := Ledger())
    assert len(rows) == 1 and ledger.counters()["sft_data_broken_lines"] == 1
    assert any("line 2 is broken" in line for line in ledger.lines)


def test_exact_repeats_count_once_and_a_folder_is_read_in_order_of_name(tmp_path: Path) -> None:
    other = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    written(tmp_path / "b.jsonl", {"messages": ASKED}, {"messages": ASKED})
    written(tmp_path / "a.jsonl", {"messages": other}, {"messages": ASKED})
    assert [row.segments[1].content for row in read_conversations(tmp_path, Ledger())] == [b"2", b"5"]


@pytest.mark.parametrize("lines", [[], ["{"]])
def test_data_without_one_good_line_is_an_error_that_shows_the_form(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(DormouseError, match="not one good line"):
        read_conversations(written(tmp_path / "x.jsonl", *lines), Ledger())
    with pytest.raises(DormouseError, match='"messages"'):
        read_conversations(tmp_path / "none", Ledger())


def test_sft_trains_on_the_file_and_its_checkpoint_names_the_rows(tmp_path: Path) -> None:
    """A file that always answers `b` makes `b` likely, and the demonstrations of the checkpoint are the file's."""
    lines = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "b"}]} for i in range(60)]
    store, of = Store(tmp_path / "store"), config()
    artifact = sft.run(of, pretrained(store, of), store=store, ledger=(ledger := Ledger()), data=written(tmp_path / "x.jsonl", *lines))
    table = store.find(Kind.DEMONSTRATIONS, store.read_checkpoint(artifact).state["demonstrations"])
    assert table is not None and set(store.read_table(table)["kind"].to_pylist()) == {"data"} and store.read_table(table).num_rows == 60
    curve = store.read_checkpoint(artifact).state["curve"]
    assert curve[-1]["heldout"] < curve[0]["heldout"] and any("conversations of" in line for line in ledger.lines)
