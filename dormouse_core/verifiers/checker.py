"""Trusted checkers: where more than one value is right, a program that came with the task's hidden data says yes or no to a claim.

trusted["checker"] = {"program": "def check(args, value): ...", "accepts": "int | float"}. The program runs in a sealed child of its own,
one for each candidate, never in the candidate's: it is given the case's arguments, the claim rebuilt as plain typed data, and what
else the case says is `known`, and its bool is the answer. The candidate's process never holds the checker.

What stands between a claim and the checker is in this process: a claim that is not of the kind the checker `accepts`, holds a NaN, or is
too long or too deep is a wrong answer, and the checker never sees it. A checker that raises, runs out of its CPU time or answers
anything but a bool has no opinion: that is a verifier_error, the task's fault and nobody else's. One that says yes to a wrong root
in a canary of its own voids what checkers said in that batch.
Not here: which cases a checker decides (cases.py), comparison by value (compare.py).
"""

import ast
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dormouse_core.ledger import Ledger
from dormouse_core.sandbox import limits, wire
from dormouse_core.sandbox.runner import Claim, End, Job, Outcome, Runners
from dormouse_core.verifiers.compare import TYPE_NAME, holds_nan
from dormouse_core.verifiers.shape import Shape, fits, read
from dormouse_core.verifiers.verdict import VerdictClass

MAX_CLAIM = 1 << 14
"""Bytes of one encoded claim that a checker is asked about."""
MAX_DEPTH = 32
CPU_SECONDS = 1.0
"""CPU limit of a checker on one candidate's claims, or the task's own `cpu_seconds` where that is more."""
CHUNK = 1 << 19
"""Bytes of arguments and claims a checker's child is given at once."""
BY = "exec.checker"
ENTRY = "check"

Trouble = tuple[VerdictClass, str, str]
"""Class, who decided, why: what is wrong with a claim."""


@dataclass(frozen=True, slots=True)
class Checker:
    program: bytes
    accepts: Shape


class Check(NamedTuple):
    """One case that the checker decides: the function to call, the encoded arguments, what else it is told."""

    function: str
    args: bytes
    known: bytes | None = None


class Asked(NamedTuple):
    """One candidate's claims on the cases a checker decides, by case."""

    checker: Checker
    checks: Mapping[int, Check]
    claims: Sequence[Claim]
    cpu_seconds: float


def prepare(given: Any, functions: Iterable[str]) -> Checker:
    """Raises ValueError where the record is no checker, or lacks a function that a case names."""
    if not isinstance(given, dict) or set(given) != {"program", "accepts"} or not isinstance(given["program"], str):
        raise ValueError('a checker is {"program": source, "accepts": kind of value}')
    try:
        tree = ast.parse(given["program"])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the checker's program does not parse ({type(error).__name__})") from error
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if missing := sorted(set(functions) - defined):
        raise ValueError(f"the checker's program defines no function {missing[0]!r}")
    return Checker(given["program"].encode(), read(given["accepts"]))


def answers(asked: Sequence[Asked], runners: Runners, ledger: Ledger) -> list[dict[int, Trouble | None]]:
    """For each candidate, what is wrong with its claim on every case a checker decides (None: the checker said yes).

    Counts `exec.claims_checked` and `exec.checker_errors`."""
    found: list[dict[int, Trouble | None]] = [{} for _ in asked]
    jobs: list[Job] = []
    owners: list[tuple[int, list[int]]] = []
    for number, one in enumerate(asked):
        questions = {}
        for index, check in one.checks.items():
            if index >= len(one.claims) or (claim := one.claims[index]).kind != b"V":
                continue  # nothing was claimed: the exec verifier says so itself
            found[number][index] = trouble = refused(claim.payload, one.checker.accepts, index)
            if trouble is None:
                questions[index] = (check.function, _question(check, claim.payload))
        for function, indices in _chunks(questions):
            inputs = tuple(questions[i][1] for i in indices)
            jobs.append(Job(one.checker.program, function, inputs, limits.OUTPUT_SLACK, max(CPU_SECONDS, one.cpu_seconds)))
            owners.append((number, indices))
    if not jobs:
        return found
    outcomes, canaries = runners.run(jobs, [CANARY])
    wrong = canary_trouble(canaries)
    if wrong:
        ledger.loud(f"exec verifier: the canary of trusted checkers was answered wrongly ({wrong}), so what checkers said in this batch "
                    "does not count. The runner or the machine cannot be trusted as it is: see docs/mechanisms/checkers.md.")
        ledger.count("exec.canary_failures")
    for (number, indices), outcome in zip(owners, outcomes, strict=True):
        for place, index in enumerate(indices):
            found[number][index] = (VerdictClass.VERIFIER_ERROR, "exec.canary", wrong) if wrong else said(outcome, place, index)
    ledger.count("exec.claims_checked", sum(len(indices) for _, indices in owners))
    ledger.count("exec.checker_errors", sum(t is not None and t[0] is VerdictClass.VERIFIER_ERROR for row in found for t in row.values()))
    return found


