"""exact: the final answer, and only it, against a trusted one. Nothing is executed.

trusted = {"answer": "...", "form": "number" | "string" | "set" | "interval" | "literal"} and optionally
  "tolerance"      number: absolute difference allowed
  "units"          number, set: strings that may stand beside a number ("$", "cm", "%"), or {unit: factor} where values in several units are
                   equal ({"km": 1, "m": "0.001"}); none by default
  "unit_required"  number: a number without one of the units is wrong
  "casefold"       string, set: letters of either case
  "expressions"    number, interval: the question allows closed forms (expressions.py); one that cannot be decided is `undecided`, not wrong
  "typing"         literal: as in compare.py
The final answer is what follows the last marker ('=', 'A:', '####', 'answer is', 'answer:'), else the last line. It is never sought
anywhere else: an empty one is `unparseable`, whatever stood before it. Where the trusted answer itself spans lines or
holds '=', the text is taken whole or '=' marks nothing. Cost is bounded by the length of the trusted answer.
"""

import ast
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from dormouse_core.sandbox import wire
from dormouse_core.verifiers import expressions, forms, intervals
from dormouse_core.verifiers.attempt import Attempt, BadTask, Finding, truncated
from dormouse_core.verifiers.compare import Rule, Typing, equal, holds_nan
from dormouse_core.verifiers.verdict import VerdictClass

FORMS = ("number", "string", "set", "interval", "literal")
_MARKER = re.compile(r"=|####|(?<![A-Za-z])A:|\banswer(?: is|:)", re.IGNORECASE)
_MARKER_NO_EQUALS = re.compile(r"####|(?<![A-Za-z])A:|\banswer(?: is|:)", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+)?(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?")
_FRACTION = re.compile(r"([^/]+)/([^/]+)")
_LATEX_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_WRAPPED = re.compile(r"\\boxed\{(.*)\}|\$(.*)\$|\*\*(.*)\*\*", re.DOTALL)
_MIXED = re.compile(r"([+-]?)(\d+)[ ]?(?:(?<=[ ])(\d+)/(\d+)|\\[dt]?frac\{(\d+)\}\{(\d+)\}|([½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]))")
_VULGAR = dict(zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", (Fraction(a, b) for a, b in (
    (1, 2), (1, 3), (2, 3), (1, 4), (3, 4), (1, 5), (2, 5), (3, 5), (4, 5), (1, 6), (5, 6), (1, 8), (3, 8), (5, 8), (7, 8))), strict=True))
_WIDER = re.compile(r"(?:\d|sqrt|cbrt|pi|π|√|frac|log|ln|exp|sin|cos|tan|binom|[-+*/^().,{}\[\]\\!_\s]|e\b)+")
"""Closed forms a question may allow and `expressions` does not read."""
OPEN = "closed_form"
"""Label of an answer whose closed form is neither equal nor different as far as this verifier can tell."""
MAX_TOLERANCE = 10**100
SLACK = 64
"""Bytes an honest answer may be longer than twice the trusted one (leading zeros, commas, trailing zeros)."""


def judge(attempt: Attempt) -> Finding:
    """The finding on one attempt. Raises BadTask where the trusted data cannot be used."""
    trusted = attempt.task.trusted
    form = trusted.get("form", "string")
    answer = trusted.get("answer")
    if form not in FORMS or not isinstance(answer, str) or not answer.strip():
        raise BadTask(f"exact needs an answer and a form of {', '.join(FORMS)}; this task has form {str(form)[:20]!r}")
    _read_settings(trusted)
    if (early := truncated(attempt, "exact.stop")) is not None:
        return early
    decided_by = f"exact.{form}"
    try:
        text = attempt.actions[-1].decode("utf-8")
    except UnicodeDecodeError:
        return Finding(VerdictClass.UNPARSEABLE, decided_by, "not UTF-8")
    longest = 2 * len(answer) + SLACK
    final = final_answer(text, answer, longest, equals=form != "interval")
    if not final:
        return Finding(VerdictClass.UNPARSEABLE, decided_by, "empty final answer")
    if len(final) > longest:
        return Finding(VerdictClass.FAIL, decided_by, "final answer too long to be right")
    return _JUDGE[form](final, answer.strip(), trusted, decided_by)


