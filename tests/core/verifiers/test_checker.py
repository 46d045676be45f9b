"""Tasks with more than one right answer: trusted checkers, lists of right values, any order; and what hostile claims make of them."""

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dormouse_core.admission.checked import BREAKERS, breakers
from dormouse_core.admission.several import SEVERAL, answers
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox import wire
from dormouse_core.sandbox.runner import Claim, End, Job, Outcome, Runners
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers import checker, shape
from dormouse_core.verifiers.attempt import Attempt, BadTask
from dormouse_core.verifiers.cases import prepare
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.core.rollouts.made import changed

V = VerdictClass
CONFIG = VerifyConfig(cpu_seconds=1.0, wall_seconds=10, workers=2)


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    with Runners(CONFIG, Ledger()) as running:
        yield running


def made(program: str, *cases: dict[str, Any], accepts: str = "any", **trusted: Any) -> Task:
    """A task whose `f` is asked for something the checker likes; one case f(4) where none is given."""
    return Task(pool=Pool.CODE, family="checked", prompt=program.encode(), environment="answer", verifier=VerifierKind.EXEC,
                trusted={"entry_point": "f", "cases": list(cases) or [{"args": "(4,)"}], **trusted,
                         "checker": {"program": program, "accepts": accepts}}, split=Split.PUBLIC, use=Use.EVALUATION)


def with_trusted(task: Task, **trusted: Any) -> Task:
    return changed(task, trusted={"entry_point": "f", **trusted})


def claim(task: Task, expression: str, runners: Runners, ledger: Ledger | None = None, head: str = "") -> Verdict:
    source = f"{head}\ndef f(*a):\n    return {expression}\n"
    return judge([Attempt("t", task, (source.encode(),), StopReason.SUBMITTED)], CONFIG, ledger or Ledger(), runners)[0]


ONE = (1).to_bytes(4, "little")
SQUARE = "def check(args, value):\n    return value * value == args[0]\n"


def test_every_right_answer_passes_and_every_wrong_one_does_not(runners: Runners) -> None:
    rows = list(answers())
    attempts = [Attempt(name, task, (program.encode(),), StopReason.SUBMITTED) for name, task, program, _ in rows]
    verdicts = judge(attempts, CONFIG, Ledger(), runners)
    assert [v.trajectory_id for v, (*_, right) in zip(verdicts, rows, strict=True) if (v.verdict is V.PASS) is not right] == []
    assert {v.verdict for v in verdicts} == {V.PASS, V.FAIL}
    for each in SEVERAL:
        claimed = runners.run([Job(p.encode(), each.task.trusted["entry_point"], prepare(each.task).inputs) for p in each.right])[0]
        assert len({tuple(c.payload for c in outcome.claims) for outcome in claimed}) == len(each.right), "right answers differ in value"


@pytest.mark.parametrize(("expression", "verdict", "why"), [
    ("2", V.PASS, ""), ("-2", V.PASS, ""), ("3", V.FAIL, "the checker says no"), ("2.0", V.FAIL, "wrong float where int is due"),
    ("'2'", V.FAIL, "wrong str"), ("True", V.FAIL, "wrong bool"), ("[2]", V.FAIL, "wrong list"), ("None", V.FAIL, "wrong None"),
    ("1 // 0", V.FAIL, "raise:ZeroDivisionError"), ("object()", V.FAIL, "no wire type"), ("type('I', (int,), {})(2)", V.PASS, "")])
def test_the_checker_decides_and_a_claim_of_another_kind_is_wrong(expression: str, verdict: V, why: str, runners: Runners) -> None:
    found = claim(made(SQUARE, accepts="int"), expression, runners)
    assert found.verdict is verdict and why in found.reason and (verdict is V.FAIL or found.decided_by == checker.BY)
    assert found.score == (verdict is V.PASS)


@pytest.mark.parametrize(("body", "why"), [
    ("return value / 0", "raised ZeroDivisionError"), ("while True:\n        pass", "ended by cpu"), ("return 1", "no bool"),
    ("return None", "no bool"), ("return 'True'", "no bool"), ("return [True]", "no bool"), ("return object()", "no bool"),
    ("import os\n    os._exit(0)", "ended by early_exit"), ("raise SystemExit(0)", "raised SystemExit"),
    ("return 'x' * (1 << 18)", "ended by output"), ("import os\n    os.fork()", "raised PermissionError"),
    ("return open('/etc/passwd')", "raised"), ("return args[7]", "raised IndexError")])
