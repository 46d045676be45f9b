"""The exact verifier: every spelling of the answer, none of its neighbours, nothing evaluated, nothing sought elsewhere."""

import threading
import time
from collections import Counter
from random import Random

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


FORMS_ALLOWED: dict[str, object] = {"expressions": True}
KM: dict[str, object] = {"units": {"km": 1, "m": "0.001"}}
EQUAL_FORMS: list[tuple[str, str, str, dict[str, object]]] = [
    *(("number", "512", text, FORMS_ALLOWED) for text in ("2^9", "2**9", "8*64", "\\frac{1024}{2}", "2^{10}/2", "(500+12)", "512.0",
        "\\sqrt{262144}")),
    *(("number", "2\\sqrt{2}", text, FORMS_ALLOWED) for text in ("\\sqrt{8}", "sqrt(8)", "2\\sqrt2", "2*sqrt(2)",
        "\\sqrt{2}+\\sqrt{2}", "8^{1/2}",
                                                                  "\\frac{4}{\\sqrt{2}}", "2√2", "4/sqrt(2)")),
    *(("number", "\\pi/4", text, FORMS_ALLOWED) for text in ("\\frac{\\pi}{4}", "0.25π", "π/4", "pi/4", "\\pi\\cdot\\frac14",
        "\\pi^2/(4\\pi)")),
    *(("number", "\\sqrt{2}-1", text, FORMS_ALLOWED) for text in ("1/(1+\\sqrt{2})", "-1+\\sqrt{2}", "\\left(\\sqrt{2}-1\\right)")),
    *(("number", "3/2", text, {}) for text in ("1.5", "1 1/2", "1\\frac{1}{2}", "1½", "6/4", "\\dfrac{3}{2}", "+1.50", "15e-1", "-3/-2")),
    *(("number", "-7/4", text, {}) for text in ("-1.75", "-1 3/4", "−1¾", "7/-4")),
    *(("number", "2.5 km", text, KM) for text in ("2.5km", "2500 m", "2,500 m", "5/2 km")),
    *(("interval", "[1, 2) \\cup [3, \\infty)", text, {}) for text in (
        "[1,2) ∪ [3,∞)", "[3, inf) U [1, 2)", "1 <= x < 2 or x >= 3", "[1.0, 4/2) ∪ [3, 5) ∪ [4, ∞)",
        "\\left[1,2\\right)\\cup[3,+\\infty)",
        "x ∈ [1, 2) ∪ [3, oo)", "2 > x ≥ 1 or 3 ≤ x", "[1,2[ ∪ [3,∞[", "{1} ∪ (1, 2) ∪ {3} ∪ (3, ∞)")),
    *(("interval", "(-∞, 0]", text, {}) for text in ("x <= 0", "A: (-inf, 0]", "]-∞; 0]", "(-\\infty,-0.0]")),
    *(("interval", "[0, \\sqrt{2})", text, FORMS_ALLOWED) for text in ("[0, sqrt(2))", "[0, 2^{1/2})")),
    *(("set", "{1/2, 3}", text, {}) for text in ("{3, 0.5}", "\\{0.5, 3\\}", "3; 1/2", "[3.0, 2/4]")),
    *(("string", "ab cd", text, {}) for text in ("ab cd", "A: ab cd", "answer is ab cd", " ab cd \n")),
    *(("literal", "{'a': (1, 2.0)}", text, {}) for text in ('{"a": (1, 2.0)}', "{'a': (1, 2.)}", "x = {'a':(0x1,2e0)}")),
]
UNEQUAL_FORMS: list[tuple[str, str, str, dict[str, object]]] = [
    *(("number", "512", text, FORMS_ALLOWED) for text in ("2^8", "9^9^9^9", "2^9+10^-30", "512!=", "\\sqrt{262143}", "2^{-9}", "1/0",
        "512/512", "5^12", "x^9")),
    *(("number", "2\\sqrt{2}", text, FORMS_ALLOWED) for text in ("2.8284271247461903", "\\sqrt{2}", "\\sqrt{9}", "2+\\sqrt{2}", "22",
        "sqrt(-8)", "-2\\sqrt{2}",
                                                                  "2828427124746190097603377448419/10^{30}")),
    *(("number", "\\pi/4", text, FORMS_ALLOWED) for text in ("0.7853981633974483", "\\frac{4}{\\pi}", "22/28", "\\pi", "45", "355/452")),
    *(("number", "3/2", text, {}) for text in ("2/3", "1 1/3", "11/2", "1 2", "1/2", "1 3/2", "1.5.0", "1,5", "3 / 2 / 1",
        "\\frac{2}{3}", "-1½", "½1")),
    *(("number", "2.5 km", text, KM) for text in ("2.5 m", "2500 km", "2.5 cm", "2500")),
    *(("interval", "[1, 2)", text, {}) for text in ("[1, 2]", "(1, 2)", "(1, 2]", "[1, 2) ∪ {2}", "[1, 3)", "1 < x < 2", "{1, 2}",
        "1", "[2, 1)", "[1; 2; 3)",
                                                    "[1, 2) ∪ [3, 4]", "1 <= x", "[-1, 2)", "[1, ∞)")),
    *(("interval", "(-∞, 0]", text, {}) for text in ("(-∞, 0)", "[-∞, 0]", "(∞, 0]", "x >= 0", "(-∞, ∞)")),
    *(("interval", "[0, \\sqrt{2})", text, FORMS_ALLOWED) for text in ("[0, sqrt(2)]", "[0, 1.4142135623730951)", "[0, 2)")),
    *(("set", "{1/2, 3}", text, {}) for text in ("{1, 2, 3}", "{3}", "{0.5, 3, 3}", "{1/3, 2}", "0.53")),
    *(("string", "ab cd", text, {}) for text in ("abcd", "ab  cd", "Ab cd", "ab cd.", "ab\ncd")),
    *(("literal", "{'a': (1, 2.0)}", text, {}) for text in ("{'a': [1, 2.0]}", "{'a': (1, 2)}", "{'a': (True, 2.0)}",
        "{'b': (1, 2.0)}", "{b'a': (1, 2.0)}")),
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


def test_a_unit_may_carry_a_factor_and_may_be_required() -> None:
    lengths = {"km": 1, "m": "0.001", "cm": "0.00001"}
    for text in ("2.5 km", "2500 m", "250000cm", "2,500 m.", "2.5"):
        assert judge("2.5 km", text, units=lengths).verdict is V.PASS, text
    for text in ("2.5 m", "2500 km", "2.5 mm", "2500", "2.5 km km"):
        assert judge("2.5 km", text, units=lengths).verdict is V.FAIL, text
    assert judge("2.5 km", "2.5", units=lengths, unit_required=True).verdict is V.FAIL
    assert judge("2.5 km", "2500 m", units=lengths, unit_required=True).verdict is V.PASS
    assert judge("0.5", "50%", units={"%": "0.01"}).verdict is V.PASS
    with pytest.raises(BadTask):
        judge("1", "1", units={"m": "a thousandth"})


def test_closed_forms_are_decided_only_where_the_question_allows_them() -> None:
    assert judge("512", "2^9").verdict is V.FAIL
    assert judge("512", "2^9", expressions=True).verdict is V.PASS
    assert judge("512", "2^9+1", expressions=True).verdict is V.FAIL
    assert judge("512", "512", expressions=True).verdict is V.PASS
    assert judge("512", "sqrt(2)", expressions=True).verdict is V.FAIL
    assert judge("512", "511", expressions=True).verdict is V.FAIL
    assert judge("512", "words", expressions=True).verdict is V.UNPARSEABLE


def test_what_it_cannot_tell_is_undecided() -> None:
    found = judge("1+\\sqrt{2}", "\\sqrt{3+2\\sqrt{2}}", expressions=True)
    assert (found.verdict, found.labels) == (V.UNDECIDED, (exact.OPEN,))
    assert judge("3", "log(1000)", expressions=True).verdict is V.UNDECIDED
    assert judge("6", "3!", expressions=True).verdict is V.UNDECIDED
    assert judge("1", "1/2sqrt(4)", expressions=True).verdict is V.UNDECIDED, "reads in two ways"
    assert judge("6", "3!").verdict is V.FAIL, "no closed form was asked for"
    assert judge("[0, \\sqrt{3+2\\sqrt{2}}]", "[0, 1+\\sqrt{2}]", "interval", expressions=True).verdict is V.UNDECIDED


@pytest.mark.parametrize(("form", "answer", "text", "more"), EQUAL_FORMS)
def test_every_equal_form_passes(form: str, answer: str, text: str, more: dict[str, object]) -> None:
    found = judge(answer, text, form, **more)
    assert found.verdict is V.PASS, found


@pytest.mark.parametrize(("form", "answer", "text", "more"), UNEQUAL_FORMS)
def test_every_unequal_form_is_judged_wrong(form: str, answer: str, text: str, more: dict[str, object]) -> None:
    found = judge(answer, text, form, **more)
    assert found.verdict in (V.FAIL, V.UNPARSEABLE), found


def test_the_tables_hold_sixty_pairs_each_and_reach_every_form() -> None:
    assert len(set(map(str, EQUAL_FORMS))) >= 60 and len(set(map(str, UNEQUAL_FORMS))) >= 60
    assert {row[0] for row in EQUAL_FORMS} == {row[0] for row in UNEQUAL_FORMS} == set(exact.FORMS)


SYMBOLS = ["1", "2", "7", "0", "+", "-", "*", "/", "^", "(", ")", "sqrt(", "\\sqrt{", "}", "{", "\\frac{", "\\pi", "e", "[", "]", ",",
        ";", "∪", "∞",
           "x", "<", "<=", ">", "=", " ", "\n", "A:", "####", "%", "$", "½", "'", "\"", "\\", "9^9^9^9", "1e999", ".", "True", "\x00",
        "\ud800", "٣"]


def test_ten_thousand_fuzzed_answers_raise_nothing() -> None:
    draws, answers = Random(7), {"number": "12", "string": "twelve", "set": "{1, 2}", "interval": "[1, 2)", "literal": "[1, 2]"}
    seen: Counter[V] = Counter()
    for _ in range(10_000):
        form = draws.choice(exact.FORMS)
        right = answers[form]
        text = "".join(draws.choices(SYMBOLS, k=draws.randrange(12)))
        if draws.random() < 0.3:
            at = draws.randrange(len(right) + 1)
            text = right[:at] + text + right[at:]
        seen[judge(right, text.encode("utf-8", "surrogatepass"), form, expressions=True).verdict] += 1
    assert seen[V.PASS] > 50 and seen[V.FAIL] > 1000 and seen[V.UNPARSEABLE] > 1000 and seen[V.UNDECIDED] > 5


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
@settings(max_examples=400)
def test_any_answer_gets_a_finding_and_never_an_exception(text: bytes, form: str) -> None:
    answer = {"number": "12", "string": "twelve", "set": "1,2", "interval": "[1, 2)", "literal": "[1, 2]"}[form]
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
    answer = {"number": "12", "string": "twelve", "set": "1,2", "interval": "[1, 2)", "literal": "[1, 2]"}[form]
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
        assert judge(answer, text, form, expressions=True).verdict in (V.FAIL, V.UNPARSEABLE, V.UNDECIDED)
        spent.append(time.process_time() - began)
    done.set()
    thread.join()
    assert max(spent) < 0.05
    assert sum(spent) < 0.3


@pytest.mark.parametrize("wrong", [
    {"tolerance": "x"}, {"tolerance": -1}, {"tolerance": float("inf")}, {"tolerance": float("nan")}, {"tolerance": [1]}, {"units": 5},
    {"units": [5]}, {"units": [""]}, {"units": {"m": "x"}}, {"casefold": "no"}, {"expressions": 2}, {"unit_required": "km"},
    {"typing": "loose"}, {"typing": ["strict"]}], ids=str)
@pytest.mark.parametrize("text", ["3", "4", "x", ""])
def test_a_setting_that_cannot_be_used_is_the_tasks_fault_whatever_was_answered(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(BadTask):
        judge("3", text, **wrong)
