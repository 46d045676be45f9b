"""Admission by reference, suites of asserts turned into cases, and the truth table over labelled public answers."""

import json
import subprocess
import sys
from itertools import chain, islice
from pathlib import Path

import pytest

from dormouse_core.admission.asserts import convert
from dormouse_core.admission.labelled import SETS, TableRow, spellings, truth_table
from dormouse_core.admission.reference import admit
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.registry import draw, families
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind

CONFIG = VerifyConfig()


def suite(source: str, reference: str = "def f(x):\n    return x * 2\n") -> Task:
    return Task(pool=Pool.CODE, family="t", prompt=source.encode(), environment="answer", verifier=VerifierKind.EXEC, split=Split.PUBLIC,
                use=Use.EVALUATION, trusted={"entry_point": "f", "test_src": source}, reference=(reference.encode(),))


def converted(source: str, ledger: Ledger, reference: str = "def f(x):\n    return x * 2\n") -> Task:
    with Runners(CONFIG, ledger) as runners:
        return convert([suite(source, reference)], runners, ledger)[0]


SUITE = """
def check(c):
    assert c(2) == 4, 'm'
    for i in range(2):
        assert c(i) == 2 * i
    assert True
    assert c([1]) == [1] * 2
    assert abs(c(0.1) - 0.2) < 1e-6
    assert c(1)
    assert not c(0)
    assert tuple(c([1])) == (1, 1)
    assert 6 == c(3)
check(f)
"""


def test_asserts_become_inputs_and_expected_values(ledger: Ledger) -> None:
    task = converted(SUITE, ledger)
    assert "test_src" not in task.trusted and ledger.counts["admission.asserts_converted"] == 1
    assert [(c["args"], c["expected"]) for c in task.trusted["cases"]] == [
        ("(2,)", "4"), ("(0,)", "0"), ("(1,)", "2"), ("([1],)", "[1, 1]"), ("(0.1,)", "0.2"), ("(1,)", "True"), ("(0,)", "False"),
        ("([1],)", "(1, 1)"), ("(3,)", "6")]
    assert admit([task], CONFIG, ledger)[1] == []


@pytest.mark.parametrize("line", [
    "assert c(1) > 1", "assert c(c(1)) == 4", "assert c(x=1) == 2", "assert len([c(1)]) == 1",
    "assert c(1) == object()", "assert any(c(i) for i in [1])"])
def test_an_assert_of_another_form_leaves_the_suite_as_it_is(line: str, ledger: Ledger) -> None:
    task = converted(f"def check(c):\n    {line}\ncheck(f)\n", ledger)
    assert "cases" not in task.trusted and ledger.counts["admission.asserts_kept"] == 1


def test_a_suite_that_its_reference_cannot_get_through_is_refused_by_name(ledger: Ledger) -> None:
    task = converted("def check(c):\n    assert c(2) == 5\ncheck(f)\n", ledger)
    kept, refused = admit([task], CONFIG, ledger)
    assert kept == [] and refused[0].task_id == task.id and refused[0].reason == "case 0: wrong int"
    assert any(task.id[:12] in line and "refused" in line for line in ledger.lines)


def test_every_generated_family_is_admitted_and_a_spoiled_task_is_not(ledger: Ledger) -> None:
    tasks = [draw(name, d, Split.TRAIN, i, "admission") for name in families() for d in (1, 3) for i in range(3)]
    spoiled = [t.model_copy(update={"reference": (b"nonsense",)}) for t in tasks[::7]]
    kept, refused = admit(tasks, CONFIG, ledger)
    assert kept == tasks and refused == []
    assert len(admit(spoiled, CONFIG, ledger)[1]) == len({t.id for t in spoiled})


def test_spellings_of_a_number_never_overlap_its_near_misses() -> None:
    for n in (0, 1, 7, -12, 1234567):
        right, wrong = spellings(n)
        assert not set(right) & set(wrong)


def bad(table: list[TableRow]) -> list[TableRow]:
    return [row for row in table if row.false_passes or row.false_fails or row.no_verdict]


@pytest.mark.parametrize("name", SETS)
def test_a_sample_of_labelled_answers_is_judged_as_labelled(name: str, tasks_dir: Path, ledger: Ledger) -> None:
    step, most = {"gsm8k": (977, 400), "humaneval": (97, 30), "humanevalfix": (7, 32), "cruxeval": (29, 250)}.get(name, (11, 150))
    table = truth_table(list(islice(SETS[name](tasks_dir), 0, None, step))[:most], CONFIG, ledger)
    assert bad(table) == [] and sum(r.right for r in table) > 0 < sum(r.wrong for r in table)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_labelled_answer_is_judged_as_labelled(tasks_dir: Path, ledger: Ledger) -> None:
    table = truth_table(list(chain.from_iterable(load(tasks_dir) for load in SETS.values())), CONFIG, ledger)
    assert bad(table) == []
    assert sum(r.right + r.wrong for r in table) > 200_000


def test_a_tasks_directory_without_the_files_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(DormouseError, match="DORMOUSE_TASKS_DIR"):
        list(SETS["mbpp"](tmp_path))
    (tmp_path / "mbpp").mkdir()
    (tmp_path / "mbpp" / "tasks.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(DormouseError, match=r"mbpp/tasks\.jsonl\.gz"):
        list(SETS["mbpp"](tmp_path))


def test_the_table_command_prints_its_rows_and_exits_with_its_result(tasks_dir: Path) -> None:
    command = [sys.executable, "benchmarks/verifier_table.py", "--tasks-dir", str(tasks_dir), "--sample", "300"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == 0 and "false pass" in done.stdout and "reasoning_gym answers" in done.stdout, json.dumps(done.stderr[-500:])