def test_a_checker_without_an_opinion_is_an_error_of_the_verifier_never_a_fail(body: str, why: str, runners: Runners) -> None:
    ledger = Ledger()
    found = claim(made(f"def check(args, value):\n    {body}\n"), "2", runners, ledger)
    assert (found.verdict, found.decided_by, found.score) == (V.VERIFIER_ERROR, checker.BY, 0.0) and why in found.reason, found.reason
    assert ledger.counts["exec.checker_errors"] == 1 and ledger.counts["verify.bad_tasks"] == 1
    assert any("is refused by the exec verifier" in line for line in ledger.lines)


def test_a_checker_that_does_not_load_is_an_error_of_the_verifier(runners: Runners) -> None:
    found = claim(made("raise ValueError\ndef check(args, value):\n    return True\n"), "2", runners)
    assert found.verdict is V.VERIFIER_ERROR and "does not load, load:ValueError" in found.reason


def test_a_wrong_claim_is_wrong_whatever_the_checker_makes_of_another_case(runners: Runners) -> None:
    picky = made("def check(args, value):\n    return {4: True, 9: 1 / 0 if args[0] == 9 else True}[args[0]]\n",
                 {"args": "(9,)"}, {"args": "(4,)"}, {"args": "(5,)", "expected": "7"})
    assert claim(picky, "7", runners).verdict is V.VERIFIER_ERROR
    wrong = claim(picky, "8", runners)
    assert (wrong.verdict, wrong.decided_by, wrong.reason) == (V.FAIL, "exec.compare", "case 2: wrong int")


def test_cases_of_every_kind_stand_side_by_side_and_the_score_is_their_share(runners: Runners) -> None:
    mixed = made("def check(args, value):\n    return value > 0\ndef exact(args, value, known):\n    return value == known\n",
                 {"args": "(1,)"}, {"args": "(2,)", "expected": "2"}, {"args": "(3,)", "any_of": ["3", "-3"]},
                 {"args": "(4,)", "check": "exact", "known": "4"}, accepts="int")
    assert claim(mixed, "a[0]", runners).verdict is V.PASS
    found = claim(mixed, "-a[0]", runners)
    assert (found.verdict, found.cases_passed, found.score) == (V.FAIL, 1, 0.25) and found.reason == "case 0: the checker says no"


def test_the_checker_runs_in_a_process_of_its_own_and_is_in_no_other(runners: Runners) -> None:
    """What a candidate leaves behind does not reach the checker, and nothing of the checker is where the candidate runs."""
    clean = made("import builtins\nMARK = 'needle-4711'\ndef check(args, value):\n    return not hasattr(builtins, 'left') and "
                 "abs(-1) == 1 and value == 'none found'\n", accepts="str")
    head = ("import builtins, gc, sys\nbuiltins.left = 1\nbuiltins.abs = lambda x: 7\nbuiltins.hasattr = lambda *a: False\n"
            "def seen():\n    yield from map(str, gc.get_objects())\n    frame = sys._getframe()\n    while frame:\n"
            "        yield str(frame.f_globals) + str(frame.f_locals)\n        frame = frame.f_back\n"
            "def wanted():\n    return '-'.join(('needle', str(4700 + len('checker.org'))))\n")
    searched = "'checker found' if any(wanted() in text for text in seen()) else 'none found'"
    found, planted = (claim(clean, searched, runners, head=head + more) for more in ("", "X = wanted()\n"))
    assert found.verdict is V.PASS, found.reason
    assert planted.verdict is V.FAIL, "the search finds what is there"


@pytest.mark.parametrize("each", SEVERAL, ids=lambda s: s.task.family)
def test_claims_made_to_break_a_checker_are_wrong_and_nothing_else(each: Any, runners: Runners) -> None:
    began = time.monotonic()
    programs = breakers(each.task.trusted["entry_point"])
    attempts = [Attempt(about, each.task, (source.encode(),), StopReason.SUBMITTED) for about, source in programs]
    verdicts = judge(attempts, CONFIG, Ledger(), runners)
    assert len(verdicts) == len(BREAKERS) and {v.verdict for v in verdicts} == {V.FAIL}, [(v.trajectory_id, v.reason) for v in verdicts]
    assert time.monotonic() - began < 10


