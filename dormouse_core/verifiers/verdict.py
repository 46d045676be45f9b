"""Verdict: a typed sum, never a float. A verdict of 0.0 that means four things is the field's commonest silent fault."""

from enum import StrEnum

from dormouse_core.config.base import Record
from dormouse_core.tasks.task import VerifierKind


class VerdictClass(StrEnum):
    PASS = "pass"
    FAIL = "fail"  # judged wrong
    UNDECIDED = "undecided"  # the verifier cannot tell
    UNPARSEABLE = "unparseable"  # no answer in what was written
    TRUNCATED = "truncated"  # the byte budget or step limit ended it before an answer
    TIMEOUT = "timeout"  # the candidate used its CPU or wall limit
    VIOLATION = "violation"  # the candidate tried what the runner forbids
    HACK_SUSPECTED = "hack_suspected"  # screened: advantage 0, out of baselines, SFT and skills; not a pass
    VERIFIER_ERROR = "verifier_error"  # the verifier or the machine failed

    @property
    def counts(self) -> bool:
        """In the denominators: whatever the policy caused. Nobody's fault (undecided, verifier_error) and screened do not."""
        return self not in NO_VERDICT and self is not VerdictClass.HACK_SUSPECTED


NO_VERDICT = frozenset({VerdictClass.UNDECIDED, VerdictClass.VERIFIER_ERROR})


class Verdict(Record):
    """What one verifier said of one trajectory, and who decided on what grounds."""

    trajectory_id: str
    task_id: str
    kind: VerifierKind
    verdict: VerdictClass
    score: float = 0.0
    """Partial score in [0, 1]: share of hidden cases or milestones. 1.0 on pass."""
    cases_passed: int = 0
    cases_total: int = 0
    milestones_passed: int = 0
    milestones_total: int = 0
    isolation: str = "none"
    """Isolation level the candidate ran under; `none` where nothing was executed."""
    layers: tuple[str, ...] = ()
    """Every limit or layer that was in force."""
    decided_by: str
    """The component whose word the class is, e.g. `exact.number`, `exec.compare`, `exec.rlimit_cpu`, `env_step.state`."""
    reason: str = ""
    """One short line for a person: case index, exception name, first difference."""
    labels: tuple[str, ...] = ()
    verifier_sha256: str
    """sha256 of the verifier's own sources: a changed verifier makes its verdicts stale."""
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
