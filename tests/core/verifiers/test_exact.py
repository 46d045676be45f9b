"""The exact verifier: every spelling of the answer, none of its neighbours, nothing evaluated, nothing sought elsewhere."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.envs.environment import StopReason
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers import exact
from dormouse_core.verifiers.attempt import Attempt, BadTask, Finding
from dormouse_core.verifiers.verdict import VerdictClass as V


def judge(answer: str, text: str | bytes, form: str = "number", stop: StopReason = StopReason.SUBMITTED, **trusted: object) -> Finding:
    task = Task(pool=Pool.MATH, family="t", prompt=b"", environment="answer", verifier=VerifierKind.EXACT, split=Split.TRAIN, use=Use.TRAIN,
                trusted={"answer": answer, "form": form, **trusted})
    return exact.judge(Attempt("t", task, (text.encode() if isinstance(text, str) else text,), stop))


EQUAL = [
    ("7", "7"), ("7", " 7\n"), ("7", "+7"), ("7", "07"), ("7", "7.0"), ("7", "7."), ("7", "7.000"), ("7", "14/2"), ("7", "A: 7"),
    ("7", "A:7."), ("7", "#### 7"), ("7", "x=7"), ("7", "3+4=7"), ("7", "1+2=3\n3+4=7"), ("7", "the answer is 7"),
    ("7", "The answer is 7."), ("7", "Answer: 7"), ("7", "first 3\nthen 7\n7"), ("7", "\\boxed{7}"), ("7", "$7$"), ("7", "**7**"),
    ("7", "A: \\boxed{7}"), ("7", "7e0"), ("7", "70e-1"), ("7", "0.7E1"), ("1234567", "1,234,567"), ("1234567", "1234567"),
    ("1234567", "1,234,567.0"), ("-3", "-3"), ("-3", "−3"), ("-3", "-3.0"), ("-3", "-6/2"), ("-3", "6/-2"), ("0", "-0"), ("0", "0.0"),
    ("0", "0/5"), ("0.5", "1/2"), ("0.5", ".5"), ("0.5", "0.50"), ("1/3", "2/6"), ("1/3", "\\frac{1}{3}"), ("$\\frac{6}{109}$", "6/109"),
    ("0.1", "1e-1"), ("0.3", "0.3"), ("1e3", "1000"), ("1000", "1,000"), ("5", "A: 6\nA: 5"), ("5", "x=4\nx=5"), ("4", "\\boxed{004}"),
    ("5", "so 2+3 is 5\nA: 5"),
]
UNEQUAL = [
    ("7", "8"), ("7", "-7"), ("7", "70"), ("7", "77"), ("7", "0.7"), ("7", "7.01"), ("7", "7,0"), ("7", "7 7"), ("7", "7/2"),
    ("7", "7e1"), ("7", "7%"), ("7", "7 apples"), ("7", "seven"), ("7", "3+4"), ("7", "7+0"), ("7", "7=8"), ("7", "7="),
    ("7", "A: 7\nA:"), ("7", "A: 7\nA: 8"), ("7", "7\n8"), ("7", "x7"), ("7", "7x"), ("7", "7_0"), ("7", "0x7"), ("7", "7:00"),
    ("7", "[7, 8]"), ("7", "(7)(1)"), ("7", "7!"), ("7", "not 7"), ("7", "٧"), ("7", "7²"), ("7", "7j"), ("7", "True"), ("7", "inf"),
    ("7", "nan"), ("1", "True"), ("0.5", "50%"), ("0.5", "0,5"), ("1000", "1,00,0"), ("1000", "10,00"), ("1000", "1.000"),
    ("1234567", "1,2345,67"), ("720", "12:00"), ("1", "1/0"), ("0", "0/0"), ("0.3333", "1/3"), ("3.14", "pi"), ("2", "1/2"),
    ("5/6", "6/5"), ("-3", "3"), ("-3", "--3"), ("-3", "- 3 -"), ("840", "8\n40"), ("840", "8 40"), ("4.004", "004"),
    ("1/2004", "1/2006"), ("10", "1e"), ("12", "1=2"), ("7", "7,"), ("7", "(1,7)"),
]


@pytest.mark.parametrize(("answer", "text"), EQUAL)
def test_every_spelling_of_the_answer_passes(answer: str, text: str) -> None:
    found = judge(answer, text)
    assert (found.verdict, found.decided_by) == (V.PASS, "exact.number"), found


@pytest.mark.parametrize(("answer", "text"), UNEQUAL)
def test_every_look_alike_is_rejected(answer: str, text: str) -> None:
    assert judge(answer, text).verdict in (V.FAIL, V.UNPARSEABLE)


@pytest.mark.parametrize("text", ["", "  \n", "A:", "A: 7\nA:", "7 =", "#### ", "\\boxed{}", "no idea", b"\xff\xfe7"])
def test_an_empty_final_answer_is_unparseable_whatever_stood_before(text: str | bytes) -> None:
    assert judge("7", text).verdict is V.UNPARSEABLE


def test_a_number_whose_end_looks_like_the_answer_is_not_the_answer() -> None:
    assert judge("7", "1" + "0" * 500 + "7").verdict is V.FAIL
    assert judge("7", "8." + "0" * 500 + "\n" + "0" * 500 + "7").verdict is V.FAIL
    assert judge("7", "x=7" + " " * 500 + "\n").verdict is V.PASS
    assert judge("abc", "x" * 500 + "abc", "string").verdict is V.FAIL


def test_units_count_only_where_the_task_names_them() -> None:
    assert judge("18", "$18").verdict is V.FAIL
    assert judge("18", "$18", units=["$"]).verdict is V.PASS
    assert judge("18", "A: 18 cm", units=["cm"]).verdict is V.PASS
    assert judge("50", "50%", units=["%"]).verdict is V.PASS


def test_a_closed_form_is_undecided_only_where_the_question_allows_one() -> None:
    assert judge("512", "2^9").verdict is V.FAIL
    assert judge("512", "2^9", expressions=True).verdict is V.UNDECIDED
    assert judge("512", "512", expressions=True).verdict is V.PASS
    assert judge("512", "sqrt(2)", expressions=True).verdict is V.UNDECIDED
    assert judge("512", "511", expressions=True).verdict is V.FAIL
    assert judge("512", "words", expressions=True).verdict is V.UNPARSEABLE


def test_tolerance_is_absolute_and_off_by_default() -> None:
    assert judge("0.3333", "1/3").verdict is V.FAIL
    assert judge("0.3333", "1/3", tolerance=1e-3).verdict is V.PASS
    assert judge("0.3333", "0.34", tolerance=1e-3).verdict is V.FAIL


def test_strings_are_compared_letter_by_letter() -> None:
    assert judge("b1c6", "b1c6", "string").verdict is V.PASS
    assert judge("b1c6", "A: b1c6", "string").verdict is V.PASS
    assert judge("b1c6", "B1C6", "string").verdict is V.FAIL
    assert judge("b1c6", "B1C6", "string", casefold=True).verdict is V.PASS
    assert judge("x=1", "x=1", "string").verdict is V.PASS
    assert judge("x=1", "1", "string").verdict is V.FAIL
    assert judge("07", "7", "string").verdict is V.FAIL
    assert judge("0 1\n1 0", "0 1 \n1 0\n", "string").verdict is V.PASS
    assert judge("0 1\n1 0", "1 0", "string").verdict is V.FAIL


def test_sets_ignore_order_and_brackets_but_not_membership_or_repeats() -> None:
    for text in ("{1, 2, 3}", "3,2,1", "1 2 3", "[2; 1; 3]", "A: {3.0, 2, 1}", "x = {1,2,3}"):
        assert judge("{1, 2, 3}", text, "set").verdict is V.PASS, text
    for text in ("{1, 2}", "{1, 2, 3, 4}", "{1, 1, 2, 3}", "123", "{1, 2, 4}", "{}"):
        assert judge("{1, 2, 3}", text, "set").verdict is not V.PASS, text
    assert judge("{ann, bob}", "bob, ann", "set").verdict is V.PASS


def test_literals_are_compared_with_their_types() -> None:
    assert judge("[(1, 'a')]", "[(1, 'a')]", "literal").verdict is V.PASS
    assert judge("[(1, 'a')]", '[(1, "a")]', "literal").verdict is V.PASS
    assert judge("[(1, 'a')]", "[[1, 'a']]", "literal").verdict is V.FAIL
    assert judge("1", "True", "literal").verdict is V.FAIL
    assert judge("1", "True", "literal", typing="python").verdict is V.PASS
    assert judge("1", "print(1)", "literal").verdict is V.UNPARSEABLE


@pytest.mark.parametrize("stop", [StopReason.BYTE_BUDGET, StopReason.MAX_STEPS])
def test_an_answer_cut_short_is_truncated_even_if_it_would_be_right(stop: StopReason) -> None:
    assert judge("7", "7", stop=stop).verdict is V.TRUNCATED


@pytest.mark.parametrize("trusted", [{"form": "number"}, {"answer": " ", "form": "number"}, {"answer": "seven", "form": "number"},
                                     {"answer": "7", "form": "poem"}, {"answer": 7, "form": "number"},
                                     {"answer": "nan()", "form": "literal"}])
def test_a_task_whose_own_answer_is_no_answer_is_named_not_scored(trusted: dict[str, object]) -> None:
    task = Task(pool=Pool.MATH, family="t", prompt=b"", environment="answer", verifier=VerifierKind.EXACT, split=Split.TRAIN,
                use=Use.TRAIN, trusted=trusted)
    with pytest.raises(BadTask):
        exact.judge(Attempt("t", task, (b"7",), StopReason.SUBMITTED))


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode) | st.text("0123456789+-*/^=().,eA: #\\{}\n$",
                                                                               max_size=60).map(str.encode),
       st.sampled_from(exact.FORMS))
@settings(max_examples=1500)
def test_any_answer_gets_a_finding_and_never_an_exception(text: bytes, form: str) -> None:
    answer = {"number": "12", "string": "twelve", "set": "1,2", "literal": "[1, 2]"}[form]
    assert judge(answer, text, form, expressions=True).verdict in V


@given(st.integers(-10**9, 10**9), st.integers(-10**9, 10**9))
def test_two_integers_are_equal_exactly_when_they_are(a: int, b: int) -> None:
    assert (judge(str(a), f"A: {b:,}").verdict is V.PASS) == (a == b)


HOSTILE = [
    "9^9^9^9", "9**9**9**9", "9^{9^{9^{9}}}", "1e999999999", "9" * 1_000_000, "1/" * 500_000 + "1", "(" * 1_000_000,
    "\\frac{1}{" * 41 + "2" + "}" * 41,
    "1e999/1e-999", "A:" * 500_000, "=" * 1_000_000, "\\boxed{" * 10_000, "{" + "1," * 500_000 + "}", "7\n" * 500_000,
    " " * 1_000_000 + "8", "-" * 1_000_000,
    "[" * 400, "0." + "3" * 1_000_000, "answer is " * 100_000, "$" * 1_000_000, "*" * 1_000_000,
]


@pytest.mark.parametrize("form", exact.FORMS)
def test_hostile_answers_cost_next_to_nothing_and_block_no_thread(form: str) -> None:
    answer = {"number": "12", "string": "twelve", "set": "1,2", "literal": "[1, 2]"}[form]
    beats: list[float] = []
    done = threading.Event()

    def heart() -> None:
        while not done.wait(0.01):
            beats.append(time.perf_counter())

    thread = threading.Thread(target=heart)
    thread.start()
    spent = []
    for text in HOSTILE:
        began = time.process_time()
        assert judge(answer, text, form).verdict in (V.FAIL, V.UNPARSEABLE)
        spent.append(time.process_time() - began)
    done.set()
    thread.join()
    assert max(spent) < 0.05
    assert sum(spent) < 0.3
