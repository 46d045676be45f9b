"""Kept policy states: one after each prompt of the groups in play, and one at every step boundary a fork may start from.

All live in one pooled State, so keeping and restoring are row copies. Prompts are a small least-recently-used cache; step
states stay until `drop`, up to a memory limit, past which they are simply not kept (the prefix is then replayed).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from dormouse_core.policy.state import State

Boundary = tuple[str, int]
"""(trajectory id, step): the state just before the assistant tag of that step."""
LIMIT_BYTES = 1 << 30


class Snapshots:
    """The pool. Slots are rows of `state`."""

    def __init__(self, initial_state: Callable[[int], State], prompts: int, limit_bytes: int = LIMIT_BYTES) -> None:
        self._make = initial_state
        self._capacity = max(2 * prompts, 8)
        self.state = initial_state(self._capacity)
        self._free = list(range(self._capacity))
        self._prompts: OrderedDict[bytes, int] = OrderedDict()
        self._prompt_limit = prompts
        self._steps: dict[Boundary, tuple[int, bytes]] = {}
        self._kept_of: dict[str, list[int]] = {}
        self._step_limit = max(limit_bytes // max(len(self.state.row_bytes(0)), 1), 1)

    def keep_prompts(self, streams: Sequence[bytes], after: State, needed: frozenset[bytes]) -> None:
        """Keep rows 0.. of `after` as the states behind these prompts; the oldest prompts not in `needed` make room."""
        while len(self._prompts) + len(streams) > self._prompt_limit:
            old = next((p for p in self._prompts if p not in needed), None)
            if old is None:
                break
            self._free.append(self._prompts.pop(old))
        slots = [self._slot() for _ in streams]
        self.state.copy_(slots, after, range(len(slots)))
        self._prompts.update(zip(streams, slots, strict=True))

    def prompt(self, stream: bytes) -> int | None:
        """Slot of the state after a prompt."""
        slot = self._prompts.get(stream)
        if slot is not None:
            self._prompts.move_to_end(stream)
        return slot

    def keep_steps(self, keys: Sequence[Boundary], blobs: Sequence[bytes], source: State, rows: Sequence[int]) -> None:
        """Keep `rows` of `source`, with the environments' snapshots beside them, as far as memory allows."""
        room = self._step_limit - len(self._steps)
        keys, blobs, rows = keys[:room], blobs[:room], rows[:room]
        if keys:
            slots = [self._slot() for _ in keys]
            self.state.copy_(slots, source, rows)
            for (name, k), slot, blob in zip(keys, slots, blobs, strict=True):
                self._steps[name, k] = (slot, blob)
                self._kept_of.setdefault(name, []).append(k)

    def step(self, key: Boundary | None) -> tuple[int, bytes] | None:
        """(slot, environment snapshot) of a kept boundary."""
        return self._steps.get(key) if key else None

    def drop(self, key: Boundary) -> None:
        kept = self._steps.pop(key, None)
        if kept:
            self._free.append(kept[0])

    def keep_only(self, trajectories: Iterable[str], wanted: set[Boundary]) -> None:
        """Drop every boundary of these trajectories that is not wanted."""
        for name in trajectories:
            for k in self._kept_of.pop(name, ()):
                if (name, k) not in wanted:
                    self.drop((name, k))

    def __len__(self) -> int:
        return len(self._steps)

    def _slot(self) -> int:
        if not self._free:
            bigger = self._make(2 * self._capacity)
            rows = range(self._capacity)
            bigger.copy_(rows, self.state, rows)
            self._free = list(range(self._capacity, 2 * self._capacity))
            self.state, self._capacity = bigger, 2 * self._capacity
        return self._free.pop()
