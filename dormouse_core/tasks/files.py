"""Rules of the small file system: one-letter files with a one-digit content, in the root or in one-letter folders.

A path is `a` or `Xa`; a listing names folders in capitals and files with their content, sorted: `a1b2X` holds a=1, b=2
and an empty folder X, `a1Xb2` the file Xb=2. Five commands: w write `wa3`, m move `mab`, c copy `cab`, r remove `ra`, k make
a folder `kX`; `l` looks at a file, `la`. Shared by the generators (which need plans) and the environment. Pure functions.
"""

import re
from dataclasses import dataclass

import numpy as np

NAMES, FOLDERS, CONTENTS = "abcd", "XY", "123456789"
_PATH = r"[XY]?[a-d]"
_COMMAND = re.compile(rf"(w)({_PATH})([1-9])|(m|c)({_PATH})({_PATH})|(r)({_PATH}|[XY])|(k)([XY])|(l)({_PATH})")


def parse(command: str) -> tuple[str, ...] | None:
    """Tool and arguments of a command; None where it is none."""
    match = _COMMAND.fullmatch(command)
    return tuple(part for part in match.groups() if part) if match else None


@dataclass(frozen=True, slots=True)
class Files:
    """A state: {path: content} and the folders there are."""

    contents: dict[str, str]
    folders: frozenset[str] = frozenset()

    @classmethod
    def read(cls, listing: str) -> "Files":
        """Inverse of `listing`. Raises ValueError where the text is no listing."""
        contents: dict[str, str] = {}
        folders, folder, i = set(), "", 0
        while i < len(listing):
            if listing[i] in FOLDERS:
                folder = listing[i]
                folders.add(folder)
                i += 1
            elif listing[i] in NAMES and listing[i + 1 : i + 2] in tuple(CONTENTS):
                contents[folder + listing[i]] = listing[i + 1]
                i += 2
            else:
                raise ValueError(f"{listing!r} is no listing: character {i}")
        return cls(contents, frozenset(folders))

    def listing(self) -> str:
        """Canonical text of the state."""
        inside = {folder: "".join(f"{p[-1]}{c}" for p, c in sorted(self.contents.items()) if p[:-1] == folder)
                  for folder in ["", *sorted(self.folders)]}
        return "".join(folder + text for folder, text in inside.items())

    def apply(self, command: str) -> tuple["Files", str | None]:
        """(state after, what the tool says): the new listing, a file's content for `l`, None where the command is refused
        (then the state is unchanged). Raises ValueError for text that is no command."""
        parts = parse(command)
        if parts is None:
            raise ValueError(f"{command!r} is no command")
        tool, first = parts[0], parts[1]
        contents, folders = dict(self.contents), set(self.folders)
        if tool == "l":
            return self, self.contents.get(first)
        if tool == "k":
            if first in folders:
                return self, None
            folders.add(first)
        elif tool == "r" and first in FOLDERS:
            if first not in folders or any(p[:-1] == first for p in contents):
                return self, None
            folders.remove(first)
        elif not self._change(contents, parts):
            return self, None
        after = Files(contents, frozenset(folders))
        return after, after.listing()

    def _change(self, contents: dict[str, str], parts: tuple[str, ...]) -> bool:
        """Apply w, m, c or r to `contents`; False where it is refused."""
        tool, first = parts[0], parts[1]
        target = first if tool == "w" else parts[2] if tool in "mc" else ""
        if tool != "w" and first not in contents:
            return False
        if target and (target[:-1] not in ("", *self.folders) or (tool in "mc" and target == first)):
            return False
        if tool == "w":
            contents[first] = parts[2]
        else:
            moved = contents[first]
            if tool in "mr":
                del contents[first]
            if target:
                contents[target] = moved
        return True


def next_command(state: Files, goal: Files) -> str | None:
    """The first command of a shortest plan to `goal` (a folder that the goal lacks is never made by our generators).

    A wanted file costs one step, a spare file one, and a move settles both; a missing folder costs one. So: folders
    first, then moves of spare files whose content is wanted, then writes, then removals.
    """
    for folder in sorted(goal.folders - state.folders):
        return f"k{folder}"
    wanted = {p: c for p, c in goal.contents.items() if state.contents.get(p) != c}
    spare = {p: c for p, c in state.contents.items() if p not in goal.contents}
    for path, content in sorted(wanted.items()):
        for source, has in sorted(spare.items()):
            if has == content:
                return f"m{source}{path}"
    for path, content in sorted(wanted.items()):
        return f"w{path}{content}"
    for path in sorted(spare):
        return f"r{path}"
    for folder in sorted(state.folders - goal.folders):
        return f"r{folder}"
    return None


def plan(state: Files, goal: Files) -> list[str]:
    """A shortest plan, by `next_command` until the goal holds."""
    commands: list[str] = []
    while (command := next_command(state, goal)) is not None:
        state, said = state.apply(command)
        if said is None:
            raise ValueError(f"the plan's own command {command} was refused at {state.listing()!r}")
        commands.append(command)
    return commands


def predicates(first: Files, goal: Files) -> list[tuple[str, str | None]]:
    """What must become true on the way: (path, content), (path, None) for a file to be gone, (folder, "") for a folder to be made."""
    wanted: list[tuple[str, str | None]] = [(p, c) for p, c in sorted(goal.contents.items()) if first.contents.get(p) != c]
    gone: list[tuple[str, str | None]] = [(p, None) for p in sorted(first.contents) if p not in goal.contents]
    return wanted + gone + [(f, "") for f in sorted(goal.folders - first.folders)]


def random_files(count: int, with_folders: bool, rng: np.random.Generator) -> Files:
    """`count` files of random content; with folders, one folder holds some of them."""
    folder = str(rng.choice(list(FOLDERS))) if with_folders else ""
    paths = [*NAMES, *(folder + n for n in NAMES)] if folder else list(NAMES)
    chosen = [str(p) for p in rng.choice(paths, count, replace=False)]
    return Files({p: str(rng.choice(list(CONTENTS))) for p in chosen}, frozenset([folder]) if folder else frozenset())


def random_command(state: Files, rng: np.random.Generator) -> str:
    """A random command that changes the state."""
    places = ["", *sorted(state.folders)]
    there = sorted(state.contents)
    while True:
        tool = str(rng.choice(list("wmcr")))
        path = str(rng.choice(places)) + str(rng.choice(list(NAMES)))
        source = str(rng.choice(there)) if there else path
        command = {"w": f"w{path}{rng.choice(list(CONTENTS))}", "m": f"m{source}{path}", "c": f"c{source}{path}", "r": f"r{source}"}[tool]
        after, said = state.apply(command)
        if said is not None and after != state:
            return command
