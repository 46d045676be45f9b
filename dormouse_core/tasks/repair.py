"""Repair tasks: a faulty program, tests the policy may run, hidden tests that decide, and the commands it edits with.

    r        show the program      r 3-5    show lines 3 to 5
    e 3-5    replace them by the text on the following lines of the action
    i 3      insert that text after line 3 (0: before the first)
    d 3-5    delete them           w        replace the whole program
    t        run the visible tests s        submit

A command changes the text of the program and nothing else, so what a sequence of commands leaves is a function of the commands alone.
Not here: the environment (envs/repair.py), and who judges the program (the exec verifier, on cases the policy never sees).
"""

import ast
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

MAX_SOURCE = 1 << 16
"""Bytes a program may grow to; an edit past it is refused."""
COMMANDS = {"r": "read", "e": "edit", "i": "insert", "d": "delete", "w": "write", "t": "test", "s": "submit"}
HELP = b"r [A-B] read, e A-B edit, i A insert, d A-B delete, w write, t test, s submit\n"
MAX_STEPS = 12
_HEAD = re.compile(r"([reidwts])(?: +(\d{1,5})(?:-(\d{1,5}))?)?")
_NEEDS_LINES, _TAKES_TEXT = frozenset("eid"), frozenset("eiw")


class Command(NamedTuple):
    """One action, read. `first` and `last` count from 1; -1 where none was given."""

    letter: str
    first: int
    last: int
    lines: tuple[str, ...]
    """Those that follow the first line of the action."""


def parse(action: bytes) -> Command | None:
    """An action's command, or None where it is none: unknown letter, missing or needless lines or text, not UTF-8, a NUL."""
    try:
        head, newline, text = action.decode().partition("\n")
    except UnicodeDecodeError:
        return None
    match = _HEAD.fullmatch(head.strip())
    if match is None or "\0" in text:
        return None
    letter, first, last = match.groups()
    if (letter in _NEEDS_LINES) != bool(first) and letter != "r":
        return None
    if (letter == "i" and last) or (letter in _TAKES_TEXT and not newline) or (letter not in _TAKES_TEXT and text.strip()):
        return None
    lines = tuple(text.removesuffix("\n").split("\n")) if letter in _TAKES_TEXT else ()
    return Command(letter, int(first or -1), int(last or first or -1), lines)


def apply(source: str, command: Command) -> str | None:
    """The program after a command: unchanged by r, t and s; None where the command is refused (lines that are not there, too long)."""
    lines, text = lines_of(source), list(command.lines)
    match command.letter:
        case "w":
            lines = text
        case "i":
            if command.first > len(lines):
                return None
            lines[command.first : command.first] = text
        case "e" | "d" | "r" if command.first >= 0:
            if not 1 <= command.first <= command.last <= len(lines):
                return None
            if command.letter != "r":
                lines[command.first - 1 : command.last] = text if command.letter == "e" else []
    after = "".join(f"{line}\n" for line in lines) if command.letter in "eidw" else source
    return after if len(after.encode()) <= MAX_SOURCE else None


def lines_of(text: str) -> list[str]:
    """Lines as an editor counts them: ended by a newline and nothing else."""
    return text.removesuffix("\n").split("\n") if text else []


def numbered(source: str, first: int = -1, last: int = -1) -> str:
    """Lines with their numbers, all where `first` is negative."""
    lines = lines_of(source)
    return "".join(f"{n} {line}\n" for n, line in enumerate(lines, 1) if first < 0 or first <= n <= last)


def visible_tests(test_src: str, entry_point: str) -> list[str]:
    """The asserted expressions of a `check(candidate)` suite (constants left out), each as source with the program's own name in place of
    the parameter. Raises ValueError where the suite is no list of asserts."""
    functions = [node for node in ast.parse(test_src).body if isinstance(node, ast.FunctionDef)]
    if not functions:
        return []
    if len(functions) > 1 or len(functions[0].args.args) != 1:
        raise ValueError("the visible suite is no single check(candidate)")
    rename = _Rename(functions[0].args.args[0].arg, entry_point)
    found = []
    for node in functions[0].body:
        if isinstance(node, ast.Assert):
            if not isinstance(node.test, ast.Constant):
                found.append(ast.unparse(rename.visit(node.test)))
        elif not (isinstance(node, ast.Expr) and ast.unparse(node.value).startswith("print")):
            raise ValueError(f"the visible suite holds more than asserts: {ast.unparse(node)[:60]}")
    return found


class _Rename(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self.new, node.ctx), node) if node.id == self.old else node


def start_state(buggy: str, entry_point: str, visible: Sequence[str]) -> dict[str, Any]:
    """What the environment starts from. Raises ValueError where a visible test is no expression."""
    for text in visible:
        ast.parse(text, mode="eval")
    return {"source": buggy if buggy.endswith("\n") else buggy + "\n", "entry_point": entry_point, "visible": list(visible)}


def prompt(instruction: str, start: dict[str, Any]) -> bytes:
    """What the policy sees first: the request, the faulty program with line numbers, the visible tests, the commands."""
    tests = "".join(f"assert {text}\n" for text in start["visible"])
    return f"{instruction.strip()}\n{numbered(start['source'])}{tests}".encode() + HELP


def repairing_actions(buggy: str, reference: str) -> tuple[bytes, ...]:
    """Commands that turn one program into the other, last lines first so that numbers hold, and then submit it."""
    before, after = lines_of(buggy), lines_of(reference)
    actions = []
    for kind, a, b, c, d in reversed(SequenceMatcher(None, before, after, autojunk=False).get_opcodes()):
        text = "\n".join(after[c:d])
        if kind == "replace":
            actions.append(f"e {a + 1}-{b}\n{text}\n")
        elif kind == "insert":
            actions.append(f"i {a}\n{text}\n")
        elif kind == "delete":
            actions.append(f"d {a + 1}-{b}")
    return *(action.encode() for action in actions), b"s"