def refused(payload: bytes, accepts: Shape, index: int) -> Trouble | None:
    """What is wrong with a claim before any checker is asked; None where it may be asked. Reasons hold no claimed value."""
    try:
        tree = wire.decode_tree(payload)
        _rebuildable(tree)
    except wire.WireError as error:
        return VerdictClass.VIOLATION, "exec.protocol", f"case {index}: malformed value, {error}"
    if len(payload) > MAX_CLAIM or _deeper(tree, MAX_DEPTH):
        return VerdictClass.FAIL, BY, f"case {index}: a value of {len(payload)} bytes, or too deep, where {accepts.text} is due"
    if not fits(tree, accepts):
        return VerdictClass.FAIL, BY, f"case {index}: wrong {TYPE_NAME[tree[0]]} where {accepts.text} is due"
    return (VerdictClass.FAIL, BY, f"case {index}: holds a NaN, which is no answer") if holds_nan(tree) else None


def said(outcome: Outcome, place: int, index: int) -> Trouble | None:
    """What the checker's child made of question number `place`, as the trouble of case `index`."""
    if outcome.end is End.INFRA:
        return VerdictClass.VERIFIER_ERROR, "exec.runner", f"case {index}: {outcome.detail}"
    if place < len(outcome.claims):
        kind, payload = outcome.claims[place].kind, outcome.claims[place].payload
        if kind == b"V" and payload in (b"T", b"F"):
            return None if payload == b"T" else (VerdictClass.FAIL, BY, f"case {index}: the checker says no")
        why = f"raised {payload.decode('utf-8', 'replace')}" if kind == b"X" else "answered something that is no bool"
    else:
        why = f"does not load, {outcome.load_error}" if outcome.load_error else f"ended by {outcome.end} {outcome.detail}".strip()
    return VerdictClass.VERIFIER_ERROR, BY, f"case {index}: the task's checker {why}"


_U32 = struct.Struct("<I")


def _question(check: Check, payload: bytes) -> bytes:
    """The encoded arguments of one call of the checker: (args, value) or (args, value, known)."""
    parts = (check.args, payload, *(() if check.known is None else (check.known,)))
    return bytes([wire.TUPLE]) + _U32.pack(len(parts)) + b"".join(parts)


def _chunks(questions: Mapping[int, tuple[str, bytes]]) -> list[tuple[str, list[int]]]:
    """Cases of one function together, as many as fit into one child's input."""
    rows: list[tuple[str, list[int]]] = []
    sizes: dict[str, int] = {}
    last: dict[str, list[int]] = {}
    for index, (function, blob) in questions.items():
        if function not in last or sizes[function] + len(blob) > CHUNK:
            last[function], sizes[function] = [], 0
            rows.append((function, last[function]))
        last[function].append(index)
        sizes[function] += len(blob)
    return rows


def _rebuildable(tree: wire.Tree, hashed: bool = False) -> None:
    """Raises WireError where no honest child can have had such a value: text that is no UTF-8, a list in a set."""
    tag, payload = tree
    if hashed and tag in (wire.LIST, wire.SET, wire.DICT):
        raise wire.WireError("unhashable element")
    if tag == wire.STR:
        try:
            payload.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise wire.WireError("text that is no UTF-8") from error
    elif tag == wire.DICT:
        for key, value in payload:
            _rebuildable(key, True)
            _rebuildable(value, hashed)
    elif tag in (wire.TUPLE, wire.LIST, wire.SET):
        for item in payload:
            _rebuildable(item, hashed or tag == wire.SET)


def _deeper(tree: wire.Tree, left: int) -> bool:
    tag, payload = tree
    if tag not in (wire.TUPLE, wire.LIST, wire.SET, wire.DICT):
        return False
    parts = [part for row in payload for part in row] if tag == wire.DICT else payload
    return left == 0 or any(_deeper(part, left - 1) for part in parts)


_CANARY_CLAIMS = ((2, True), (-2, True), (3, False), ("True", False))
"""Claimed roots of 4, and what a checker must say: two right ones, a wrong one, one that asks to be believed."""
CANARY = Job(b"def check(args, value):\n    return isinstance(value, int) and value * value == args[0]\n", ENTRY,
             tuple(wire.encode(((4,), value)) for value, _ in _CANARY_CLAIMS), limits.OUTPUT_SLACK)


def canary_trouble(heard: Sequence[Mapping[int, Outcome]]) -> str:
    """'' where every canary that ran was answered as it must be and one runner ran it."""
    for outcome in (o for outcomes in heard for o in outcomes.values()):
        for place, (_, right) in enumerate(_CANARY_CLAIMS):
            trouble = said(outcome, place, place)
            if (trouble is None) is not right or (trouble is not None and trouble[0] is not VerdictClass.FAIL):
                return f"claim {place}: {trouble[2] if trouble else 'the checker says yes'}"
    return "" if any(heard) else "no runner answered it"
