"""exact: the final answer, and only it, against a trusted one. Nothing is ever evaluated.

trusted = {"answer": "...", "form": "number" | "string" | "set" | "literal"} and optionally
  "tolerance"    number: absolute difference allowed
  "units"        number, set: strings that may stand beside a number ("$", "cm", "%"); none by default
  "casefold"     string, set: letters of either case
  "expressions"  number: the question allows closed forms; one this verifier cannot compare is `undecided`, not wrong
  "typing"       literal: as in compare.py
The final answer is what follows the last marker ('=', 'A:', '####', 'answer is', 'answer:'), else the last line. It is never sought
anywhere else: an empty one is `unparseable`, whatever stood before it. Where the trusted answer itself spans lines or
holds '=', the text is taken whole or '=' marks nothing. Cost is bounded by the length of the trusted answer.
"""

import ast
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dormouse_core.sandbox import wire
from dormouse_core.verifiers.attempt import Attempt, BadTask, Finding, truncated
from dormouse_core.verifiers.compare import Rule, Typing, equal, holds_nan
from dormouse_core.verifiers.verdict import VerdictClass

FORMS = ("number", "string", "set", "literal")
_MARKER = re.compile(r"=|####|(?<![A-Za-z])A:|\banswer(?: is|:)", re.IGNORECASE)
_MARKER_NO_EQUALS = re.compile(r"####|(?<![A-Za-z])A:|\banswer(?: is|:)", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+)?(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?")
_FRACTION = re.compile(r"([^/]+)/([^/]+)")
_LATEX_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_WRAPPED = re.compile(r"\\boxed\{(.*)\}|\$(.*)\$|\*\*(.*)\*\*", re.DOTALL)
_EXPRESSION = re.compile(r"(?:\d|sqrt|pi|π|√|frac|[-+*/^().,{}\\\s]|e\b)+")
SLACK = 64
"""Bytes an honest answer may be longer than twice the trusted one (leading zeros, commas, trailing zeros)."""


def judge(attempt: Attempt) -> Finding:
    """The finding on one attempt. Raises BadTask where the trusted data cannot be used."""
    trusted = attempt.task.trusted
    form = trusted.get("form", "string")
    answer = trusted.get("answer")
    if form not in FORMS or not isinstance(answer, str) or not answer.strip():
        raise BadTask(f"exact needs an answer and a form of {', '.join(FORMS)}; this task has form {str(form)[:20]!r}")
    if (early := truncated(attempt, "exact.stop")) is not None:
        return early
    decided_by = f"exact.{form}"
    try:
        text = attempt.actions[-1].decode("utf-8")
    except UnicodeDecodeError:
        return Finding(VerdictClass.UNPARSEABLE, decided_by, "not UTF-8")
    longest = 2 * len(answer) + SLACK
    final = final_answer(text, answer, longest)
    if not final:
        return Finding(VerdictClass.UNPARSEABLE, decided_by, "empty final answer")
    if len(final) > longest:
        return Finding(VerdictClass.FAIL, decided_by, "final answer too long to be right")
    return _JUDGE[form](final, answer.strip(), trusted, decided_by)


def final_answer(text: str, answer: str, longest: int) -> str:
    """The one place an answer is looked for. Only the end of the text is read: an answer that does not fit there is longer
    than `longest` and comes back as such."""
    text = text.strip()
    if "\n" in answer.strip():
        return text
    tail = text[-(longest + 32) :]
    start = 0
    for marker in (_MARKER_NO_EQUALS if "=" in answer else _MARKER).finditer(tail):
        start = marker.end()
    return tail[start:].strip().rsplit("\n", 1)[-1].strip()


def _unwrap(text: str) -> str:
    while wrapped := _WRAPPED.fullmatch(text):
        text = next(g for g in wrapped.groups() if g is not None).strip()
    return text


def parse_number(text: str, units: tuple[str, ...] = ()) -> Fraction | None:
    """The exact value of a spelled number, or None where the text is no number: sign, digits (with commas only where they
    belong), a decimal part, a power of ten up to 999, or one fraction bar. A full stop may end it. Nothing is evaluated."""
    text = _unwrap(text.strip()).replace("−", "-")
    for unit in units:
        text = text.removeprefix(unit).removesuffix(unit).strip()
    if latex := _LATEX_FRACTION.fullmatch(text):
        text = "{}{}/{}".format(*latex.groups())
    if fraction := _FRACTION.fullmatch(text):
        over, under = (_decimal(part.strip()) for part in fraction.groups())
        return over / under if over is not None and under else None
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


@lru_cache(maxsize=4096)
def _trusted_number(answer: str, units: tuple[str, ...]) -> Fraction:
    value = parse_number(answer, units)
    if value is None:
        raise BadTask("the trusted answer is no number this verifier reads")
    return value


def _units(trusted: dict[str, Any]) -> tuple[str, ...]:
    units = trusted.get("units", ())
    return (units,) if isinstance(units, str) else tuple(units)


def _number(final: str, answer: str, trusted: dict[str, Any], decided_by: str) -> Finding:
    units = _units(trusted)
    want = _trusted_number(answer, units)
    got = parse_number(final, units)
    if got is not None:
        right = got == want or abs(got - want) <= Fraction(str(trusted.get("tolerance") or 0))
        return _finding(right, decided_by, "a different number")
    if trusted.get("expressions") and _EXPRESSION.fullmatch(_unwrap(final)):
        return Finding(VerdictClass.UNDECIDED, decided_by, "a closed form this verifier does not evaluate")
    if not any(c.isdigit() for c in final):
        return Finding(VerdictClass.UNPARSEABLE, decided_by, "no number in the final answer")
    return Finding(VerdictClass.FAIL, decided_by, "not a plain number")


def _string(final: str, answer: str, trusted: dict[str, Any], decided_by: str) -> Finding:
    return _finding(_folded(final, trusted) == _folded(answer, trusted), decided_by, "a different string")


def _folded(text: str, trusted: dict[str, Any]) -> str:
    text = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return text.casefold() if trusted.get("casefold") else text


def _set(final: str, answer: str, trusted: dict[str, Any], decided_by: str) -> Finding:
    units = _units(trusted)

    def elements(text: str) -> list[tuple[int, Any]]:
        text = _unwrap(text)
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


_JUDGE = {"number": _number, "string": _string, "set": _set, "literal": _literal}
