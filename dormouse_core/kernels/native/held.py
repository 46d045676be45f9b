"""A compiled form held to the torch form it stands for: compared at its first call, counted ran/asked, refused aloud.

A key names what one comparison covers. A refused key stays with torch for the rest of the process.
Not here: compiling (build), and what either form does (the callers).
"""

from collections.abc import Hashable

from dormouse_core.kernels.seen import SEEN


class Held:
    """The compiled form counted as `name`, of which torch can say what it `does` in its place."""

    def __init__(self, name: str, does: str) -> None:
        self.name, self.does = name, does
        self._proven: set[Hashable] = set()
        self._refused: set[Hashable] = set()

    def proven(self, key: Hashable) -> bool:
        """Whether the compiled form may run by itself. Counts a run where so."""
        if key not in self._proven:
            return False
        SEEN.ask(self.name, True)
        return True

    def refused(self, key: Hashable, count: bool = True) -> bool:
        """Whether torch runs in its place. Counts a call that was asked for where so, unless told not to."""
        if key not in self._refused:
            return False
        if count:
            SEEN.ask(self.name, False)
        return True

    def refuse(self, key: Hashable, why: str) -> None:
        """Leave this key to torch, and say why."""
        if key not in self._refused:
            self._proven.discard(key)
            self._refused.add(key)
            SEEN.loud(f"policy.compute = native cannot run ({why}): torch {self.does} in its place")

    def holds(self, key: Hashable, wrong: str | None) -> bool:
        """Whether a first call may be handed out: `wrong` says how it differs from torch's, None where it does not. Counted."""
        if wrong is None:
            self._proven.add(key)
        else:
            self.refuse(key, f"it disagrees with torch ({wrong})")
        SEEN.ask(self.name, wrong is None)
        return wrong is None

    def forget(self) -> None:
        """Let every key be tried, and held to torch, again."""
        self._proven.clear()
        self._refused.clear()
