"""Canaries of the verifiers that run in this process: a right, a wrong and a lying attempt of each kind, judged in every batch.

They take the same path as the batch's own attempts. One that gets another class, or another decider, than it must voids the verdicts of its
kind in that batch: the code or the machine cannot be trusted as it is. The liars say what an honest attempt never would: a right
number before a wrong final answer; an end of SOLVED over a path that solves nothing.
Not here: canaries that are programs (exec.py) and patches (repo.py), which ride with their own batches.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from dormouse_core.envs.environment import StopReason
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.attempt import Attempt, Finding
from dormouse_core.verifiers.verdict import VerdictClass


class Canary(NamedTuple):
    """An attempt, and the only class and decider it may get."""

    name: str
    attempt: Attempt
    verdict: VerdictClass
    decided_by: str


def trouble(kind: VerifierKind, judge: Callable[[Attempt], Finding]) -> str:
    """'' where every canary of the kind is judged as it must be, else which was not, and how."""
    for canary in canaries(kind):
        found = judge(canary.attempt)
        if (found.verdict, found.decided_by) != (canary.verdict, canary.decided_by):
            return f"{canary.name}: {found.verdict} by {found.decided_by}, {found.reason}"
    return ""


@cache
def canaries(kind: VerifierKind) -> tuple[Canary, ...]:
    """The trio of a kind; none for a kind whose canaries ride elsewhere."""
    if kind is VerifierKind.EXACT:
        task = _task(kind, "answer", {}, {"answer": "1000", "form": "number"}, 1)
        texts = (("right", b"999+1=1,000", VerdictClass.PASS), ("wrong", b"1000.5", VerdictClass.FAIL),
                 ("liar", b"A: 1000\nthe answer is 1000\nA: 1001", VerdictClass.FAIL))
        return tuple(Canary(name, Attempt(f"canary:{name}", task, (text,), StopReason.SUBMITTED), verdict, "exact.number")
                     for name, text, verdict in texts)
    if kind is VerifierKind.ENV_STEP:
        task = _task(kind, "file_system", {"listing": "a1", "goal": "b1"}, {"target": {"listing": "b1"}, "milestones": []}, 4)
        paths = (("right", (b"mab",), StopReason.SOLVED, VerdictClass.PASS), ("wrong", (b"cab",), StopReason.SUBMITTED, VerdictClass.FAIL),
                 ("liar", (b"la", b"b1"), StopReason.SOLVED, VerdictClass.FAIL))
        return tuple(Canary(name, Attempt(f"canary:{name}", task, path, stop), verdict, "env_step.state")
                     for name, path, stop, verdict in paths)
    return ()


def _task(kind: VerifierKind, environment: str, start: dict[str, str], trusted: dict[str, object], steps: int) -> Task:
    pool = Pool.MATH if environment == "answer" else Pool.AGENT
    return Task(pool=pool, family="canary", prompt=b"", environment=environment, start=start, verifier=kind,
                trusted=trusted, max_steps=steps, split=Split.PUBLIC, use=Use.EVALUATION)