def _read_settings(trusted: Mapping[str, Any]) -> None:
    """Raises BadTask on a setting that cannot be used, whatever the answer needs of it: one that only some answers reach would let a
    task in whose own spelling never does."""
    tolerance, units = trusted.get("tolerance"), trusted.get("units", ())
    try:
        usable = tolerance is None or 0 <= Fraction(str(tolerance)) < MAX_TOLERANCE
    except (ValueError, ZeroDivisionError):
        usable = False
    if not usable:
        raise BadTask(f"tolerance {str(tolerance)[:20]!r} is no finite number of at least 0")
    if not isinstance(units, str | list | tuple | Mapping) or not all(isinstance(unit, str) and unit for unit in units):
        raise BadTask("units are strings, or {unit: factor}")
    _units(trusted)
    if (typing := trusted.get("typing")) and typing not in list(Typing):
        raise BadTask(f"typing {str(typing)[:20]!r} is none of {', '.join(Typing)}")
    for name in ("unit_required", "casefold", "expressions"):
        if not isinstance(trusted.get(name, False), bool):
            raise BadTask(f"{name} is true or false")


def final_answer(text: str, answer: str, longest: int, equals: bool = True) -> str:
    """The one place an answer is looked for. Only the end of the text is read: an answer that does not fit there is longer
    than `longest` and comes back as such. `equals`: whether '=' is a marker, where the answer holds none."""
    text = text.strip()
    if "\n" in answer.strip():
        return text
    tail = text[-(longest + 32) :]
    start = 0
    for marker in (_MARKER if equals and "=" not in answer else _MARKER_NO_EQUALS).finditer(tail):
        start = marker.end()
    return tail[start:].strip().rsplit("\n", 1)[-1].strip()


def _unwrap(text: str) -> str:
    while wrapped := _WRAPPED.fullmatch(text):
        text = next(g for g in wrapped.groups() if g is not None).strip()
    return text


def parse_number(text: str, units: Mapping[str, Fraction] = MappingProxyType({}), unit_required: bool = False) -> Fraction | None:
    """The exact value of a spelled number, or None where the text is no number: sign, digits (with commas only where they
    belong), a decimal part, a power of ten up to 999, one fraction bar, or a whole number before a proper fraction. A full stop may end
    it. At most one of `units` stands before it and one behind, and its factor is applied. Nothing is executed."""
    text = _unwrap(text.strip()).replace("−", "-")
    before = next((u for u in units if text.startswith(u)), "")
    text = text.removeprefix(before).strip()
    behind = next((u for u in units if text.endswith(u)), "") or next((u for u in units if text.endswith(u + ".")), "")
    text = text.removesuffix("." if behind and text.endswith(behind + ".") else "").removesuffix(behind).strip()
    if unit_required and not (before or behind):
        return None
    value = _spelled(text)
    return value if value is None else value * units.get(before, 1) * units.get(behind, 1)


def _spelled(text: str) -> Fraction | None:
    if latex := _LATEX_FRACTION.fullmatch(text):
        text = "{}{}/{}".format(*latex.groups())
    if mixed := _MIXED.fullmatch(text):
        sign, whole, *rest, vulgar = mixed.groups()
        over, under = next(((int(a), int(b)) for a, b in (rest[:2], rest[2:]) if a and max(map(len, (whole, a, b))) <= 400), (0, 1))
        part = _VULGAR[vulgar] if vulgar else Fraction(over, under) if under else Fraction(0)
        value = int(whole) + part
        return None if not 0 < part < 1 else -value if sign == "-" else value
    if text[-1:] in _VULGAR and text[:-1] in ("", "+", "-"):
        return _VULGAR[text[-1]] * (-1 if text[0] == "-" else 1)
    if fraction := _FRACTION.fullmatch(text):
        top, bottom = (_decimal(part.strip()) for part in fraction.groups())
        return top / bottom if top is not None and bottom else None
    return _decimal(text)


