"""Completions of independent prompts, decoded together and handed over byte by byte.

A fixed number of rows share every decode step; a request that arrives takes a free row, and leaves it when it ends. A request's
bytes are a function of (weights, prompt, temperature, seed) alone, whatever else is running: rows do not see each other, and draws
are named by the request's own seed. Not here: tasks and environments (engine), and how the bytes are sent anywhere.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch

from dormouse_core import seeding
from dormouse_core.encoding import END, ESCAPE, Role, opening, unescape
from dormouse_core.policy.model import Policy
from dormouse_core.policy.state import MIN_ROWS
from dormouse_core.rollouts.deviation import NOTHING
from dormouse_core.rollouts.native_draw import sampler

PREFILL = 2048
"""Bytes of a prompt that run at once."""


class Finish(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # the policy closed its answer, or wrote a stop sequence
    LENGTH = "length"  # it wrote as many bytes as it may
    CANCELLED = "cancelled"  # its reader went away


@dataclass(slots=True, eq=False)
class Stream:
    """One completion. `content` is what was written so far, unescaped, without END and without the stop sequence."""

    prompt: bytes
    max_bytes: int
    temperature: float
    seed: int
    stop: tuple[bytes, ...] = ()
    tell: Callable[["Stream", bytes], None] = lambda stream, content: None
    """Called with content that will not be taken back, and once with b"" when `finish` is set."""
    raw: bytearray = field(default_factory=bytearray)
    content: bytes = b""
    log_prob: float = 0.0
    finish: Finish | None = None
    cancelled: bool = False
    """Set by the reader, from any thread: the row is freed at the next byte."""
    _told: int = 0

    def take(self, byte: int, log_prob: float) -> None:
        """The policy wrote one byte."""
        self.raw.append(byte)
        self.log_prob += log_prob
        ended = byte == END[0]
        stream = bytes(self.raw[:-1] if ended else self.raw)
        half = not ended and stream.endswith(ESCAPE) and len(self.raw) < self.max_bytes
        self.content = unescape(stream[:-1] if half else stream)
        found = min((at for s in self.stop if (at := self.content.find(s)) >= 0), default=-1)
        if found >= 0:
            self.content = self.content[:found]
        if ended or found >= 0:
            self.end(Finish.STOP)
        elif len(self.raw) >= self.max_bytes:
            self.end(Finish.LENGTH)
        else:
            self._say(self._certain())

    def end(self, why: Finish) -> None:
        """Nothing more will be written."""
        self._say(len(self.content))
        self.finish = why
        self.tell(self, b"")

    def _certain(self) -> int:
        """How much of the content cannot become part of a stop sequence."""
        held = 0
        for s in self.stop:
            held = max(held, next((n for n in range(len(s) - 1, 0, -1) if self.content.endswith(s[:n])), 0))
        return len(self.content) - held

    def _say(self, upto: int) -> None:
        if upto > self._told:
            told, self._told = self._told, upto
            self.tell(self, self.content[told:upto])


class Streams:
    """`rows` completions at a time; more wait in order of arrival. Not thread-safe but for `Stream.cancelled`: one thread steps."""

    def __init__(self, policy: Policy, rows: int = MIN_ROWS) -> None:
        self.policy, self.device, self.sample = policy.eval(), next(policy.parameters()).device, sampler(policy)
        self.waiting: deque[Stream] = deque()
        self.running: list[Stream] = []
        """The completion of each row in use; these stand in front, and only they are decoded."""
        self.state = policy.initial_state(rows)
        self._next_B = torch.zeros(rows, dtype=torch.int64, device=self.device)

    def submit(self, stream: Stream) -> None:
        self.waiting.append(stream)

    def finish(self) -> None:
        """Step until nothing is owed."""
        while self.step():
            pass

    @torch.no_grad()
    def step(self) -> bool:
        """Admit what fits, then one byte of every running completion. False when nothing is running or waiting."""
        self._sweep()
        while self.waiting and len(self.running) < self.state.batch:
            self._admit(self.waiting.popleft())
        rows = len(self.running)
        if not rows:
            return False
        logits_BV, _ = self.policy.decode(self._next_B[:rows], self.state.first(rows))
        self._write(logits_BV)
        return True

    def _sweep(self) -> None:
        """Cancelled completions leave."""
        for stream in self.running:
            if stream.cancelled:
                stream.end(Finish.CANCELLED)
        self._close_up()
        for stream in [s for s in self.waiting if s.cancelled]:
            self.waiting.remove(stream)
            stream.end(Finish.CANCELLED)

    def _admit(self, stream: Stream) -> None:
        """Run the prompt; its last byte, the assistant tag, is the row's next input."""
        before = opening(Role.PROMPT, stream.prompt)
        state = None
        for i in range(0, len(before), PREFILL):
            ids_BL = torch.tensor([list(before[i : i + PREFILL])], device=self.device)
            state = self.policy(ids_BL, state).state
        assert state is not None
        row = len(self.running)
        self.state.copy_([row], state, [0])
        self._next_B[row] = opening(Role.ASSISTANT)[0]
        self.running.append(stream)

    def _write(self, logits_BV: torch.Tensor) -> None:
        rows = len(self.running)
        seed_B = np.array([seeding.key("completion", s.seed) for s in self.running], dtype=np.int64)
        count_B = np.array([len(s.raw) for s in self.running], dtype=np.int64)
        temperature_B = np.array([s.temperature for s in self.running])
        drawn = self.sample(logits_BV, temperature_B, seed_B, np.zeros(rows, dtype=np.int64), count_B, np.full(rows, NOTHING))
        self._next_B[:rows] = torch.from_numpy(drawn.byte_X.astype(np.int64))
        for stream, byte, log_prob in zip(self.running, drawn.byte_X.tolist(), drawn.log_prob_X.tolist(), strict=True):
            stream.take(byte, log_prob)
        self._close_up()

    def _close_up(self) -> None:
        """The last row takes the place of each one that ended."""
        for row in reversed(range(len(self.running))):
            if self.running[row].finish is None:
                continue
            last, moved = len(self.running) - 1, self.running.pop()
            if row != last:
                self.state.copy_([row], self.state, [last])
                self._next_B[row] = self._next_B[last].clone()
                self.running[row] = moved


def answer_seeds(seed: int, n: int) -> list[int]:
    """Seeds of n completions asked for with one seed."""
    return [seeding.key("answer", seed, row) for row in range(n)]


def complete(policy: Policy, requests: Sequence[Stream], rows: int = MIN_ROWS) -> Sequence[Stream]:
    """Run completions to their ends."""
    streams = Streams(policy, rows)
    for request in requests:
        streams.submit(request)
    streams.finish()
    return requests
