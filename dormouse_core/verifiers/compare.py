"""Equality of a claimed value and an expected one, on tagged trees: nothing the candidate wrote is ever asked.

Typing decides when two types may be equal at all:
  strict   every type is its own (True != 1 != 1.0); the default, for tasks that state a type
  numeric  int and float by value, bool apart
  python   as `==` in Python: bool, int, float and complex by value; for public suites written with `==`
`tolerance` is absolute and acts where a float is expected, in lists, tuples and dict values (not in set elements or dict
keys). NaN equals nothing. `relax` loosens the outermost value only: `sequence` lets a list stand for a tuple and back, `order` lets the
elements of a list or tuple stand in any order (each as often as expected), `truth` compares truth values.
"""

import struct
from enum import StrEnum
from typing import NamedTuple

from dormouse_core.sandbox.wire import BYTES, COMPLEX, DICT, FALSE, FLOAT, INT, LIST, NONE, SET, STR, TRUE, TUPLE, Tree


class Typing(StrEnum):
    STRICT = "strict"
    NUMERIC = "numeric"
    PYTHON = "python"


class Relax(StrEnum):
    NONE = ""
    SEQUENCE = "sequence"
    ORDER = "order"
    TRUTH = "truth"


class Rule(NamedTuple):
    typing: Typing = Typing.STRICT
    tolerance: float = 0.0
    relax: Relax = Relax.NONE


TYPE_NAME = {NONE: "None", TRUE: "bool", FALSE: "bool", INT: "int", FLOAT: "float", COMPLEX: "complex", STR: "str", BYTES: "bytes",
             TUPLE: "tuple", LIST: "list", DICT: "dict", SET: "set"}
_BOOL = (TRUE, FALSE)


def equal(claim: Tree, want: Tree, rule: Rule) -> bool:
    """claim: decoded from hostile bytes. want: trusted, without NaN."""
    if rule.relax is Relax.TRUTH:
        return truth(claim) == truth(want)
    if rule.relax is Relax.SEQUENCE and {claim[0], want[0]} == {TUPLE, LIST}:
        claim = (want[0], claim[1])
    if rule.relax is Relax.ORDER and claim[0] == want[0] and want[0] in (TUPLE, LIST):
        claim, want = (SET, claim[1]), (SET, want[1])  # trees of elements with repeats, compared whatever their order
    return _equal(claim, want, rule)


def truth(tree: Tree) -> bool:
    """What `bool()` says of the value."""
    tag, payload = tree
    if tag in (NONE, TRUE, FALSE):
        return tag == TRUE
    if tag == COMPLEX:
        return payload != (0.0, 0.0)
    return bool(payload) if tag in (INT, FLOAT) else len(payload) > 0


def holds_nan(tree: Tree) -> bool:
    tag, payload = tree
    if tag == FLOAT:
        return payload != payload
    if tag == COMPLEX:
        return payload[0] != payload[0] or payload[1] != payload[1]
    if tag == DICT:
        return any(holds_nan(k) or holds_nan(v) for k, v in payload)
    return tag in (TUPLE, LIST, SET) and any(map(holds_nan, payload))


def _equal(claim: Tree, want: Tree, rule: Rule) -> bool:
    (tag, got), (want_tag, expected) = claim, want
    numbers = _numbers(rule.typing)
    if want_tag in numbers or tag in numbers:
        return tag in numbers and want_tag in numbers and _same_number(claim, want, rule)
    if tag != want_tag:
        return False
    if tag in (TUPLE, LIST):
        return len(got) == len(expected) and all(_equal(a, b, rule) for a, b in zip(got, expected, strict=True))
    if tag == SET:
        ours, theirs = (sorted(_canonical(x, rule.typing) for x in side) for side in (got, expected))
        return ours == theirs
    if tag == DICT:
        if len(got) != len(expected):
            return False
        pairs, wanted = (sorted(((_canonical(k, rule.typing), v) for k, v in side), key=lambda row: row[0]) for side in (got, expected))
        return all(a[0] == b[0] and _equal(a[1], b[1], rule) for a, b in zip(pairs, wanted, strict=True))
    return bool(got == expected)


def _numbers(typing: Typing) -> tuple[int, ...]:
    """Tags that are compared as numbers; under `strict` only with their own tag, for a float's tolerance."""
    return (INT, FLOAT, COMPLEX, *_BOOL) if typing is Typing.PYTHON else (INT, FLOAT, COMPLEX)


def _same_number(claim: Tree, want: Tree, rule: Rule) -> bool:
    if rule.typing is Typing.STRICT and claim[0] != want[0]:
        return False
    if rule.typing is Typing.NUMERIC and COMPLEX in (claim[0], want[0]) and claim[0] != want[0]:
        return False
    ours, theirs = _python_number(claim), _python_number(want)
    if ours == theirs:
        return True
    if not rule.tolerance or want[0] not in (FLOAT, COMPLEX):
        return False
    try:
        return abs(ours - theirs) <= rule.tolerance
    except OverflowError:
        return False


def _python_number(tree: Tree) -> int | float | complex:
    tag, payload = tree
    return (tag == TRUE) if tag in _BOOL else complex(*payload) if tag == COMPLEX else payload


def _canonical(tree: Tree, typing: Typing) -> bytes:
    """Bytes equal exactly when two NaN-free values are equal under `typing`: what sets and keys are compared by."""
    tag, payload = tree
    if tag == COMPLEX:
        if typing is Typing.PYTHON and payload[1] == 0:
            return _canonical((FLOAT, payload[0]), typing)
        return b"c" + struct.pack("<dd", payload[0] + 0.0, payload[1] + 0.0)
    if typing is Typing.PYTHON and tag in _BOOL:
        tag, payload = INT, int(tag == TRUE)
    if tag == FLOAT:
        if typing is not Typing.STRICT and payload - payload == 0 and payload == int(payload):
            tag, payload = INT, int(payload)
        else:
            return b"f" + struct.pack("<d", payload + 0.0)
    if tag == INT:
        return b"i" + payload.to_bytes((payload.bit_length() + 8) // 8, "little", signed=True)
    if tag in (NONE, *_BOOL):
        return bytes([tag])
    if tag in (STR, BYTES):
        return bytes([tag]) + payload
    items = [_canonical(k, typing) + _canonical(v, typing) for k, v in payload] if tag == DICT else [_canonical(x, typing) for x in payload]
    if tag in (SET, DICT):
        items.sort()
    return bytes([tag]) + len(items).to_bytes(4, "little") + b"".join(len(x).to_bytes(4, "little") + x for x in items)
