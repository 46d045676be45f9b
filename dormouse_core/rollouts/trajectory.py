"""Trajectory and Step: what happened in one episode, every byte and every log-prob as sampled."""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from dormouse_core.encoding import END, Role, opening
from dormouse_core.envs.environment import StopReason


class Start(StrEnum):
    """Where an episode began."""

    ROOT = "root"  # the task's own start state
    PREFIX = "prefix"  # the replayed head of a stored trajectory: a fork
    HANDOFF = "handoff"  # a state another actor reached


@dataclass(frozen=True, slots=True)
class Step:
    """One action and the environment's answer. Arrays cover the bytes the policy wrote in this step, END included."""

    step: int
    action_bytes: bytes  # stream bytes as sampled, without END
    ended: bool  # True: the policy wrote END; False: the byte budget cut it
    parsed: str
    observation: bytes  # raw content
    obs_digest: str  # sha256 of the observation
    state_digest: str  # environment digest BEFORE the action
    tool: str
    tool_ok: bool
    log_probs: np.ndarray  # [n] float32, log pi(byte) as sampled, n = len(action_bytes) + ended
    entropies: np.ndarray  # [n] float32, nats
    reward: float
    policy_ms: float = 0.0
    env_ms: float = 0.0

    @property
    def tokens(self) -> int:
        return len(self.log_probs)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. `id` is unique in the store and is a function of the draw's keys alone."""

    id: str
    cycle: str
    round: int
    task_id: str
    pool: str
    cell: str
    group: str  # trajectories with one group share a task AND a start state
    row: int
    start: Start
    parent_id: str  # trajectory a fork replays, "" for roots
    fork_step: int  # steps replayed from the parent; -1 for roots
    seed: int
    policy: str  # identity of the weights that sampled it
    lfb_version: int
    temperature: float
    prompt: bytes  # raw content
    steps: tuple[Step, ...]  # replayed steps included, so a trajectory stands alone
    stop: StopReason
    probe: bool = False
    verifier_kind: str = ""  # which verifier the task asks for
    verifier_calls: int = 0
    fork_count: int = 0
    div_gate_fired: int = 0
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def sampled_steps(self) -> tuple[Step, ...]:
        """Steps this trajectory's own draws wrote (a fork's replayed head left out)."""
        return self.steps[max(self.fork_step, 0) :]

    @property
    def tokens(self) -> int:
        """New bytes the policy wrote in this episode, END included; a fork's replayed head counts, as it did when written."""
        return sum(s.tokens for s in self.steps)

    @property
    def tool_calls(self) -> int:
        return sum(bool(s.tool) for s in self.steps)

    def stream(self) -> tuple[bytes, np.ndarray, np.ndarray]:
        """The byte stream as the policy saw it: (bytes [L], step_L int16: step index where the policy wrote the byte in
        this trajectory's own draws, -1 elsewhere, log_prob_L float32: as sampled there, 0 elsewhere)."""
        parts = [opening(Role.PROMPT, self.prompt)]
        step_ids, log_probs = [-1] * len(parts[0]), [0.0] * len(parts[0])
        first_own = max(self.fork_step, 0)
        for s in self.steps:
            head = opening(Role.ASSISTANT)
            body = s.action_bytes + (END if s.ended else b"")
            tail = opening(Role.OBSERVATION, s.observation) if s is not self.steps[-1] else b""
            parts += [head, body, tail]
            own = s.step if s.step >= first_own else -1
            step_ids += [-1] * len(head) + [own] * len(body) + [-1] * len(tail)
            log_probs += [0.0] * len(head) + (list(s.log_probs) if own >= 0 else [0.0] * len(body)) + [0.0] * len(tail)
        return b"".join(parts), np.array(step_ids, dtype=np.int16), np.array(log_probs, dtype=np.float32)
