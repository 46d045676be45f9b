"""Text <-> bytes: role tags, assistant spans, and the mask that says which bytes the policy is trained on.

A conversation is one byte stream. Five byte values are structural and one escapes them, so nothing a task, a tool or the
policy writes can be read as structure: content is escaped on the way in, and the policy's own distribution has no mass on
the tags it may not write (`POLICY_MAY_WRITE`).
Not here: what the bytes mean (tasks, envs), and which stream a step belongs to (rollouts).
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import numpy as np

VOCABULARY = 256


class Role(StrEnum):
    """Who a span of the stream belongs to."""

    SYSTEM = "system"
    PROMPT = "prompt"
    ASSISTANT = "assistant"
    OBSERVATION = "observation"


TAG = {Role.SYSTEM: b"\x01", Role.PROMPT: b"\x02", Role.ASSISTANT: b"\x03", Role.OBSERVATION: b"\x04"}
END = b"\x05"
"""Closes an assistant span. The only structural byte the policy writes itself: choosing it is part of the action."""
ESCAPE = b"\x10"
_FLIP = 0x40
_RESERVED = b"".join(TAG.values()) + END + ESCAPE
_RESERVED_VALUES = frozenset(_RESERVED)
_ESCAPED = {bytes([b]): ESCAPE + bytes([b ^ _FLIP]) for b in _RESERVED}
_ROLE_OF_TAG = {tag: role for role, tag in TAG.items()}

POLICY_MAY_WRITE = np.ones(VOCABULARY, dtype=bool)
"""[V] True for bytes inside the support of the action distribution: everything but the four role tags."""
POLICY_MAY_WRITE[[tag[0] for tag in TAG.values()]] = False


class Span(NamedTuple):
    """One turn of a conversation: content is raw (unescaped) bytes."""

    role: Role
    content: bytes


def escape(content: bytes) -> bytes:
    """Raw content -> stream bytes that hold no structural byte. Inverse: `unescape`."""
    if _RESERVED_VALUES.isdisjoint(content):
        return content
    return b"".join(_ESCAPED.get(content[i : i + 1], content[i : i + 1]) for i in range(len(content)))


def unescape(stream: bytes) -> bytes:
    """Stream bytes of one span -> raw content. Total: a dangling or needless escape, which a policy may write, is kept
    as it stands, so any bytes decode to something and nothing decodes to structure."""
    if ESCAPE not in stream:
        return stream
    out, i = bytearray(), 0
    while i < len(stream):
        pair = stream[i : i + 2]
        if pair[:1] == ESCAPE and len(pair) == 2 and (pair[1] ^ _FLIP) in _RESERVED:
            out.append(pair[1] ^ _FLIP)
            i += 2
        else:
            out.append(stream[i])
            i += 1
    return bytes(out)


def opening(role: Role, content: bytes = b"") -> bytes:
    """The forced bytes that open a span: its tag and its escaped content. For an assistant span pass no content: the
    policy writes it, and `END` closes it."""
    return TAG[role] + escape(content)


def render(spans: Iterable[Span], every_span: bool = False) -> tuple[bytes, np.ndarray]:
    """Conversation -> (stream of L bytes, mask_L bool: True where the byte is a training target).

    Assistant content and its END are targets; with `every_span` all content is (`--mask all`), tags never are.
    """
    stream, mask = bytearray(), []
    for role, content in spans:
        body = escape(content) + (END if role is Role.ASSISTANT else b"")
        stream += TAG[role] + body
        mask += [False] + [role is Role.ASSISTANT or every_span] * len(body)
    return bytes(stream), np.array(mask, dtype=bool)


def parse(stream: bytes) -> list[Span]:
    """Stream -> conversation, the inverse of `render`. Raises ValueError where the stream is not well formed."""
    spans: list[Span] = []
    i = 0
    while i < len(stream):
        role = _ROLE_OF_TAG.get(stream[i : i + 1])
        if role is None:
            raise ValueError(f"byte {i} ({stream[i : i + 1]!r}) should open a span with a role tag")
        end = i + 1
        while end < len(stream) and stream[end : end + 1] not in _ROLE_OF_TAG and stream[end : end + 1] != END:
            end += 1
        closed = stream[end : end + 1] == END
        if closed != (role is Role.ASSISTANT):
            raise ValueError(f"span at byte {i} ({role}) {'must not be' if closed else 'is not'} closed by END")
        spans.append(Span(role, unescape(stream[i + 1 : end])))
        i = end + closed
    return spans


def show_mask(stream: bytes, mask_L: np.ndarray) -> str:
    """Two aligned lines a person can read: the bytes, and ^ under each one that carries loss."""
    shown = [chr(b) if 32 <= b < 127 else f"\\x{b:02x}" for b in stream]
    marks = [("^" if m else " ") * len(s) for s, m in zip(shown, mask_L, strict=True)]
    return "".join(shown) + "\n" + "".join(marks).rstrip()
