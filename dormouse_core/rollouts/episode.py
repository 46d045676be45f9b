"""One episode in the making: its environment, the steps so far, and the bytes that are forced between actions.

Not here: sampling and the policy's state (engine, lanes). An environment that raises is nobody's fault: the episode ends with
stop INFRA, is counted, and the round goes on.
"""

import hashlib
import math
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from dormouse_core import seeding
from dormouse_core.encoding import END, Role, opening, unescape
from dormouse_core.envs.environment import Environment, StopReason
from dormouse_core.ledger import Ledger
from dormouse_core.rollouts.deviation import Deviation, deviate, log_probability, realised_bytes
from dormouse_core.rollouts.request import RolloutRequest
from dormouse_core.rollouts.trajectory import Step, Trajectory

MOST_REDRAWS = 8
"""How often a fork whose canonical action turned out to be the realised one is drawn again."""


class Written(NamedTuple):
    """An action as the policy wrote it, END included where it wrote one."""

    body: bytes
    log_prob_n: np.ndarray
    entropy_n: np.ndarray
    budget_left: int
    policy_ms: float


class Next(StrEnum):
    """What follows an action."""

    STEP = "step"  # the episode goes on
    REDRAW = "redraw"  # the alternative was the realised action in other bytes: place the episode anew
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Forced:
    """Bytes fed to the policy without a draw; the state before byte `boundary` is one a fork may start from (-1: none)."""

    stream: bytes
    boundary: int = -1