def _decimal(text: str) -> Fraction | None:
    if not text.isascii() or not (match := _NUMBER.fullmatch(text)):
        return None
    sign, whole, part, power = match.groups()
    digits = (whole or "").replace(",", "") + (part or "")
    if not digits or len(digits) > 1000:
        return None
    exponent = int(power or 0) - len(part or "")
    value = Fraction(int(digits)) * Fraction(10) ** exponent
    return -value if sign == "-" else value


def _units(trusted: Mapping[str, Any]) -> dict[str, Fraction]:
    """Longest first, so that `cm` is not read as `c` and `m`. Raises BadTask on a factor that is no number."""
    named = trusted.get("units", ())
    named = [named] if isinstance(named, str) else named
    try:
        factors = {str(u): Fraction(str(named[u])) if isinstance(named, Mapping) else Fraction(1) for u in named}
    except (ValueError, ZeroDivisionError) as error:
        raise BadTask("a unit's factor is no number") from error
    return dict(sorted(factors.items(), key=lambda row: -len(row[0])))


def _number(final: str, answer: str, trusted: dict[str, Any], decided_by: str) -> Finding:
    units, closed = _units(trusted), bool(trusted.get("expressions"))
    want = parse_number(answer, units)
    if want is None and not (closed and _is_form(answer)):
        raise BadTask("the trusted answer is no number this verifier reads")
    got = parse_number(final, units, bool(trusted.get("unit_required")))
    if got is not None and want is not None:
        right = got == want or abs(got - want) <= Fraction(str(trusted.get("tolerance") or 0))
        return _finding(right, decided_by, "a different number")
    if closed:
        return _closed_form(_unwrap(final), _unwrap(answer), decided_by)
    if not any(c.isdigit() for c in final):
        return Finding(VerdictClass.UNPARSEABLE, decided_by, "no number in the final answer")
    return Finding(VerdictClass.FAIL, decided_by, "not a plain number, or without its unit")


def _is_form(text: str) -> bool:
    try:
        expressions.evaluate(forms.parse(_unwrap(text.strip())))
    except (forms.NoForm, expressions.NoValue):
        return False
    return True


def _closed_form(final: str, answer: str, decided_by: str) -> Finding:
    try:
        found = expressions.compare(final, answer)
    except forms.NoForm as error:
        if any(c.isdigit() or c == "π" for c in final) and _WIDER.fullmatch(final):
            return Finding(VerdictClass.UNDECIDED, decided_by, f"a closed form this verifier does not read: {error}")
        none = not any(c.isdigit() for c in final)
        return Finding(VerdictClass.UNPARSEABLE if none else VerdictClass.FAIL, decided_by, "no closed form in the final answer")
    if found is expressions.Comparison.UNKNOWN:
        return Finding(VerdictClass.UNDECIDED, decided_by, "a closed form that is neither proven equal nor different", labels=(OPEN,))
    return _finding(found is expressions.Comparison.EQUAL, decided_by, "a different number")


def open_question(attempt: Attempt) -> tuple[str, str]:
    """(claimed, wanted) as LaTeX, of an attempt whose finding carries the label OPEN."""
    answer = str(attempt.task.trusted["answer"]).strip()
    final = final_answer(attempt.actions[-1].decode(), answer, 2 * len(answer) + SLACK)
    claimed, wanted = (forms.render(forms.parse(_unwrap(text))) for text in (final, answer))
    return claimed, wanted


def _string(final: str, answer: str, trusted: dict[str, Any], decided_by: str) -> Finding:
    return _finding(_folded(final, trusted) == _folded(answer, trusted), decided_by, "a different string")


def _folded(text: str, trusted: dict[str, Any]) -> str:
    text = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return text.casefold() if trusted.get("casefold") else text


