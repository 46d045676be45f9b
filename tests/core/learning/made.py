"""Trajectories, verdicts and tasks written by hand, with only the fields a test is about."""

from collections.abc import Sequence

import numpy as np

from dormouse_core.envs.environment import StopReason
from dormouse_core.rollouts.trajectory import Start, Step, Trajectory
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.verdict import Verdict, VerdictClass


def step(k: int, action: bytes = b"go", tool: str = "", ok: bool = True, state: str = "", log_prob: float = -0.5) -> Step:
    n = len(action) + 1
    return Step(step=k, action_bytes=action, ended=True, parsed=action.decode("latin1"), observation=b"seen", obs_digest="o",
                state_digest=state or f"state{k}", tool=tool, tool_ok=ok, log_probs=np.full(n, log_prob, np.float32),
                entropies=np.full(n, 0.7, np.float32), reward=0.0)


def trajectory(name: str, group: str = "g", steps: Sequence[Step] = (step(0),), fork_of: str = "", fork_step: int = -1,
               task_id: str = "task", probe: bool = False, temperature: float = 1.0, prompt: bytes = b"do it") -> Trajectory:
    return Trajectory(
        id=name, cycle="main.c0000", round=0, task_id=task_id, pool="agent", cell="f/d1", group=group, row=0,
        start=Start.PREFIX if fork_of else Start.ROOT, parent_id=fork_of, fork_step=fork_step, seed=1, policy="weights", lfb_version=0,
        temperature=temperature, prompt=prompt, steps=tuple(steps), stop=StopReason.SUBMITTED, probe=probe)


def verdict(t: Trajectory, kind: VerdictClass | str = "pass", score: float | None = None) -> Verdict:
    kind = VerdictClass(kind)
    return Verdict(trajectory_id=t.id, task_id=t.task_id, kind=VerifierKind.EXACT, verdict=kind, decided_by="test", verifier_sha256="0",
                   score=float(kind is VerdictClass.PASS) if score is None else score)


def task(pool: Pool = Pool.AGENT, reference_steps: int | None = None) -> Task:
    return Task(pool=pool, family="f", prompt=b"do it", environment="answer", verifier=VerifierKind.EXACT, split=Split.TRAIN,
                use=Use.TRAIN, reference_steps=reference_steps)
