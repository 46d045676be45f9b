"""StageJournal: which units of a stage are done, so a stage that died resumes with what is owed.

One line a unit: its name, its payload and a hash of both. A line that a crash tore, or that was damaged later, does not count:
its unit is owed again.
"""

import json
import os
from collections.abc import Iterable
from typing import Any

from dormouse_core.artifacts.atomic import sync_folder, write_error
from dormouse_core.artifacts.identity import canonical, sha256
from dormouse_core.artifacts.store import Store


def stage_key(stage: str, *inputs: str) -> str:
    """Folder-safe name of one stage run: the same stage on the same inputs (identities, config hash) finds its own journal."""
    return f"{stage}-{sha256(*[i.encode() for i in inputs])[:16]}" if inputs else stage


class StageJournal:
    """Append-only. `torn` counts lines that did not count."""

    def __init__(self, store: Store, key: str) -> None:
        self._path = store.root / "journal" / f"{key}.jsonl"
        self._done: dict[str, Any] = {}
        self.torn = 0
        self._read()

    def done(self, unit: str) -> Any | None:
        """The payload a finished unit was committed with, or None when it is owed. (Payloads are never None.)"""
        return self._done.get(unit)

    def owed(self, units: Iterable[str]) -> list[str]:
        """Those of `units` that are not done, in order."""
        return [u for u in units if u not in self._done]

    def commit(self, unit: str, payload: Any) -> None:
        """Record a unit as done; durable when this returns. `payload` is a JSON value other than None.

        Raises DormouseError when the disk is full (the unit is then still owed), ValueError on a second commit of another payload.
        """
        if payload is None:
            raise ValueError(f"unit {unit!r}: a payload of None would read as owed")
        line = canonical({"unit": unit, "payload": payload, "sha256": _line_hash(unit, payload)})
        payload = json.loads(line)["payload"]  # as a resumed run will read it
        if unit in self._done:
            if self._done[unit] != payload:
                raise ValueError(f"unit {unit!r} was committed before with another payload")
            return
        self._append(line)
        self._done[unit] = payload

    def clear(self) -> None:
        """Forget everything: the stage is finished or starts anew."""
        self._path.unlink(missing_ok=True)
        self._done.clear()

    def _append(self, line: bytes) -> None:
        try:
            new = not self._path.exists()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab") as file:
                file.write((b"" if new else self._mend()) + line + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync_folder(self._path.parent)
        except OSError as error:
            raise write_error(self._path, len(line), error) from error

    def _mend(self) -> bytes:
        """A newline where the last line was torn, so that it cannot swallow the next."""
        with open(self._path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                return b""
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"

    def _read(self) -> None:
        if not self._path.exists():
            return
        for line in self._path.read_bytes().split(b"\n"):
            if not line:
                continue
            try:
                entry = json.loads(line)
                unit, payload = entry["unit"], entry["payload"]
                sound = entry["sha256"] == _line_hash(unit, payload)
            except (ValueError, KeyError, TypeError):
                sound = False
            if sound:
                self._done[unit] = payload
            else:
                self.torn += 1


def _line_hash(unit: str, payload: Any) -> str:
    return sha256(unit.encode(), canonical(payload))