class Episode:
    """A request being played."""

    def __init__(self, request: RolloutRequest, environment: type[Environment], keep: frozenset[int] = frozenset()) -> None:
        self.request = request
        self.id = request.id
        self.environment = environment
        self.keep = keep
        self.prompt_stream = opening(Role.PROMPT, request.task.prompt)
        self.source = (request.parent_id, request.fork_step) if request.prefix else None
        self.steps: list[Step] = list(request.prefix)
        self.stop: StopReason | None = None
        self.attempt = 0
        self.same_action = False
        self.deviation: Deviation | None = None
        self.env: Environment | None = None
        self.state_digest = ""

    @property
    def draw_seed(self) -> int:
        """Stream of the draws: the request's own, or that of this redraw."""
        return self.request.seed if self.attempt == 0 else seeding.key("redraw", self.request.seed, self.attempt)

    def begin(self, blob: bytes | None, ledger: Ledger) -> bool:
        """Bring the environment to the first own step (`blob`: its snapshot there, else the prefix is replayed) and draw where a
        fork deviates. False: the environment failed, the episode is over."""
        request = self.request
        self.steps = list(request.prefix)
        self.deviation = deviate(request.avoid, self.draw_seed) if request.avoid is not None else None
        try:
            if blob is not None:
                self.env = self.environment.restore(request.task, blob)
            else:
                self.env = self.environment.start(request.task, request.env_seed)
                for step in request.prefix:
                    self.env.step(unescape(step.action_bytes))
            self.state_digest = self.env.digest()
        except Exception as error:  # noqa: BLE001 - whatever an environment raises ends this episode alone
            return self._infra("start", error, ledger)
        if request.avoid is not None and self.state_digest != request.avoid.state_digest:
            ledger.count("rollouts.restore_mismatch")
            return self._infra("restore", ValueError("another state than the parent's at this step"), ledger)
        return True

    def opening(self, from_snapshot: bool) -> Forced:
        """What is forced before the first own draw, behind the prompt or behind a kept boundary."""
        head = b"" if from_snapshot else b"".join(
            opening(Role.ASSISTANT) + realised_bytes(s) + opening(Role.OBSERVATION, s.observation) for s in self.request.prefix)
        shared = realised_bytes(self.request.avoid)[: self.deviation.at] if self.request.avoid and self.deviation else b""
        return Forced(head + opening(Role.ASSISTANT) + shared)

    def act(self, written: Written, ledger: Ledger) -> Next:
        """Carry out a finished action."""
        if written.body[-1:] != END:
            self._append(written.body, False, written, observation=b"")
            self.stop = StopReason.BYTE_BUDGET
            return Next.DONE
        assert self.env is not None
        action, started, before = written.body[:-1], time.perf_counter(), len(self.steps)
        try:
            result = self.env.step(unescape(action))
            env_ms = (time.perf_counter() - started) * 1e3
            if self._is_realised(result.parsed):
                if self.attempt < MOST_REDRAWS:
                    self.attempt += 1
                    return Next.REDRAW
                self.same_action = True
            self._append(action, True, written, result.observation, result.parsed, result.tool, result.tool_ok, result.reward, env_ms)
            self.stop = result.stop or self._limit(written.budget_left)
            self.state_digest = self.env.digest() if self.stop is None else ""
        except Exception as error:  # noqa: BLE001 - whatever an environment raises ends this episode alone
            if len(self.steps) == before:
                self._append(action, True, written, observation=b"")
            self._infra("step", error, ledger)
        return Next.STEP if self.stop is None else Next.DONE

    def _is_realised(self, parsed: str) -> bool:
        """Whether a fork's first own action is, once parsed, the one it was to avoid. Malformed actions equal only themselves."""
        avoid = self.request.avoid
        return avoid is not None and len(self.steps) == len(self.request.prefix) and parsed != "" and parsed == avoid.parsed

    def between(self) -> Forced:
        """What is forced between the action just carried out and the next one."""
        stream = END + opening(Role.OBSERVATION, self.steps[-1].observation) + opening(Role.ASSISTANT)
        return Forced(stream, boundary=len(stream) - 1 if len(self.steps) in self.keep else -1)

    def snapshot(self) -> bytes:
        """The environment's whole state, before the next action."""
        assert self.env is not None
        return self.env.snapshot()

    def trajectory(self) -> Trajectory:
        """The finished record."""
        request, task = self.request, self.request.task
        assert self.stop is not None
        return Trajectory(
            id=self.id, cycle=request.origin.cycle, round=request.origin.round, task_id=task.id, pool=str(task.pool), cell=task.cell,
            group=request.group, row=request.row, start=request.start, parent_id=request.parent_id, fork_step=request.fork_step,
            seed=request.seed, policy=request.origin.policy, lfb_version=request.origin.lfb_version, temperature=request.temperature,
            prompt=task.prompt, steps=tuple(self.steps), stop=self.stop, probe=request.probe, verifier_kind=str(task.verifier),
            extra={**request.extra, **self._fork_facts()},
        )

    def _fork_facts(self) -> dict[str, float]:
        """What the credit of a fork needs beside the returns: A = (1 - pi) * acceptance * (R - R_fork)."""
        if self.request.avoid is None or self.deviation is None:
            return {}
        return {
            "pi": math.exp(log_probability(self.request.avoid)),
            "redraws": float(self.attempt),
            "acceptance": 0.0 if self.same_action else 1.0 / (1 + self.attempt),
            "deviation": float(self.deviation.at),
        }

    def _limit(self, budget_left: int) -> StopReason | None:
        if len(self.steps) >= self.request.task.max_steps:
            return StopReason.MAX_STEPS
        return StopReason.BYTE_BUDGET if budget_left <= 0 else None

    def _append(self, action: bytes, ended: bool, written: Written, observation: bytes, parsed: str = "", tool: str = "",
                tool_ok: bool = True, reward: float = 0.0, env_ms: float = 0.0) -> None:
        self.steps.append(Step(
            step=len(self.steps), action_bytes=action, ended=ended, parsed=parsed, observation=observation,
            obs_digest=hashlib.sha256(observation).hexdigest(), state_digest=self.state_digest, tool=tool, tool_ok=tool_ok,
            log_probs=written.log_prob_n, entropies=written.entropy_n, reward=reward, policy_ms=written.policy_ms, env_ms=env_ms))

    def _infra(self, where: str, error: Exception, ledger: Ledger) -> bool:
        self.stop = StopReason.INFRA
        ledger.count("rollouts.infra")
        ledger.loud(f"environment {self.request.task.environment} failed at {where} ({type(error).__name__}: {error}) on task "
                    f"{self.request.task.id[:16]}; such episodes end with stop=infra and get no verdict")
        return False

