r"""Closed forms as text: a small grammar of arithmetic, read into a tree and written back with every bracket.

Read: numbers, + - * / ^ (also `\cdot`, `\times`, `\div`, `**`), brackets, `\frac`, `\sqrt[n]{}`, sqrt(), pi, e, and a number that stands
before a root, a bracket or pi as its factor. Nothing is executed.
Not here: what a form is worth (expressions.py).
"""

import re
from fractions import Fraction
from typing import Any

MAX_DEPTH = 40
"""Brackets, signs and powers inside each other."""
_SPELLINGS = (("\\left", ""), ("\\right", ""), ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\cdot", "*"), ("\\times", "*"),
              ("\\div", "/"), ("\\pi", "π"), ("\\,", " "), ("\\!", " "), ("\\;", " "), ("\\ ", " "), ("**", "^"), ("·", "*"), ("×", "*"),
              ("÷", "/"), ("−", "-"), ("√", "sqrt"), ("\\sqrt", "sqrt"), ("\\frac", "frac"))
_TOKEN = re.compile(r"\s*(?:(?P<number>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?(?:[eE][+-]?\d{1,3}(?![\d.]))?|\.\d+)|"
                    r"(?P<word>sqrt|frac|pi|π|e(?![a-zA-Z]))|(?P<sign>[-+*/^(){}\[\]]))")

Node = tuple[Any, ...]
"""(sign or name, children...); ("number", Fraction)."""


class NoForm(ValueError):
    """A text outside the grammar, or one that reads in two ways."""


def parse(text: str) -> Node:
    """Text -> tree. Raises NoForm outside the grammar, past MAX_DEPTH brackets, and where a factor follows a division without a sign
    (`1/2sqrt(3)` reads in two ways)."""
    for spelled, plain in _SPELLINGS:
        text = text.replace(spelled, plain)
    tokens: list[tuple[str, str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise NoForm("outside the grammar")
        tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    reader = _Reader(tokens)
    tree = reader.sum(0)
    if reader.at != len(tokens):
        raise NoForm("something follows the form")
    return tree


class _Reader:
    """Recursive descent; `depth` counts brackets."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens, self.at = tokens, 0

    @property
    def next(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.next
        if not token or (wanted and token != wanted):
            raise NoForm(f"{wanted or 'more'} was due")
        self.at += 1
        return token

    def sum(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise NoForm("too deep")
        tree = self.product(depth)
        while self.next in ("+", "-"):
            tree = (self.take(), tree, self.product(depth))
        return tree

    def product(self, depth: int) -> Node:
        tree, divided = self.signed(depth), False
        while True:
            if self.next in ("*", "/"):
                sign = self.take()
                divided = divided or sign == "/"
                tree = (sign, tree, self.signed(depth))
            elif self.kind == "word" or self.next in ("(", "{"):
                if divided or self.next == "frac":
                    raise NoForm("reads in two ways")
                tree = ("*", tree, self.power(depth))
            else:
                return tree

    def signed(self, depth: int) -> Node:
        if self.next in ("+", "-"):
            if depth > MAX_DEPTH:
                raise NoForm("too deep")
            sign = self.take()
            tree = self.signed(depth + 1)
            return ("neg", tree) if sign == "-" else tree
        return self.power(depth)

    def power(self, depth: int) -> Node:
        base = self.atom(depth)
        if self.next != "^":
            return base
        if depth > MAX_DEPTH:
            raise NoForm("too deep")
        self.take()
        if self.next == "{":
            exponent = self.braced(depth)
        else:
            sign = self.take() if self.next == "-" else ""
            exponent = self.power(depth + 1)
            exponent = ("neg", exponent) if sign else exponent
        return ("^", base, exponent)

    def atom(self, depth: int) -> Node:
        if self.kind == "number":
            token = self.take().replace(",", "")
            if len(token) > 400:
                raise NoForm("too long a number")
            return ("number", Fraction(token))
        match self.take():
            case "π" | "pi":
                return ("pi",)
            case "e":
                return ("e",)
            case "(":
                return self.closed(depth, ")")
            case "{":
                return self.closed(depth, "}")
            case "frac":
                if self.kind == "number" and self.next.isdigit() and len(self.next) == 2:  # \\frac12: one digit each
                    digits = self.take()
                    return ("/", ("number", Fraction(digits[0])), ("number", Fraction(digits[1])))
                return ("/", self.argument(depth), self.argument(depth))
            case "sqrt":
                degree: Node = ("number", Fraction(2))
                if self.next == "[":
                    self.take()
                    degree = self.closed(depth, "]")
                return ("root", degree, self.argument(depth))
        raise NoForm("a value was due")

    def closed(self, depth: int, bracket: str) -> Node:
        tree = self.sum(depth + 1)
        self.take(bracket)
        return tree

    def braced(self, depth: int) -> Node:
        self.take("{")
        return self.closed(depth, "}")

    def argument(self, depth: int) -> Node:
        """What a root or fraction is of: a bracket, a whole number, or pi."""
        if self.next in ("{", "("):
            bracket = self.take()
            return self.closed(depth, {"{": "}", "(": ")"}[bracket])
        if self.kind == "number" and self.next.isdigit():
            return ("number", Fraction(self.take()))
        if self.next in ("π", "pi"):
            return (self.take() and "pi",)
        raise NoForm("an argument was due")


def render(tree: Node) -> str:
    """The tree as LaTeX in which every bracket is written: the only text another program is ever given."""
    match tree[0]:
        case "number":
            value: Fraction = tree[1]
            return str(value.numerator) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
        case "pi":
            return "\\pi"
        case "e":
            return "e"
        case "neg":
            return f"(-{render(tree[1])})"
        case "/":
            return f"\\frac{{{render(tree[1])}}}{{{render(tree[2])}}}"
        case "root":
            return f"\\sqrt[{render(tree[1])}]{{{render(tree[2])}}}"
        case "^":
            return f"({render(tree[1])})^{{{render(tree[2])}}}"
    sign = "\\cdot " if tree[0] == "*" else tree[0]
    return f"({render(tree[1])}{sign}{render(tree[2])})"