def test_a_checker_that_takes_anything_is_still_never_shown_a_nan_or_a_value_past_its_limits(runners: Runners) -> None:
    gullible = made("def check(args, value):\n    return True\n")
    assert claim(gullible, "7", runners).verdict is V.PASS
    for expression in ("float('nan')", "[1, {2: float('nan')}]", "complex(0, float('nan'))", "'x' * 20000", "[0] * 20000", "1 << 140000"):
        assert claim(gullible, expression, runners).verdict is V.FAIL
    nested = "def nest(n):\n    v = []\n    for _ in range(n):\n        v = [v]\n    return v\n"
    assert [claim(gullible, f"nest({n})", runners, head=nested).verdict for n in (31, 33)] == [V.PASS, V.FAIL]


@pytest.mark.parametrize("payload", [
    b"", b"l\xff\xff\xff\xff", b"S" + ONE + wire.encode([1]), b"d" + ONE + wire.encode([1]) * 2, b"S" + ONE + wire.encode(({1: 2},)),
    b"s" + ONE + b"\xff", wire.encode(1) + b"N", b"i\x00\x00\x00\x00"])
def test_bytes_that_no_honest_child_writes_are_a_violation_and_reach_no_checker(payload: bytes) -> None:
    found = checker.refused(payload, shape.read("any"), 0)
    assert found is not None and found[0] is V.VIOLATION


def test_the_hardest_claim_that_reaches_a_checker_costs_it_little(runners: Runners) -> None:
    """Colliding keys, as many as a claim may hold, rebuilt in the checker's child."""
    takes = made("def check(args, value):\n    return len(value) > 1000\n", accepts="set[int]")
    found = claim(takes, "{k * ((1 << 61) - 1) for k in range(1150)}", runners)
    assert found.verdict is V.PASS, found.reason


def test_many_cases_are_asked_in_several_turns(runners: Runners) -> None:
    text = "x" * 200_000
    cases = [{"args": repr((text + "y" * i,)), "known": repr("z" * 100_000)} for i in range(4)]
    long = made("def check(args, value, known):\n    return value == len(args[0]) and len(known) == 100_000\n", *cases, accepts="int")
    assert claim(long, "len(a[0])", runners).verdict is V.PASS
    assert claim(long, "200000", runners).cases_passed == 1


def test_a_canary_of_checkers_that_is_answered_wrongly_leaves_their_tasks_without_verdict(monkeypatch: pytest.MonkeyPatch,
                                                                                           runners: Runners) -> None:
    plain = with_trusted(made(SQUARE), cases=[{"args": "(4,)", "expected": "2"}])
    batch = [Attempt("t", task, (b"def f(x):\n    return 2\n",), StopReason.SUBMITTED) for task in (made(SQUARE), plain)]
    assert [v.verdict for v in judge(batch, CONFIG, Ledger(), runners)] == [V.PASS, V.PASS]
    for lie in (b"return True", b"return False", b"return 1", b"return 1 / 0"):
        program = b"def check(args, value):\n    " + lie + b"\n"
        monkeypatch.setattr(checker, "CANARY", Job(program, "check", checker.CANARY.inputs))
        ledger = Ledger()
        found = judge(batch, CONFIG, ledger, runners)
        assert [(v.verdict, v.decided_by) for v in found] == [(V.VERIFIER_ERROR, "exec.canary"), (V.PASS, "exec.compare")]
        assert ledger.counts["exec.canary_failures"] == 1 and any("canary of trusted checkers" in line for line in ledger.lines)


def test_a_runner_that_dies_under_a_checker_gives_no_verdict(monkeypatch: pytest.MonkeyPatch, runners: Runners) -> None:
    honest = runners.run

    def dying(jobs: Any, canaries: Any = ()) -> Any:
        outcomes, heard = honest(jobs, canaries)
        return ([Outcome(End.INFRA, "the runner died") for _ in jobs], heard) if canaries == [checker.CANARY] else (outcomes, heard)

    monkeypatch.setattr(runners, "run", dying)
    found = claim(made(SQUARE), "2", runners)
    assert (found.verdict, found.decided_by, found.score) == (V.VERIFIER_ERROR, "exec.runner", 0.0)


