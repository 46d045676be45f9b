"""Task tables keep tasks whole; training refuses what may only be measured on; sources draw by state and round alone."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.registry import draw, families
from dormouse_core.tasks.source import EvenSource
from dormouse_core.tasks.splits import admits, require_trainable, split_seed
from dormouse_core.tasks.store import KEYS, tasks_from_table, tasks_to_table
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind


def test_tasks_survive_the_table_whole_and_once() -> None:
    tasks = [draw(name, 2, Split.TRAIN, i, "table") for name in families() for i in range(2)]
    table = tasks_to_table(tasks + tasks[:5])
    back = tasks_from_table(table)
    assert back == list({t.id: t for t in tasks}.values())
    assert set(KEYS) <= set(table.column_names)
    assert table.to_pylist()[0]["cell"] == tasks[0].cell


@given(prompt=st.binary(max_size=60), reference=st.lists(st.binary(max_size=20), max_size=3).map(tuple))
@settings(max_examples=40, deadline=None)
def test_any_prompt_and_reference_bytes_survive_the_table(prompt: bytes, reference: tuple[bytes, ...]) -> None:
    task = Task(pool=Pool.MATH, family="f", prompt=prompt, environment="answer", verifier=VerifierKind.EXACT, trusted={"answer": "\u2028é"},
                reference=reference, split=Split.TRAIN, use=Use.TRAIN)
    assert tasks_from_table(tasks_to_table([task])) == [task]


def test_a_changed_row_or_a_foreign_table_is_refused_by_name() -> None:
    task = draw("gcd", 1, Split.TRAIN, 0, "table")
    table = tasks_to_table([task])
    text = table["task"][0].as_py().replace('"byte_budget":64', '"byte_budget":65')
    changed = table.set_column(table.column_names.index("task"), "task", pa.array([text]))
    with pytest.raises(DormouseError, match=task.id[:12]):
        tasks_from_table(changed)
    with pytest.raises(DormouseError, match="row 0"):
        tasks_from_table(table.set_column(table.column_names.index("task"), "task", pa.array(["{}"])))
    with pytest.raises(DormouseError, match="lacks the column"):
        tasks_from_table(pa.table({"x": [1]}))


def test_training_refuses_tasks_for_evaluation() -> None:
    good, fresh = draw("gcd", 1, Split.TRAIN, 0, "a"), draw("gcd", 1, Split.FRESH, 0, "a")
    require_trainable([good], "sft")
    with pytest.raises(DormouseError, match="sft refuses 1 task"):
        require_trainable([good, fresh], "sft")
    with pytest.raises(DormouseError, match="for evaluation only"):
        require_trainable([good.model_copy(update={"use": Use.EVALUATION})], "rl")


@given(content=st.text(max_size=30), family=st.text(max_size=10))
def test_every_content_belongs_to_exactly_one_of_train_frozen_and_fresh(content: str, family: str) -> None:
    assert sum(admits(s, family, content) for s in (Split.TRAIN, Split.FROZEN, Split.FRESH)) == 1
    assert admits(Split.FRESH, family, content) == admits(Split.BEYOND, family, content) == admits(Split.UNSEEN, family, content)


def test_seeds_differ_in_every_name_and_only_the_frozen_split_ignores_its_root() -> None:
    base = (Split.TRAIN, "gcd", 1, 3, "7")
    others = [(Split.FRESH, "gcd", 1, 3, "7"), (Split.TRAIN, "gc", 1, 3, "7"), (Split.TRAIN, "gcd", 2, 3, "7"),
              (Split.TRAIN, "gcd", 1, 4, "7"), (Split.TRAIN, "gcd", 1, 3, "8"), (Split.TRAIN, "gcd", 13, 3, "7"),
              (Split.TRAIN, "gcd1", 1, 3, "7")]
    seeds = [split_seed(*args) for args in [base, *others]]
    assert len(set(seeds)) == len(seeds)
    assert split_seed(Split.FROZEN, "gcd", 1, 3, "a") == split_seed(Split.FROZEN, "gcd", 1, 3, "b")


def test_even_source_rotates_through_its_cells_and_repeats_nothing() -> None:
    source = EvenSource([("gcd", 1), ("largest", 2)], "9")
    rounds = [source.draw(r, 4) for r in range(3)]
    assert [t.cell for t in rounds[1]] == ["gcd/d1", "largest/d2"] * 2
    assert source.draw(1, 4) == rounds[1]
    assert len({t.id for r in rounds for t in r}) == 12
    assert source.state() == {}
    with pytest.raises(ValueError, match="no state"):
        source.load({"gcd/d1": 1})
