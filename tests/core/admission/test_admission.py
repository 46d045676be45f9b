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
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox.runner import Job, Runners
from dormouse_core.tasks.registry import draw, families
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.cases import prepare
from dormouse_core.verifiers.judge import judge

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
    "assert c(c(1)) == 4", "assert c(x=1) == 2", "assert c(1) == object()", "assert any(c(i) for i in [1])", "assert c(1) < c(2)",
    "assert c(1) == c(2)", "assert callable(c)", "assert c(2) == 4 and c(3) == 6", "y = c(1)\n    z = y + 1\n    assert z == 3",
    "y = c(1)\n    y += 1\n    assert y == 3", "l = [c]\n    assert l[0](1) == 2", "c(1)\n    assert True",
    "def g(v):\n        return v > 1\n    assert g(c(1))", "y = c(1)\n    assert c(y) == 4"])
def test_an_assert_of_another_form_leaves_the_suite_as_it_is(line: str, ledger: Ledger) -> None:
    task = converted(f"def check(c):\n    {line}\ncheck(f)\n", ledger)
    assert "cases" not in task.trusted and ledger.counts["admission.asserts_kept"] == 1


ZERO = """
METADATA = {}
def check(candidate):
    import math
    import random
    rng = random.Random(7)
    import copy
    for _ in range(60):
        coefficients = []
        for _ in range(2 * rng.randint(1, 4)):
            coefficients.append(rng.randint(-9, 9) or 1)
        solution = candidate(copy.deepcopy(coefficients))
        assert math.fabs(poly(coefficients, solution)) < 1e-4, "no root"
check(f)
"""
POLY = "import math\ndef poly(xs, x):\n    return sum(c * math.pow(x, i) for i, c in enumerate(xs))\n"
BISECT = """def f(xs):
    low, high = {start}
    while poly(xs, low) * poly(xs, high) > 0:
        low, high = low * 2, high * 2
    for _ in range(120):
        middle = (low + high) / 2
        if poly(xs, low) * poly(xs, middle) > 0:
            low = middle
        else:
            high = middle
    return {answer}
"""


def test_a_suite_that_accepts_any_root_becomes_cases_of_a_trusted_checker(ledger: Ledger) -> None:
    """The shape of the public task whose second reference solution finds another root."""
    first, other = (POLY + BISECT.format(start=start, answer="low") for start in ("-1.0, 1.0", "-0.01, 70.0"))
    nearly = ("low + 0.01", "str(low)", "float('nan')", "[low]", "0.0", "10**4000")
    wrong = [POLY + BISECT.format(start="-1.0, 1.0", answer=answer) for answer in nearly]
    wrong += ["def poly(xs, x):\n    return 0.0\ndef f(xs):\n    return 5.0\n", "def f(xs):\n    xs.clear()\n    return 1.0\n"]
    with Runners(CONFIG, ledger) as runners:
        (task,) = convert([suite(ZERO, first)], runners, ledger)
        answers = [Attempt("t", task, (program.encode(),), StopReason.SUBMITTED) for program in (first, other, *wrong)]
        verdicts = judge(answers, CONFIG, ledger, runners)
        claims = [o.claims for o in runners.run([Job(p.encode(), "f", prepare(task).inputs) for p in (first, other)])[0]]
    assert ledger.counts["admission.asserts_checked"] == 1 and "test_src" not in task.trusted and len(task.trusted["cases"]) == 60
    assert [v.verdict.value for v in verdicts] == ["pass", "pass", *["fail"] * len(wrong)], [(v.verdict, v.reason) for v in verdicts]
    assert sum(a != b for a, b in zip(*claims, strict=True)) > 5 and all(not v.labels for v in verdicts)


def test_asserts_of_any_form_about_one_claim_are_decided_by_a_checker(ledger: Ledger) -> None:
    body = """
def twice(v):
    return 2 * v
def check(c):
    import math
    assert c(1) > 1
    assert len([c(1)]) == 1 and c
    limit = 9
    y = c(4)
    assert y % 2 == 0 and y < limit, 'even'
    for k in (2, 3):
        z = c(k)
        assert z in (twice(k), -k) and math.sqrt(z * z) == abs(z)
        assert z == 2 * k
check(f)
"""
    assert "cases" not in converted(body, Ledger()).trusted, "`and c` uses the candidate itself"
    task = converted(body.replace(" and c\n", "\n"), ledger)
    rows = task.trusted["cases"]
    assert [(r["args"], "expected" in r, r.get("known")) for r in rows] == [
        ("(1,)", False, None), ("(1,)", False, None), ("(4,)", False, "{'limit': 9}"),
        ("(2,)", False, None), ("(2,)", True, None), ("(3,)", False, None), ("(3,)", True, None)]
    programs = (b"def f(x): return x * 2", b"def f(x): return x * 2 + (x == 4)")
    verdicts = judge([Attempt("t", task, (p,), StopReason.SUBMITTED) for p in programs], CONFIG, ledger)
    assert [(v.verdict.value, v.reason) for v in verdicts] == [("pass", ""), ("fail", "case 2: the checker says no")]


def test_a_suite_that_compares_the_candidate_with_itself_notes_the_references_value(ledger: Ledger) -> None:
    task = converted("def check(f):\n    assert f(2) == f(2)\n    assert tuple(f([1])) == tuple(f([1]))\ncheck(f)\n", ledger)
    assert [(r["args"], r["expected"]) for r in task.trusted["cases"]] == [("(2,)", "4"), ("([1],)", "(1, 1)")]


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


@pytest.mark.parametrize("name", [name for name in SETS if name != "humanevalfix_traps"])
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