@pytest.mark.parametrize("trusted", [
    {"cases": [{"args": "()"}]}, {"cases": [{"args": "()", "check": "check"}]}, {"cases": [{"args": "()", "expected": "1"}], "checker": {}},
    {"cases": [{"args": "()"}], "checker": {}}, {"cases": [{"args": "()"}], "checker": SQUARE},
    {"cases": [{"args": "()"}], "checker": {"program": SQUARE}},
    {"cases": [{"args": "()"}], "checker": {"program": "def (", "accepts": "int"}},
    {"cases": [{"args": "()"}], "checker": {"program": "check = 1", "accepts": "int"}},
    {"cases": [{"args": "()", "check": "other"}], "checker": {"program": SQUARE, "accepts": "int"}},
    {"cases": [{"args": "()"}], "checker": {"program": SQUARE, "accepts": "number"}},
    {"cases": [{"args": "()"}], "checker": {"program": SQUARE, "accepts": "list[int, int]"}},
    {"cases": [{"args": "()"}], "checker": {"program": SQUARE, "accepts": "int", "more": 1}},
    {"cases": [{"args": "()", "expected": "1", "check": "check"}], "checker": {"program": SQUARE, "accepts": "int"}},
    {"cases": [{"args": "()", "known": "f()"}], "checker": {"program": SQUARE, "accepts": "int"}},
    {"cases": [{"args": "()", "any_of": []}]}, {"cases": [{"args": "()", "any_of": "12"}]},
    {"cases": [{"args": "()", "any_of": ["1", "f("]}]},
    {"cases": [{"args": "()", "any_of": ["1"], "expected": "1"}]}, {"cases": [{"args": "()", "any_of": ["1e999 - 1e999"]}]},
    {"cases": [{"args": "()", "expected": "[1]"}], "relax": "order", "tolerance": 0.1},
    {"cases": [{"args": "()", "expected": "[1]"}], "relax": "any"},
])
def test_a_task_whose_checker_or_values_cannot_be_used_is_named_and_scores_nobody(trusted: dict[str, Any], runners: Runners) -> None:
    task = with_trusted(made(SQUARE), **trusted)
    with pytest.raises(BadTask):
        prepare(task)
    found = claim(task, "1", runners)
    assert (found.verdict, found.decided_by, found.score) == (V.VERIFIER_ERROR, "exec.task", 0.0) and found.reason


@pytest.mark.parametrize(("text", "fitting", "other"), [
    ("int", [0, -5, 1 << 70], [True, 1.0, "1", None, [1]]), ("int | float", [1, 1.5, math.inf], [True, 1j, "1"]),
    ("None", [None], [0, False]),
    ("list[int]", [[], [1, 2]], [[1.0], (1,), [True], [[1]], {1}]), ("list", [[], ["a", [None]]], [()]),
    ("tuple[int, str]", [(1, "a")], [(1,), ("a", 1), [1, "a"], (1, "a", 2)]), ("tuple[int, ...]", [(), (1,), (1, 2, 3)], [(1, "a"), [1]]),
    ("tuple[int]", [(1,)], [(), (1, 2)]), ("dict[str, list[int | None]]", [{}, {"a": [1, None]}], [{"a": 1}, {1: [1]}, {"a": ["b"]}]),
    ("set[str] | bool", [set(), {"a"}, False], [{1}, ["a"]]), ("any", [None, {1: {2: [3]}}, b"x", 1j], []), ("bytes", [b""], [""]),
    ("complex", [1j], [1]), ("list[list[tuple[int, int]]]", [[[(1, 2)]], [[]]], [[(1, 2)]])])
def test_a_shape_takes_its_own_kind_and_no_other(text: str, fitting: list[object], other: list[object]) -> None:
    wanted = shape.read(text)
    assert all(shape.fits(wire.decode_tree(wire.encode(v)), wanted) for v in fitting)
    assert not any(shape.fits(wire.decode_tree(wire.encode(v)), wanted) for v in other)


@pytest.mark.parametrize("text", [
    "", "number", "int or float", "list[int", "int[str]", "dict[int]", "set[int, int]", "1", "list[...]", "lambda: 1", "object()", 5])
def test_a_text_that_is_no_shape_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="names no kind of value"):
        shape.read(text)


def test_only_a_plain_yes_is_a_yes() -> None:
    others = ((b"V", b"F"), (b"V", wire.encode(1)), (b"V", b"TT"), (b"V", b""), (b"X", b"T"), (b"U", b"T"), (b"V", wire.encode([True])))
    for kind, payload in others:
        assert checker.said(Outcome(End.CLEAN, claims=(Claim(kind, payload),)), 0, 0) is not None
    assert checker.said(Outcome(End.CLEAN, claims=(Claim(b"V", b"T"),)), 0, 0) is None
    assert checker.said(Outcome(End.CLEAN), 0, 0) is not None
