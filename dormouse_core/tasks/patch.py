"""Unified diffs, read and applied in this process: text in, text out, no tool run, nothing written.

Read: `diff --git` and plain `---`/`+++` headers, new, deleted and renamed files, several hunks a file, `\\ No newline at end of file`.
A hunk is placed where it says, else at the nearest place its old lines stand word for word; there is no fuzz. Lines outside the files'
parts are prose and ignored, as is a code fence around the whole.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

MAX_PATCH = 1 << 18
"""Bytes of a patch past which it is not read."""
MAX_FILES = 200
_HUNK = re.compile(r"@@ -(\d{1,7})(?:,(\d{1,7}))? \+(\d{1,7})(?:,(\d{1,7}))? @@.*")
_NO_NEWLINE = "\\ No newline at end of file"


class PatchError(ValueError):
    """A patch that cannot be read."""


class NotApplicable(ValueError):
    """A patch that reads well and does not fit these files."""


class Forbidden(ValueError):
    """A patch that reaches where no patch may: outside the tree, into `.git`, a link, a binary file."""


@dataclass(slots=True)
class FilePatch:
    """What happens to one file. `before` is None for a new file, `after` None for a deleted one."""

    before: str | None
    after: str | None
    hunks: list[tuple[int, list[str], list[str]]] = field(default_factory=list)
    """(line it says it starts at, old lines, new lines), each line with its newline."""


def parse(text: str) -> list[FilePatch]:
    """Raises PatchError where there is no patch, or a broken one; Forbidden where it reaches where it may not."""
    if len(text) > MAX_PATCH:
        raise PatchError(f"longer than {MAX_PATCH} characters")
    lines = text.split("\n")
    found: list[FilePatch] = []
    renames: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise Forbidden("a binary file")
        if re.fullmatch(r"(?:new file|new|old|deleted file) mode 1[26]0000", line):
            raise Forbidden("a link or a submodule")
        if line.startswith("rename from ") and at + 1 < len(lines) and lines[at + 1].startswith("rename to "):
            before, after = _path(line[12:], ""), _path(lines[at + 1][10:], "")
            if before is not None and after is not None:
                renames[after] = before
                found.append(FilePatch(before, after))
            at += 1
        elif line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            before, after = _path(line[4:], "a/"), _path(lines[at + 1][4:], "b/")
            if before is None and after is None:
                raise PatchError("a file that neither was nor will be")
            at, patch = _hunks(lines, at + 2, FilePatch(before, after))
            if after in renames and found and found[-1].after == after and not found[-1].hunks:
                found[-1].hunks = patch.hunks
            else:
                found.append(patch)
            continue
        at += 1
    if not found:
        raise PatchError("no unified diff")
    if len(found) > MAX_FILES:
        raise PatchError(f"more than {MAX_FILES} files")
    return found


def _path(text: str, prefix: str) -> str | None:
    """A safe path inside the tree; None for /dev/null."""
    text = text.split("\t")[0].rstrip()
    if text == "/dev/null":
        return None
    return safe_path(text.removeprefix(prefix))


def safe_path(text: str) -> str:
    """The path as given. Raises Forbidden where it is absolute, climbs, is hidden behind odd characters, or lies in `.git`."""
    path = PurePosixPath(text)
    odd = not text or text != str(path) or path.is_absolute() or ".." in path.parts or "\\" in text or not text.isprintable()
    if odd or path.parts[0] in (".git", ".") or len(text) > 300:
        raise Forbidden(f"a path outside the tree: {text[:40]!r}")
    return text


def _hunks(lines: list[str], at: int, patch: FilePatch) -> tuple[int, FilePatch]:
    while at < len(lines) and (match := _HUNK.fullmatch(lines[at].rstrip("\r"))):
        start, old_count, _, new_count = (1 if g is None else int(g) for g in match.groups())
        old: list[str] = []
        new: list[str] = []
        at += 1
        while len(old) < old_count or len(new) < new_count:
            if at >= len(lines):
                raise PatchError("a hunk ends too early")
            sign, body = lines[at][:1], lines[at][1:] + "\n"
            if sign not in ("", " ", "-", "+"):
                raise PatchError(f"line {at + 1} is no line of a hunk")
            if sign != "+":
                old.append(body)
            if sign != "-":
                new.append(body)
            at += 1
            if at < len(lines) and lines[at] == _NO_NEWLINE:
                for side in ((old,) if sign == "-" else (new,) if sign == "+" else (old, new)):
                    side[-1] = side[-1][:-1]
                at += 1
        if (len(old), len(new)) != (old_count, new_count):
            raise PatchError(f"a hunk counts {old_count} and {new_count} lines and has {len(old)} and {len(new)}")
        patch.hunks.append((start, old, new))
    if not patch.hunks and patch.before == patch.after:
        raise PatchError("a file header without a hunk")
    return at, patch


def apply(files: Mapping[str, str], patches: list[FilePatch]) -> dict[str, str]:
    """The tree after the patches. Raises NotApplicable where one does not fit."""
    tree = dict(files)
    for patch in patches:
        if patch.before is None:
            assert patch.after is not None  # parse refuses both None
            if patch.after in tree:
                raise NotApplicable(f"{patch.after} is there already")
            text = ""
        else:
            if patch.before not in tree:
                raise NotApplicable(f"{patch.before} is not there")
            text = tree.pop(patch.before)
        after = _applied(text, patch)
        if patch.after is not None:
            tree[patch.after] = after
        elif after:
            raise NotApplicable(f"{patch.before} is deleted, but lines of it would stay")
    for path in tree:
        if any(str(parent) in tree for parent in PurePosixPath(path).parents):
            raise NotApplicable(f"{path} would lie inside a file")
    return tree


def _applied(text: str, patch: FilePatch) -> str:
    lines, offset = _kept(text), 0
    for start, old, new in patch.hunks:
        wanted = max(start - 1 if old else start, 0) + offset
        place = _place(lines, old, wanted)
        if place is None:
            raise NotApplicable(f"the hunk at line {start} of {patch.before or patch.after} finds no such lines")
        lines[place : place + len(old)] = new
        offset += len(new) - len(old) + place - wanted
    return "".join(lines)


def _kept(text: str) -> list[str]:
    """Lines ended by newlines alone."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _place(lines: list[str], old: list[str], wanted: int) -> int | None:
    last = len(lines) - len(old)
    places = sorted((p for p in range(last + 1) if lines[p : p + len(old)] == old), key=lambda p: (abs(p - wanted), p)) if old else []
    if old:
        return places[0] if places else None
    return wanted if 0 <= wanted <= len(lines) else None