def _set(final: str, answer: str, trusted: dict[str, Any], decided_by: str) -> Finding:
    units = _units(trusted)

    def elements(text: str) -> list[tuple[int, Any]]:
        text = _unwrap(text.replace("\\{", "{").replace("\\}", "}"))
        if text[:1] + text[-1:] in ("{}", "[]", "()"):
            text = text[1:-1]
        parts = [p.strip().strip("'\"") for p in (re.split(r"[,;]", text) if re.search("[,;]", text) else text.split())]
        if parts and not parts[-1]:
            parts.pop()
        rows: list[tuple[int, Any]] = []
        for part in parts:
            value = parse_number(part, units)
            rows.append((0, value) if value is not None else (1, _folded(part, trusted)))
        return sorted(rows)

    return _finding(elements(final) == elements(answer), decided_by, "a different set")


def _interval(final: str, answer: str, trusted: dict[str, Any], decided_by: str) -> Finding:
    closed = bool(trusted.get("expressions"))
    want = intervals.parse(_unwrap(answer), parse_number)
    texts = [e for part in want or () for e in (part.low, part.high) if isinstance(e, str)]
    if want is None or (texts and not (closed and all(map(_is_form, texts)))):
        raise BadTask("the trusted answer is no set of intervals this verifier reads")
    got = intervals.parse(_unwrap(final), parse_number)
    if got is None:
        digits = any(c.isdigit() for c in final)
        return Finding(VerdictClass.FAIL if digits else VerdictClass.UNPARSEABLE, decided_by, "no interval in the final answer")
    if not texts and not any(isinstance(e, str) for part in got for e in (part.low, part.high)):
        return _finding(intervals.merged(got) == intervals.merged(want), decided_by, "another set of numbers")
    if not closed:
        return Finding(VerdictClass.FAIL, decided_by, "an end that is no plain number")
    return _ends(got, want, decided_by)


def _ends(got: list[intervals.Part], want: list[intervals.Part], decided_by: str) -> Finding:
    """Parts as they stand, end by end: sets with ends in closed form are not put in order."""
    if [(p.low_closed, p.high_closed) for p in got] != [(p.low_closed, p.high_closed) for p in want]:
        return _finding(False, decided_by, "other brackets")
    open_end: Finding | None = None
    for ours, theirs in zip(got, want, strict=True):
        for a, b in ((ours.low, theirs.low), (ours.high, theirs.high)):
            if isinstance(a, float) or isinstance(b, float):
                if a != b:
                    return _finding(False, decided_by, "another end")
                continue
            found = _closed_form(str(a), str(b), decided_by)
            if found.verdict is VerdictClass.UNDECIDED:
                open_end = found._replace(labels=())
            elif found.verdict is not VerdictClass.PASS:
                return found
    return open_end or _finding(True, decided_by, "")


def _literal(final: str, answer: str, trusted: dict[str, Any], decided_by: str) -> Finding:
    rule = Rule(Typing(trusted.get("typing") or "strict"), float(trusted.get("tolerance") or 0.0))
    want = _trusted_literal(answer)
    try:
        claim = wire.encode(ast.literal_eval(final))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return Finding(VerdictClass.UNPARSEABLE, decided_by, "not a Python literal")
    return _finding(equal(wire.decode_tree(claim), want, rule), decided_by, "a different value")


@lru_cache(maxsize=4096)
def _trusted_literal(answer: str) -> wire.Tree:
    try:
        tree = wire.decode_tree(wire.encode(ast.literal_eval(answer)))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise BadTask("the trusted answer is not a Python literal") from error
    if holds_nan(tree):
        raise BadTask("the trusted answer holds NaN, which equals nothing")
    return tree


def _finding(right: bool, decided_by: str, otherwise: str) -> Finding:
    return Finding(VerdictClass.PASS, decided_by, score=1.0, cases_passed=1, cases_total=1) if right else \
        Finding(VerdictClass.FAIL, decided_by, otherwise, cases_total=1)


_JUDGE = {"number": _number, "string": _string, "set": _set, "interval": _interval, "literal": _literal}
