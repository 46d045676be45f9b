"""The admission gate, rule by rule: a task that breaks one rule is refused by that rule, and admitted when that rule alone is left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from dormouse_core.admission import gate as gate_module
from dormouse_core.admission.asserts import convert
from dormouse_core.admission.gate import Admission, Rule, certify, gate
from dormouse_core.admission.labelled import humanevalfix_traps, truth_table
from dormouse_core.admission.mutants import mutants, random_inputs
from dormouse_core.admission.own import admit_folder
from dormouse_core.admission.repo_answers import everywhere, hostile_patches, null_patches
from dormouse_core.admission.several import ROOT, SEVERAL
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.own import own_task
from dormouse_core.tasks.patch import apply, parse
from dormouse_core.tasks.public import load_public
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.repo import judge_patch, prepare
from dormouse_core.verifiers.verdict import VerdictClass
from tests.core.rollouts.made import changed

CONFIG = VerifyConfig(workers=2)
PAIRS = [(3, 5), (-2, 7), (0, 11), (12, -4), (50, 2), (-9, -9), (1, 1), (7, 30), (-40, 3), (22, 21), (6, 0), (-1, 13)]
REFERENCE = "def f(a, b):\n    return a * 3 - b\n"


def task(reference: str = REFERENCE, pairs: list[Any] | None = None, prompt: str = "three times a, less b", **fields: Any) -> Task:
    """A task that every rule admits, cases from its own reference, with some fields changed."""
    scope: dict[str, Any] = {}
    exec(compile(reference, "reference", "exec"), scope)  # our own text
    cases = [{"args": repr(p), "expected": repr(scope["f"](*p))} for p in pairs or PAIRS]
    given = {"pool": Pool.CODE, "family": "t", "prompt": prompt.encode(), "environment": "answer", "verifier": VerifierKind.EXEC,
             "split": Split.TRAIN, "use": Use.TRAIN, "trusted": {"entry_point": "f", "cases": cases}, "reference": (reference.encode(),),
             "byte_budget": 400, "params": {"alternatives": [reference.replace("a * 3", "(a + a + a)")]}}
    return Task(**given | fields)


def question(prompt: str, answer: str, guess_bound: float) -> Task:
    return Task(pool=Pool.MATH, family="q", prompt=prompt.encode(), environment="answer", verifier=VerifierKind.EXACT,
                trusted={"answer": answer, "form": "string"}, reference=(answer.encode(),), guess_bound=guess_bound, split=Split.TRAIN,
                use=Use.TRAIN)


GOOD = task()
STORY = " ".join(f"word{i} of the story" for i in range(20))
CHECK = "def check(c):\n    assert c(2) == 4 and c(9) == 18\ncheck(f)\n"
BROKEN: dict[Rule, list[tuple[Task, str]]] = {
    Rule.NOVELTY: [(changed(GOOD, byte_budget=399), "the same problem")],
    Rule.SOLVABLE: [(task(byte_budget=20), "the budget is 20"), (task(max_steps=1, reference=REFERENCE, byte_budget=3), "bytes")],
    Rule.LEAK: [(task(pairs=[*PAIRS, (4000, 1)], prompt="three times a, less b: 11999"), "hidden case 12"),
                (task(prompt=f"write {REFERENCE}"), "reference stands"),
                (task(prompt="three times a, less b: f(-9, -9) = -18, f(22, 21) = 45"), "2 of its 12 hidden cases are shown"),
                (task(prompt="three times a, less b, e.g. for a = -40 and b = 3 the output should be -123."), "(the first is case 8)"),
                (question("How many? The answer is 4711.", "4711", 0.1), "which answer is right")],
    Rule.GUESS: [(task(pairs=[(1, 3)] * 8 + PAIRS[:4]), "have one value"), (task(pairs=PAIRS[:3]), "guessed with chance"),
                 (question("yes or no?", "yes", 0.7), "right in 70%")],
    Rule.DETERMINISM: [
        (changed(GOOD, reference=(b"def f(a, b):\n    return a * 3 + b\n",), params={}), "judged fail"),
        (changed(GOOD, params={}, reference=(
            b"import os\ndef f(a, b):\n    return a * 3 - b if os.urandom(1)[0] > 60 else None\n",)), "judged")],
    Rule.NULL: [(task("def f(a, b):\n    return a\n", params={}), "echo/0 passes"),
                (task(start={"program_prefix": "def helper(a, b):\n    return 3 * a - b\n"}), "inherited_helper")],
    Rule.LOOKUP: [(task(params=GOOD.params | {"visible_cases": [dict(c) for c in GOOD.trusted["cases"]]}), "are shown")],
    Rule.HACKS: [(task(params={}, trusted={"entry_point": "f", "test_src": CHECK}, reference="def f(x):\n    return 2 * x\n", pairs=[(2,)]),
                  "equal_to_all/0 passes")],
    Rule.UNIQUENESS: [
        (task(pairs=[(a, b) for a, b in PAIRS if a >= 0] + [(99, 1), (98, 5), (97, 3)],
              params={"alternatives": ["def f(a, b):\n    return abs(a) * 3 - b\n"]}), "random inputs"),
        (task(params={"alternatives": ["def f(a, b):\n    return a * 3 + b\n"]}), "another solution is judged fail")],
    Rule.MUTANTS: [(task("def f(a, b):\n    if a > 60:\n        return (a + 7) * b - 11 * a + 5\n    return a * 3 - b\n", params={}),
                    "small changes of the reference")],
}


RESTS_ON = {Rule.DETERMINISM: (Rule.MUTANTS,)}
"""Rules that ask nothing of a task whose reference is wrong."""


def refused(*tasks: Task, without: tuple[Rule, ...] = (), ledger: Ledger | None = None) -> list[tuple[Rule | None, str]]:
    return [(a.refused_by, a.reason) for a in gate(tasks, CONFIG, ledger or Ledger(), without=without)]


def test_a_good_task_is_admitted_with_every_rule_asked() -> None:
    ledger = Ledger()
    (found,) = gate([GOOD], CONFIG, ledger)
    assert (found.refused_by, found.reason, found.unchecked) == (None, "", ())
    assert ledger.counts["admission.admitted"] == 1 and not ledger.lines


def test_every_rule_has_a_task_that_breaks_it() -> None:
    assert list(BROKEN) == list(Rule)


ROWS = [(rule, broken if rule is Rule.NOVELTY else changed(broken, prompt=broken.prompt + f" ({rule} {i})".encode()), why)
        for rule, rows in BROKEN.items() for i, (broken, why) in enumerate(rows)]
"""A prompt of its own for each, so that they are new."""


@pytest.fixture(scope="module")
def judged() -> tuple[list[Admission], Ledger]:
    """Every broken task, behind a good one, in one call."""
    ledger = Ledger()
    return gate([GOOD, *(broken for _, broken, _ in ROWS)], CONFIG, ledger), ledger


@pytest.mark.parametrize("row", range(len(ROWS)), ids=[f"{rule}" for rule, _, _ in ROWS])
def test_a_task_that_breaks_a_rule_is_refused_by_it_and_named(row: int, judged: tuple[list[Admission], Ledger]) -> None:
    (rule, broken, why), (found, ledger) = ROWS[row], judged
    assert found[row + 1].refused_by is rule and why in found[row + 1].reason, found[row + 1]
    assert any(broken.id[:12] in line and rule in line for line in ledger.lines)
    assert ledger.counts[f"admission.refused.{rule}"] == len(BROKEN[rule]) and found[0].refused_by is None


@pytest.mark.parametrize("rule", Rule)
def test_it_is_refused_by_no_other(rule: Rule) -> None:
    broken = next(t for r, t, _ in ROWS if r is rule)
    tasks = (GOOD, broken) if rule is Rule.NOVELTY else (broken,)
    assert [found for found, _ in refused(*tasks, without=(rule, *RESTS_ON.get(rule, ())))] == [None] * len(tasks)


NOT_LEAKS = [
    task(prompt="three times a, less b: f(1000, 2) = 2998; f(49, -1) = 148"),  # the value of f(50, 2), shown for another input
    task(prompt="three times a, less b. Never more than 148000, nor a - b = -13."),
    task("def f(a, b):\n    return 'even' if (a + b) % 2 == 0 else 'odd' if a > b else 'neither'\n",
         prompt="'even' if a + b is even, else 'odd' if a > b, else 'neither'", params={}, byte_budget=400),
    task(REFERENCE.rstrip(), prompt=f"repair it:\n{REFERENCE}    return b\n".replace("return a", "b = a"), params={
        "given": f"{REFERENCE}    return b\n"}),
]


@pytest.mark.parametrize("case", range(len(NOT_LEAKS)))
def test_what_says_nothing_of_a_hidden_input_is_no_leak(case: int) -> None:
    others = tuple(set(Rule) - {Rule.LEAK})
    assert refused(NOT_LEAKS[case], without=others) == [(None, "")]


def test_a_template_of_many_tasks_makes_no_two_of_them_alike_and_a_copy_is_still_seen() -> None:
    def prompt(i: int) -> bytes:
        return f"{STORY} and then the question is whether {i * 7919} is larger than {i * 104729 % 1000} or not, {STORY[::-1]}".encode()

    others = tuple(set(Rule) - {Rule.NOVELTY})
    tasks = [changed(GOOD, prompt=prompt(i), params={}) for i in range(1, 31)]
    assert [rule for rule, _ in refused(*tasks, without=others)] == [None] * 30
    again = changed(tasks[3], byte_budget=300)
    assert refused(*tasks, again, without=others)[-1][0] is Rule.NOVELTY
    assert [rule for rule, _ in refused(*tasks[:2], without=others)] == [None, Rule.NOVELTY], "two alone have no template"


def test_nearly_the_same_words_are_no_new_task() -> None:
    texts = (STORY, STORY.replace("word3 ", "word99 "))
    first, second = (changed(GOOD, prompt=text.encode(), params={}) for text in texts)
    other = changed(GOOD, prompt=STORY[::-1].encode(), params={})
    assert [rule for rule, _ in refused(first, second, other, without=tuple(set(Rule) - {Rule.NOVELTY}))] == [None, Rule.NOVELTY, None]


def test_what_cannot_be_checked_is_counted_never_passed_in_silence() -> None:
    ledger = Ledger()
    bare = changed(GOOD, reference=(), params={})
    (found,) = gate([bare], CONFIG, ledger)
    assert found.refused_by is None
    assert set(found.unchecked) == {Rule.SOLVABLE, Rule.DETERMINISM, Rule.UNIQUENESS, Rule.MUTANTS}
    assert all(ledger.counts[f"admission.unchecked.{rule}"] == 1 for rule in found.unchecked)


def test_a_task_whose_data_cannot_be_used_is_refused_and_named() -> None:
    data: list[dict[str, Any]] = [
        {}, {"entry_point": "f", "cases": []}, {"entry_point": "f", "cases": [{"args": "1", "expected": "2"}]},
        {"entry_point": "f", "cases": [{"args": "(1,)"}]}, {"entry_point": 7, "cases": 9}]
    tasks = [changed(GOOD, trusted=trusted, params={}, prompt=str(i).encode(), reference=reference)
             for reference in (GOOD.reference, ()) for i, trusted in enumerate(data, 10 * len(reference))]
    assert all(rule is not None and reason for rule, reason in refused(*tasks))


def test_tasks_with_several_right_answers_are_admitted_with_every_rule_asked() -> None:
    found = gate([ROOT.task], CONFIG, Ledger()) + gate([s.task for s in SEVERAL if s is not ROOT], CONFIG, Ledger(), without=(Rule.HACKS,))
    assert [(a.refused_by, a.reason, a.unchecked) for a in found] == [(None, "", ())] * len(SEVERAL)


def checked(body: str, *alternatives: str, accepts: str = "int", reference: str = REFERENCE) -> Task:
    cases = [{"args": repr(p)} for p in PAIRS]
    return task(reference, params={"alternatives": list(alternatives)}, prompt=f"three times a, less b, or so ({body})", trusted={
        "entry_point": "f", "cases": cases, "checker": {"program": f"def check(args, value):\n    {body}\n", "accepts": accepts}})


NEAR = "return abs(value - (args[0] * 3 - args[1])) <= 1"


@pytest.mark.parametrize(("made", "rule", "why"), [
    (checked("return True"), Rule.GUESS, "always 0: 100% of its 12 hidden cases"),
    (checked("return value > -200"), Rule.GUESS, "always"),
    (checked("return abs(value - (args[0] * 3 - args[1])) < 40"), Rule.GUESS, "have one value"),
    (checked("return value == args[0] * 3 + args[1]"), Rule.DETERMINISM, "judged fail by exec.checker"),
    (checked("return len(range(value * value)) >= 0 and " + NEAR[7:]), Rule.HACKS, "no verdict on"),
    (checked("return abs(round(value) - (args[0] * 3 - args[1])) <= 1", accepts="int | float"), Rule.HACKS, "no verdict on"),
    (checked("return value - (args[0] * 3 - args[1]) == 0", accepts="any"), Rule.NULL, "no verdict on always None"),
    (checked(NEAR, "def f(a, b):\n    return a * 3 - b + 2\n"), Rule.UNIQUENESS, "another solution is judged fail"),
    (checked(NEAR + " or args[0] > 60", "def f(a, b):\n    return a * 3 - b + (a > 60)\n"), None, ""),
    (checked(NEAR, "def f(a, b):\n    return a * 3 - b + (9 if a > 60 else 0)\n"), Rule.UNIQUENESS, "random inputs"),
    (checked(NEAR, "def f(a, b):\n    return a * 3 - b + 1\n", "def f(a, b):\n    return a * 3 - b - a % 2\n"), None, "")])
def test_a_checker_is_exercised_before_its_task_is_believed(made: Task, rule: Rule | None, why: str) -> None:
    ((found, reason),) = refused(made)
    assert found is rule and why in reason, (found, reason)


def test_a_mutant_that_the_checker_takes_is_no_fault_of_the_hidden_cases() -> None:
    """`<` for `<=` and the like give another right answer, not a wrong one."""
    tied = "def f(a, b):\n    return a if a * a >= b * b else b\n"
    wide = [*PAIRS, (3, -3), (-8, 8), (25, -25), (9, 20)]
    body = "return value in args and all(value * value >= each * each for each in args)"
    largest = changed(checked(body, reference=tied), trusted=checked(body).trusted | {"cases": [{"args": repr(p)} for p in wide]})
    assert refused(largest) == [(None, "")]


def test_mutants_differ_from_the_reference_and_lie_in_the_candidates_part() -> None:
    shaped = draw("slice_function", 2, Split.TRAIN, 0, "gate")
    found = mutants(shaped)
    assert 3 <= len(found) <= 20 and len(set(found)) == len(found)
    assert all(text.startswith("def f(s):\n    return ") for text in found)
    assert mutants(changed(GOOD, reference=(b"not python (",))) == []


def test_random_inputs_have_the_types_of_the_hidden_cases() -> None:
    mixed = task("def f(a, b):\n    return len(a)\n", pairs=[([1, 2], {"k": (1.5, "x")}), ([], {"k": (0.0, "")})], params={})
    for row, flag in random_inputs(mixed, 50):
        assert type(row) is list and type(flag) is dict and all(type(v) is tuple for v in flag.values())


def test_cells_are_certified_once_a_process(ledger: Ledger) -> None:
    cells = [("slice_function", 1), ("gcd", 0)]
    first = certify(cells, CONFIG, ledger, per_cell=1)
    again = certify(cells, CONFIG, ledger, per_cell=1)
    assert first == again and all(a.refused_by is None for a in first)
    assert (ledger.counts["admission.cells"], ledger.counts["admission.cells_known"]) == (2, 2)


def test_every_cell_that_nano_trains_is_admitted(ledger: Ledger) -> None:
    cells = [(c.family, c.difficulty) for c in load_suite("nano").role("train")]
    assert [(a.cell, a.reason) for a in certify(cells, CONFIG, ledger) if a.refused_by] == []


def own_folder(folder: Path, *lines: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mine.jsonl").write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return folder


PROGRAM = {"id": "p1", "prompt": "def f(a, b):\n    '''three times a, less b'''\n", "entry_point": "f",
           "reference": "    return a * 3 - b\n", "tests": [dict(c) for c in GOOD.trusted["cases"]]}


def test_a_folder_of_own_tasks_is_told_apart_task_by_task(tmp_path: Path, ledger: Ledger) -> None:
    folder = own_folder(tmp_path / "own", PROGRAM, {"question": "3 + 4 = ?", "answer": 7}, PROGRAM | {"id": "p2"}, "not json",
                        {"prompt": 5}, "", GOOD.model_dump_json())
    report = admit_folder(folder, 0, ledger)
    (row,) = report.rows
    assert (row.tasks, row.admitted, row.broken, row.refused) == (4, 3, 2, {"novelty": 1}) and not report.holds
    assert report.refused[0].source == "p2" and any("line 4 is no task" in line for line in ledger.lines)


def test_own_tasks_may_bring_a_checker_a_list_of_values_or_any_order(tmp_path: Path, ledger: Ledger) -> None:
    lines = []
    for s in SEVERAL[1:]:
        given = {k: v for k, v in s.task.trusted.items() if k != "cases"}
        lines.append(given | {"id": s.task.family, "family": "mine", "byte_budget": 1024, "prompt": s.task.prompt.decode(),
                              "tests": s.task.trusted["cases"], "reference": s.right[0], "alternatives": list(s.right[1:])})
    useless = {"program": "def check(args, value, known):\n    return 1\n", "accepts": "str"}
    broken = lines[0] | {"id": "broken", "prompt": "another", "checker": useless}
    report = admit_folder(own_folder(tmp_path / "own", *lines, broken), 0, ledger)
    assert [(r.source, r.refused_by) for r in report.refused] == [("broken", Rule.DETERMINISM)]
    assert "exec.checker" in report.refused[0].reason and report.rows[0].admitted == 3


def test_own_lines_that_are_no_tasks_are_named_with_their_id_and_their_cause(tmp_path: Path, ledger: Ledger) -> None:
    bare = {k: v for k, v in PROGRAM.items() if k != "tests"}
    lines = [bare | {"id": "none"}, bare | {"id": "empty", "tests": []}, bare | {"id": "text", "tests": "abc"}, bare | {"tests": 5},
             [1], "{"]
    (row,) = admit_folder(own_folder(tmp_path / "own", *lines), 0, ledger).rows
    said = "\n".join(ledger.lines)
    assert (row.tasks, row.broken) == (0, 6) and "6 lines of mine.jsonl in all" in said
    assert all(f"line {n} ({name}) is no task (no hidden cases" in said for n, name in ((1, "none"), (2, "empty")))
    assert "line 3 (text) is no task (a test is an object" in said


def repository(problem: str, **changes: str) -> dict[str, Any]:
    """A row of a repository whose `size` is asked for; `changes` of its hidden test or tree."""
    tree = {"box.py": "def size(w, h):\n    return w + h\n\n\ndef named():\n    return 'box'",
            "test_box.py": "def test_size():\n    assert True\n"}
    body = changes.get("test", "    assert size(3, 4) == 12\n    assert size(5, 6) == 30\n")
    fix = "--- a/box.py\n+++ b/box.py\n@@ -1,2 +1,2 @@\n def size(w, h):\n-    return w + h\n+    return w * h\n"
    hidden = f"from box import named, size\ndef test_size():\n{body}def test_named():\n    assert named() == 'box'\n"
    lines = "".join(f"+{line}\n" for line in hidden.splitlines())
    test_patch = f"--- a/test_box.py\n+++ b/test_box.py\n@@ -1,2 +1,{lines.count(chr(10))} @@\n-def test_size():\n-    assert True\n{lines}"
    return {"instance_id": problem.split()[0], "problem_statement": problem + changes.get("says", ""), "patch": changes.get("fix", fix),
            "test_patch": test_patch, "FAIL_TO_PASS": ["test_box.py::test_size"],
            "PASS_TO_PASS": [] if "test" in changes else ["test_box.py::test_named"], "files": tree}


def test_repository_tasks_go_through_the_gate(tmp_path: Path, ledger: Ledger) -> None:
    """A good one is admitted; one that its tree already solves, that one constant solves, whose repair stands in its prompt or whose
    known patch does not solve it is refused by the rule of that name."""
    def row(name: str, **changes: str) -> dict[str, Any]:
        return repository(f"{name} {STORY.replace('word', name)}", **changes)

    good = row("good")
    nothing = good["patch"].replace("w * h", "h + w")
    lines = [good, row("solved", test="    assert size(3, 4) == 7\n", fix=nothing),
             row("zero", test="    assert size(0, 4) == 0\n"),
             row("twelve", test="    assert size(3, 4) == 12\n    assert size(2, 6) == 12\n"),
             row("told", says=f"\n{good['patch']}"), row("unsolved", fix=nothing)]
    report = admit_folder(own_folder(tmp_path / "own", *lines), 0, ledger)
    found = {r.source: (r.refused_by, r.reason) for r in report.refused}
    assert (report.rows[0].tasks, report.rows[0].admitted) == (6, 1), found
    assert {name: rule for name, (rule, _) in found.items()} == {
        "solved": Rule.NULL, "zero": Rule.NULL, "twelve": Rule.NULL, "told": Rule.LEAK, "unsolved": Rule.DETERMINISM}
    assert [found[name][1] for name in ("solved", "zero", "twelve")] == [  # False == 0, as in any test
        f"{answer} passes" for answer in ("a file nobody asked for", "every function returns False", "every function returns 12")]
    assert set(report.rows[0].unchecked) == {"guess", "lookup", "uniqueness", "mutants"}


def test_every_patch_that_must_fail_fits_its_tree_and_is_judged() -> None:
    made = own_task(repository("box"), "box")
    patches = dict((*null_patches(made), *hostile_patches(made)))
    assert len(patches) == 16
    for name, (text,) in patches.items():
        found, _ = judge_patch(prepare(made), text, CONFIG)
        assert found.verdict is (VerdictClass.UNPARSEABLE if name in ("nothing", "echo") else VerdictClass.FAIL), (name, found)
        assert name in ("nothing", "echo") or found.ran
    tree = {"a.py": "", "b.py": "\n", "c.py": "x = 1", "d.py": "x = 1\r\n\n", "e.txt": ""}
    after = apply(tree, parse(everywhere(changed(made, start={"files": tree}), "z = 9\n").decode()))
    assert after == {path: text if path == "e.txt" else text + ("\n" if path == "c.py" else "") + "z = 9\n" for path, text in tree.items()}


def test_a_folder_without_task_files_is_an_error_with_a_way_out(tmp_path: Path, ledger: Ledger) -> None:
    with pytest.raises(DormouseError, match="one task a line"):
        admit_folder(tmp_path, 0, ledger)


def test_a_body_stands_behind_its_signature_and_a_whole_program_alone() -> None:
    assert own_task(PROGRAM, "x").start == {"program_prefix": PROGRAM["prompt"]}
    assert own_task(PROGRAM | {"reference": REFERENCE}, "x").start == {}


def test_buggy_programs_that_pass_the_shown_tests_are_caught_by_the_hidden_ones(tasks_dir: Path, ledger: Ledger) -> None:
    traps = list(humanevalfix_traps(tasks_dir))
    (row,) = truth_table(traps, CONFIG, ledger)
    assert len(traps) == 9 and (row.wrong, row.false_passes, row.no_verdict) == (9, 0, 0)
    names = [Path(x.attempt.task.source).name for x in traps]
    plain = [t for t in load_public("humanevalfix", tasks_dir, ledger) if t.params["id"].split("/")[1] in names]
    with Runners(CONFIG, ledger) as runners:
        plain = convert(plain, runners, ledger)
    assert len(plain) == 9
    assert not any("as it was given" in reason for _, reason in refused(*plain, without=tuple(set(Rule) - {Rule.NULL})))


def test_a_broken_rule_of_the_gate_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above notice a gate that forgets a rule."""
    monkeypatch.setattr(gate_module, "nulls", lambda task: iter(()))
    assert refused(BROKEN[Rule.NULL][0][0])[0][0] is not Rule.NULL
