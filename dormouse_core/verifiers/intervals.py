r"""Sets of real numbers written as intervals: `[1, 2) ∪ {5}`, `(-∞, 3]`, `1 <= x < 2`, `]0, 1[`, `x > 4`, and their LaTeX spellings.

Two are equal when they hold the same numbers: parts may stand in any order, overlap or touch. Ends are exact rationals or infinite; an end
that is no number is kept as text for the caller to compare.
Not here: what a final answer is, and what a number is (exact.py hands its reader over).
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

End = Fraction | float | str
"""A rational, an infinity, or the text of a closed form."""
MAX_PARTS = 64
_SPELLINGS = (("\\left", ""), ("\\right", ""), ("\\cup", "∪"), ("\\infty", "∞"), ("\\leq", "<="), ("\\geq", ">="), ("\\le", "<="),
              ("\\ge", ">="), ("\\lt", "<"), ("\\gt", ">"), ("\\in", "∈"), ("\\{", "{"), ("\\}", "}"), ("\\,", " "),
              ("≤", "<="), ("≥", ">="), ("−", "-"),
              ("infinity", "∞"), ("infty", "∞"), ("inf", "∞"), ("oo", "∞"), ("+∞", "∞"))
_NAMED = re.compile(r"[A-Za-z]\s*(?:=|∈|\bin\b)\s*")
_BRACKETS = re.compile(r"([\[(\]])\s*(.+?)\s*[,;]\s*(.+?)\s*([\])\[])", re.DOTALL)
_SIDES = re.compile(r"(?:(?P<low>[^<>=]+?)\s*(?P<a><=?|>=?)\s*)?[A-Za-z]\s*(?:(?P<b><=?|>=?)\s*(?P<high>[^<>=]+))?")


class Part(NamedTuple):
    """One interval. An end at infinity is open."""

    low: End
    low_closed: bool
    high: End
    high_closed: bool


def parse(text: str, number: Callable[[str], Fraction | None]) -> list[Part] | None:
    """The parts as written, or None where the text is no such set. An empty list is the empty set."""
    for spelled, plain in _SPELLINGS:
        text = text.replace(spelled, plain)
    text = text.strip().removesuffix(".").strip()
    if named := _NAMED.match(text):
        text = text[named.end() :].strip()
    if text in ("∅", "{}", "\\emptyset", "\\varnothing"):
        return []
    pieces = re.split(r"∪|\bU\b|\bor\b", text)
    if len(pieces) > MAX_PARTS:
        return None
    parts = []
    for piece in pieces:
        found = _points(piece.strip(), number) if piece.strip().startswith("{") else _part(piece.strip(), number)
        if found is None:
            return None
        parts += found
    return parts


def _points(piece: str, number: Callable[[str], Fraction | None]) -> list[Part] | None:
    if not piece.endswith("}"):
        return None
    ends = [_end(p, number) for p in re.split(r"[,;]", piece[1:-1]) if p.strip()]
    if not ends or len(ends) > MAX_PARTS or any(e is None or isinstance(e, float) for e in ends):
        return None
    return [Part(e, True, e, True) for e in ends if e is not None]


def _part(piece: str, number: Callable[[str], Fraction | None]) -> list[Part] | None:
    if bracketed := _BRACKETS.fullmatch(piece):
        left, low, high, right = bracketed.groups()
        return _made(_end(low, number), left == "[", _end(high, number), right == "]")
    sides = _SIDES.fullmatch(piece)
    if sides is None or not (sides["a"] or sides["b"]):
        return None
    below: tuple[End | None, bool] = (-float("inf"), False)
    above: tuple[End | None, bool] = (float("inf"), False)
    for text, sign, left in ((sides["low"], sides["a"], True), (sides["high"], sides["b"], False)):
        if sign is None:
            continue
        end = (_end(text, number), "=" in sign)
        if ("<" in sign) == left:
            if sides["a"] and sides["b"] and below != (-float("inf"), False):
                return None  # both sides bound it from below
            below = end
        else:
            if sides["a"] and sides["b"] and above != (float("inf"), False):
                return None
            above = end
    return _made(*below, *above)


def _made(low: End | None, low_closed: bool, high: End | None, high_closed: bool) -> list[Part] | None:
    if low is None or high is None or low == float("inf") or high == -float("inf"):
        return None
    if (isinstance(low, float) and low_closed) or (isinstance(high, float) and high_closed):
        return None  # infinity is no number: it closes nothing
    if not isinstance(low, str) and not isinstance(high, str):
        if low > high:
            return None
        if low == high and not (low_closed and high_closed):
            return []
    return [Part(low, low_closed, high, high_closed)]


def _end(text: str, number: Callable[[str], Fraction | None]) -> End | None:
    text = text.strip()
    if text.strip("+- ") == "∞":
        return -float("inf") if text.startswith("-") else float("inf")
    value = number(text)
    return value if value is not None else text or None


def merged(parts: list[Part]) -> list[Part]:
    """The same numbers as disjoint parts in order. Ends must not be texts."""
    out: list[Part] = []
    for part in sorted(parts, key=lambda p: (p.low, not p.low_closed)):
        if out and (part.low < out[-1].high or (part.low == out[-1].high and (part.low_closed or out[-1].high_closed))):  # type: ignore[operator]
            last = out.pop()
            high, closed = max((last.high, last.high_closed), (part.high, part.high_closed))
            part = Part(last.low, last.low_closed, high, closed)
        out.append(part)
    return out
