"""SFT rows from a user's own file: one JSON object a line, `{"messages": [{"role": ..., "content": ...}, ...]}`.

Roles: `system`, `user` (the prompt), `assistant` (the only spans trained on), `tool` (what an environment answered). A broken line is
named, skipped and counted; the rest of the file trains.
Not here: masks and the held-out side (rows.py), the demonstrations that dormouse makes itself (demonstrations.py).
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from dormouse_core.config.base import Record
from dormouse_core.encoding import Role, Span
from dormouse_core.learning.demonstrations import RowKind, SftRow
from dormouse_core.ledger import DormouseError, Ledger

_ROLE = {"system": Role.SYSTEM, "user": Role.PROMPT, "assistant": Role.ASSISTANT, "tool": Role.OBSERVATION}
_SHOWN = 5
"""Broken lines of a file named one by one; the rest are counted."""


class Message(Record):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Conversation(Record):
    """One line: at least one assistant message, and something before it."""

    messages: tuple[Message, ...] = Field(min_length=2)

    def trouble(self) -> str | None:
        """Why nothing could be learnt from it; None where something can."""
        said = [m.role for m in self.messages]
        if "assistant" not in said:
            return "no assistant message"
        return "it begins with the assistant, so there is nothing to answer" if said[0] == "assistant" else None


def read_conversations(source: Path, ledger: Ledger) -> list[SftRow]:
    """The rows of a .jsonl file, or of every .jsonl file below a folder, in order of name. Exact repeats count once.

    Raises DormouseError when there is no such file, or not one good line in all of them.
    """
    files = [source] if source.is_file() else sorted(source.rglob("*.jsonl"))
    if not files:
        raise DormouseError(f"--data {source}: no such file, and no folder that holds .jsonl files; give one JSON object a line, "
                            '{"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]}')
    rows = {row.task_id: row for file in files for row in _rows_of(file, ledger)}
    ledger.count("sft_data_rows", len(rows))
    if not rows:
        raise DormouseError(f"--data {source}: not one good line in {len(files)} file(s); the first broken ones are named above")
    return list(rows.values())


def _rows_of(file: Path, ledger: Ledger) -> Iterator[SftRow]:
    broken = 0
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            conversation = Conversation.model_validate_json(line)
            trouble = conversation.trouble()
        except ValidationError as error:
            first = error.errors()[0]
            trouble = f"{'.'.join(map(str, first['loc'])) or 'line'}: {first['msg']}"
        if trouble is None:
            yield _row(conversation.messages, file.name)
            continue
        broken += 1
        if broken <= _SHOWN:
            ledger.loud(f"sft: {file} line {number} is broken ({trouble}); skipped")
    ledger.count("sft_data_broken_lines", broken)
    if broken > _SHOWN:
        ledger.loud(f"sft: {file} has {broken} broken lines in all")


def _row(messages: Sequence[Message], name: str) -> SftRow:
    spans = tuple(Span(_ROLE[m.role], m.content.encode("utf-8", "surrogatepass")) for m in messages)
    digest = hashlib.sha256(b"\0".join(f"{role}:{len(content)}:".encode() + content for role, content in spans)).hexdigest()
    return SftRow(spans, RowKind.DATA, None, name, digest)
