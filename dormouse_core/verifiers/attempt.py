"""Attempt: what a verifier is given, and the small pieces every verifier shares."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dormouse_core.envs.environment import StopReason
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.verdict import VerdictClass


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory, reduced to what its judge may know: the task, the raw content of each action, and how it ended."""

    trajectory_id: str
    task: Task
    actions: tuple[bytes, ...]
    stop: StopReason


class Finding(NamedTuple):
    """What a verifier found; `judge` makes the Verdict of it."""

    verdict: VerdictClass
    decided_by: str
    reason: str = ""
    score: float = 0.0
    cases_passed: int = 0
    cases_total: int = 0
    milestones_passed: int = 0
    milestones_total: int = 0
    labels: tuple[str, ...] = ()
    cpu_ms: float = 0.0
    wall_ms: float = 0.0
    ran: bool = False  # a program of the candidate's was executed


class BadTask(ValueError):
    """A task's own trusted data cannot be used. Nobody's fault but the task's: a verifier_error, and refused at admission."""


def truncated(attempt: Attempt, decided_by: str) -> Finding | None:
    """For single-answer verifiers: an answer the byte budget or step limit cut short is no answer."""
    if attempt.stop in (StopReason.BYTE_BUDGET, StopReason.MAX_STEPS):
        return Finding(VerdictClass.TRUNCATED, decided_by, f"ended by {attempt.stop}")
    if not attempt.actions:
        return Finding(VerdictClass.UNPARSEABLE, decided_by, "no action")
    return None


@cache
def verifier_sha256() -> str:
    """sha256 over the sources that decide verdicts: verifiers/, sandbox/ and envs/."""
    core = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for room in ("envs", "sandbox", "verifiers"):
        for path in sorted((core / room).glob("*.py")):
            digest.update(f"{room}/{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
