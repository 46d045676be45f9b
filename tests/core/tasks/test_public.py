"""Public sets: what may be trained on, what a broken line does, what an absent folder says."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.public import ANY_ORDER, MBPP_TRAIN, PUBLIC, available, load_public
from dormouse_core.tasks.splits import require_trainable
from dormouse_core.tasks.task import Split, Use

GOOD = {"id": "MBPP/700", "prompt": "def f(x):\n", "entry_point": "f", "reference": "    return x\n", "tests_complete": True,
        "tests": [{"args": "(1,)", "expected": "1"}], "test_src": ""}


def written(folder: Path, lines: list[bytes], name: str = "mbpp/tasks.jsonl.gz") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    return path


def row(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_set_loads_whole(name: str, tasks_dir: Path) -> None:
    ledger = Ledger()
    tasks = load_public(name, tasks_dir, ledger)
    assert tasks and ledger.lines == [] and ledger.counts["tasks_broken_lines"] == 0
    assert len({t.id for t in tasks}) == len(tasks)
    assert all(t.split is Split.PUBLIC and t.licence and t.prompt and t.reference for t in tasks)
    assert available(tasks_dir)[name]


def test_only_gsm8k_train_and_mbpp_601_to_974_may_be_trained_on(tasks_dir: Path) -> None:
    for name in PUBLIC:
        tasks = load_public(name, tasks_dir, Ledger())
        trained = [t for t in tasks if t.use is Use.TRAIN]
        assert load_public(name, tasks_dir, Ledger(), Use.TRAIN) == trained
        if name == "gsm8k":
            assert all(t.params["id"].startswith("gsm8k/train/") for t in trained) and len(trained) > 7000
        elif name == "mbpp":
            numbers = {int(t.params["id"].split("/")[1]) for t in trained}
            assert numbers and min(numbers) >= 601 and max(numbers) <= 974
        else:
            assert not trained
        held = [t for t in tasks if t.use is Use.EVALUATION]
        with pytest.raises(DormouseError, match="evaluation only"):
            require_trainable(held[:1], "rl")


def test_the_tasks_that_ask_for_a_set_take_any_order_and_no_other_task_does(tasks_dir: Path) -> None:
    relaxed = {t.params["id"]: t for t in load_public("mbpp", tasks_dir, Ledger()) if t.trusted.get("relax")}
    assert set(relaxed) == ANY_ORDER and {t.trusted["relax"] for t in relaxed.values()} == {"order"}
    assert all("set(" in t.reference[0].decode() for t in relaxed.values())


def test_mbpp_use_follows_its_id_and_not_the_files_own_word(tmp_path: Path) -> None:
    written(tmp_path, [row(id="MBPP/600", split="train"), row(id="MBPP/601", split="test"), row(id="MBPP/974"), row(id="MBPP/975")])
    assert [t.use.value for t in load_public("mbpp", tmp_path, Ledger())] == ["evaluation", "train", "train", "evaluation"]
    assert len(MBPP_TRAIN) == 374


def test_a_broken_line_is_named_skipped_and_counted(tmp_path: Path) -> None:
    lines = [row(), b"{not json", row(reference=None), json.dumps({"id": "MBPP/1"}).encode(), b"[]", b"", b"\xff\xfe", row(id="MBPP/701")]
    written(tmp_path, lines)
    ledger = Ledger()
    assert [t.params["id"] for t in load_public("mbpp", tmp_path, ledger)] == ["MBPP/700", "MBPP/701"]
    assert ledger.counts["tasks_broken_lines"] == 5 and ledger.counts["tasks_loaded"] == 2
    assert [line.split(" is broken")[0] for line in ledger.lines] == [f"tasks: mbpp/tasks.jsonl.gz line {n}" for n in (2, 3, 4, 5, 7)]


def test_many_broken_lines_are_summed_up(tmp_path: Path) -> None:
    written(tmp_path, [b"x"] * 40 + [row()])
    ledger = Ledger()
    assert len(load_public("mbpp", tmp_path, ledger)) == 1
    assert len(ledger.lines) == 6 and "40 broken lines in all" in ledger.lines[-1]


def test_a_file_cut_in_the_middle_keeps_what_stands_before_the_cut(tmp_path: Path) -> None:
    path = written(tmp_path, [row(id=f"MBPP/{i}", prompt=f"def f(x):  # {hash(i) * 7919}\n") for i in range(601, 900)])
    path.write_bytes(path.read_bytes()[:-60])
    ledger = Ledger()
    assert 0 < len(load_public("mbpp", tmp_path, ledger)) < 299
    assert ledger.counts["tasks_broken_files"] == 1 and "cannot be read past line" in ledger.lines[0]


def test_an_absent_set_file_or_content_says_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DormouseError, match="did you mean mbpp"):
        load_public("mbp", tmp_path, Ledger())
    with pytest.raises(DormouseError, match="DORMOUSE_TASKS_DIR"):
        load_public("mbpp", tmp_path, Ledger())
    written(tmp_path, [b"x"])
    with pytest.raises(DormouseError, match="not one task"):
        load_public("mbpp", tmp_path, Ledger())
    assert available(tmp_path)["mbpp"] and not available(tmp_path)["bbh"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(GOOD)), inner, max_size=8), max_leaves=12)


@given(lines=st.lists(st.binary(max_size=40) | values.map(lambda v: json.dumps(v).encode()), max_size=6))
@settings(max_examples=60, deadline=None)
def test_any_lines_beside_a_good_one_leave_the_good_one(lines: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sets")
    for name, shown in (("mbpp", row()), ("bbh", b'{"id": "b/1", "task": "navigate", "question": "q", "answer": "No"}')):
        written(folder, [*lines, shown], f"{name}/tasks.jsonl.gz")
        assert len(load_public(name, folder, Ledger())) >= 1
