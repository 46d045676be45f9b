"""The numbers of every lane, one array a quantity, so that a byte costs a few numpy calls whatever the batch.

A lane is idle, forced (bytes are waiting in `forced_BL`) or sampled. Not here: the policy's state and what an action does.
"""

from dataclasses import dataclass, field

import numpy as np

from dormouse_core.encoding import END
from dormouse_core.rollouts.deviation import NOTHING
from dormouse_core.rollouts.episode import Episode, Forced, Written
from dormouse_core.rollouts.sampling import Draw

_END = END[0]


def _zeros(dtype: type) -> np.ndarray:
    return np.zeros(0, dtype=dtype)


@dataclass(slots=True)
class Lanes:
    """`width` lanes. B = width, L = longest forced run, N = longest action so far (both grow on demand)."""

    width: int
    live_B: np.ndarray = field(default_factory=lambda: _zeros(bool))
    seed_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))
    step_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))
    count_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))  # bytes of the current action so far
    used_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))  # bytes of the episode so far
    budget_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))
    avoid_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))
    temperature_B: np.ndarray = field(default_factory=lambda: _zeros(np.float64))
    last_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))  # byte sampled last
    at_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))  # next forced byte
    end_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))  # number of forced bytes
    boundary_B: np.ndarray = field(default_factory=lambda: _zeros(np.int64))  # where in them the state is to be kept, or -1
    ms_B: np.ndarray = field(default_factory=lambda: _zeros(np.float64))
    forced_BL: np.ndarray = field(default_factory=lambda: np.zeros((0, 64), dtype=np.uint8))
    byte_BN: np.ndarray = field(default_factory=lambda: np.zeros((0, 64), dtype=np.uint8))
    log_prob_BN: np.ndarray = field(default_factory=lambda: np.zeros((0, 64), dtype=np.float32))
    entropy_BN: np.ndarray = field(default_factory=lambda: np.zeros((0, 64), dtype=np.float32))
    episodes: list[Episode | None] = field(default_factory=list)
    busy: int = 0

    def __post_init__(self) -> None:
        self.resize(self.width)

    def resize(self, width: int) -> np.ndarray:
        """Change the number of lanes; live ones move to the front in order. Returns their old rows."""
        rows = np.flatnonzero(self.live_B)
        for name in self.__dataclass_fields__:
            old = getattr(self, name)
            if isinstance(old, np.ndarray):
                new = np.zeros((width, *old.shape[1:]), dtype=old.dtype)
                new[: len(rows)] = old[rows]
                setattr(self, name, new)
        self.episodes = [self.episodes[row] for row in rows] + [None] * (width - len(rows))
        self.width = width
        return rows

    def idle(self) -> list[int]:
        return np.flatnonzero(~self.live_B).tolist()

    def place(self, row: int, episode: Episode, forced: Forced) -> None:
        """Put an episode into a lane, before its first draw."""
        request, deviation = episode.request, episode.deviation
        self.busy += self.episodes[row] is None
        self.episodes[row] = episode
        self.live_B[row] = True
        self.seed_B[row] = episode.draw_seed
        self.step_B[row] = len(episode.steps)
        self.budget_B[row] = request.task.byte_budget
        self.temperature_B[row] = request.temperature
        self.avoid_B[row] = deviation.byte if deviation else NOTHING
        self.count_B[row] = deviation.at if deviation else 0
        self.used_B[row] = sum(s.tokens for s in episode.steps) + self.count_B[row]
        self.ms_B[row] = 0.0
        self._widen("byte_BN", request.task.byte_budget)
        self._widen("log_prob_BN", request.task.byte_budget)
        self._widen("entropy_BN", request.task.byte_budget)
        if deviation and request.avoid is not None:
            n = deviation.at
            self.byte_BN[row, :n] = np.frombuffer(request.avoid.action_bytes[:n], dtype=np.uint8)
            self.log_prob_BN[row, :n] = request.avoid.log_probs[:n]
            self.entropy_BN[row, :n] = request.avoid.entropies[:n]
        self.force(row, forced)

    def force(self, row: int, forced: Forced) -> None:
        """Queue forced bytes."""
        length = len(forced.stream)
        self._widen("forced_BL", length)
        self.forced_BL[row, :length] = np.frombuffer(forced.stream, dtype=np.uint8)
        self.at_B[row], self.end_B[row], self.boundary_B[row] = 0, length, forced.boundary

    def next_action(self, row: int, seed: int, forced: Forced) -> None:
        """The lane's episode goes on to its next step."""
        self.seed_B[row] = seed
        self.step_B[row] += 1
        self.count_B[row] = 0
        self.ms_B[row] = 0.0
        self.force(row, forced)

    def free(self, row: int) -> None:
        self.live_B[row], self.episodes[row] = False, None
        self.busy -= 1

    def at_boundary(self) -> np.ndarray:
        """Live rows whose state is at a boundary to be kept."""
        return np.flatnonzero(self.live_B & (self.at_B == self.boundary_B) & (self.at_B < self.end_B))

    def next_bytes(self) -> np.ndarray:
        """The byte each lane consumes now [B] int64, moving forced lanes on."""
        forced = np.flatnonzero(self.at_B < self.end_B)
        ids_B = self.last_B.copy()
        if len(forced):
            ids_B[forced] = self.forced_BL[forced, self.at_B[forced]]
            self.at_B[forced] += 1
        return ids_B

    def sampling(self) -> np.ndarray:
        """Live rows whose next byte is the policy's."""
        return np.flatnonzero(self.live_B & (self.at_B >= self.end_B))

    def record(self, rows: np.ndarray, drawn: Draw) -> np.ndarray:
        """Store one sampled byte a row. Returns the rows whose action is over: closed by END or cut by the budget."""
        n_X = self.count_B[rows]
        self.byte_BN[rows, n_X] = drawn.byte_X
        self.log_prob_BN[rows, n_X] = drawn.log_prob_X
        self.entropy_BN[rows, n_X] = drawn.entropy_X
        self.last_B[rows] = drawn.byte_X
        self.count_B[rows] = n_X + 1
        self.used_B[rows] += 1
        self.avoid_B[rows] = NOTHING
        return rows[(drawn.byte_X == _END) | (self.used_B[rows] >= self.budget_B[rows])]

    def written(self, row: int) -> Written:
        """The action a lane just finished."""
        n = int(self.count_B[row])
        return Written(self.byte_BN[row, :n].tobytes(), self.log_prob_BN[row, :n].copy(), self.entropy_BN[row, :n].copy(),
                       int(self.budget_B[row] - self.used_B[row]), float(self.ms_B[row]))

    def _widen(self, name: str, columns: int) -> None:
        old = getattr(self, name)
        if columns > old.shape[1]:
            new = np.zeros((old.shape[0], max(columns, 2 * old.shape[1])), dtype=old.dtype)
            new[:, : old.shape[1]] = old
            setattr(self, name, new)
