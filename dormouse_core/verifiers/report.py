"""Verdicts as a table and as a report a person can check line by line."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa

from dormouse_core.config.base import Record
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.task import Task, VerifierKind
from dormouse_core.verifiers.attempt import Attempt, verifier_sha256
from dormouse_core.verifiers.verdict import NO_VERDICT, Verdict, VerdictClass

KEYS = ("trajectory_id",)
"""Columns that name a row."""
VOLATILE = ("wall_ms", "cpu_ms")
"""Columns that vary from run to run: kept, never part of an identity."""
SCHEMA = pa.schema([
    ("trajectory_id", pa.string()), ("task_id", pa.string()), ("kind", pa.string()), ("verdict", pa.string()), ("score", pa.float64()),
    ("cases_passed", pa.int32()), ("cases_total", pa.int32()), ("milestones_passed", pa.int32()), ("milestones_total", pa.int32()),
    ("isolation", pa.string()), ("layers", pa.string()), ("decided_by", pa.string()), ("reason", pa.string()), ("labels", pa.string()),
    ("verifier_sha256", pa.string()), ("wall_ms", pa.float64()), ("cpu_ms", pa.float64()),
])
_JOINED = ("layers", "labels")


def verdicts_to_table(verdicts: Sequence[Verdict]) -> pa.Table:
    """One row a verdict. Layers and labels are one space-separated string each."""
    columns = {name: [getattr(v, name) for v in verdicts] for name in SCHEMA.names}
    for name in _JOINED:
        columns[name] = [" ".join(x) for x in columns[name]]
    for name in ("kind", "verdict"):
        columns[name] = [x.value for x in columns[name]]
    return pa.table([pa.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)


def verdicts_from_table(table: pa.Table) -> list[Verdict]:
    """Inverse of `verdicts_to_table`. Raises DormouseError where a column is missing."""
    missing = set(SCHEMA.names) - set(table.column_names)
    if missing:
        raise DormouseError(f"this is no table of verdicts: it lacks {', '.join(sorted(missing))}. Verify the rollouts again.")
    rows = table.select(SCHEMA.names).to_pylist()
    return [Verdict(**row | {name: tuple(row[name].split()) for name in _JOINED}) for row in rows]


class SmokeRow(Record):
    """One line of `dormouse smoke`: a verifier decision and everything it rests on."""

    task: str
    """`family/dN` and the first digits of the task's id."""
    prompt: str
    candidate: str
    """What the policy wrote, shortened, non-printing bytes escaped."""
    verdict: VerdictClass
    cases: str
    """`passed/total` of hidden cases or milestones."""
    isolation: str
    layers: tuple[str, ...]
    decided_by: str
    reason: str


def smoke_rows(attempts: Sequence[Attempt], verdicts: Sequence[Verdict]) -> list[SmokeRow]:
    """Attempts beside their verdicts, in order. Raises ValueError where they do not belong together."""
    rows = []
    for attempt, v in zip(attempts, verdicts, strict=True):
        if attempt.trajectory_id != v.trajectory_id:
            raise ValueError(f"verdict of {v.trajectory_id[:16]} beside attempt {attempt.trajectory_id[:16]}")
        cases = f"{v.cases_passed}/{v.cases_total}" if v.cases_total else f"{v.milestones_passed}/{v.milestones_total}"
        rows.append(SmokeRow(
            task=_name(attempt.task), prompt=shown(attempt.task.prompt), candidate=shown(b" ; ".join(attempt.actions)), verdict=v.verdict,
            cases=cases, isolation=v.isolation, layers=v.layers, decided_by=v.decided_by, reason=v.reason))
    return rows


def _name(task: Task) -> str:
    return f"{task.cell} {task.id[:8]}"


def shown(content: bytes, width: int = 48) -> str:
    """Bytes a person can read on one line."""
    text = content[: 2 * width].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= width else text[: width - 1] + "…"


class VerdictSummary(Record):
    """What a verify stage says of itself."""

    verdicts: int
    by_class: dict[str, int]
    by_kind: dict[str, int]
    by_isolation: dict[str, int]
    no_verdict_share: float
    """undecided and verifier_error, of all."""
    pass_share: float
    """Passes, of the verdicts that count."""


def summary(verdicts: Sequence[Verdict]) -> VerdictSummary:
    counted = [v for v in verdicts if v.verdict.counts]
    return VerdictSummary(
        verdicts=len(verdicts), by_class=dict(sorted(Counter(v.verdict.value for v in verdicts).items())),
        by_kind={kind.value: n for kind in VerifierKind if (n := sum(v.kind is kind for v in verdicts))},
        by_isolation=dict(sorted(Counter(v.isolation for v in verdicts).items())),
        no_verdict_share=sum(v.verdict in NO_VERDICT for v in verdicts) / max(len(verdicts), 1),
        pass_share=sum(v.verdict is VerdictClass.PASS for v in counted) / max(len(counted), 1))


class Rejudged(Record):
    """Verdicts of one set of rollouts beside the ones a verifier gave them before."""

    verdicts: int
    stale: int
    """Given by another version of the verifier than this one."""
    changed: dict[str, int]
    """`was -> is`: how many verdicts changed their class."""


class VerifyReport(Record):
    """What `post-train verify --report` writes beside the table of counts."""

    verifier_calls: int
    verifier_kind: dict[str, int]
    """Calls by kind of verifier."""
    shares: dict[str, float]
    """Share of every class, of all verdicts."""
    no_verdict_share: float
    pass_share: float
    seconds_per_rollout: float
    """Wall seconds of judging, canaries and starts included."""
    cpu_seconds_per_rollout: float
    """CPU seconds the verifiers measured for themselves and for the programs they ran."""
    canaries: int
    canary_failures: int
    bad_tasks: int
    replayed: int
    """Episodes re-executed, of `fork_budget` asked for."""
    fork_budget: int
    replay_differences: int
    hack_screen: str
    """`on`, `off`, or `nothing to read` where no verdict rests on a program."""
    screened: int
    labels: dict[str, int]
    verifier_sha256: str
    isolation: dict[str, int]
    layers: tuple[str, ...]
    before: Rejudged | None = None
    """Where the rollouts had verdicts already and they were named."""


def verify_report(verdicts: Sequence[Verdict], counters: Mapping[str, int], seconds: float, config: VerifyConfig,
                  before: Sequence[Verdict] | None = None) -> VerifyReport:
    """counters: the verify stage's. seconds: wall seconds it spent judging."""
    told, n = summary(verdicts), max(len(verdicts), 1)
    screen = "on" if config.hack_screen.enabled else "off"
    return VerifyReport(
        verifier_calls=counters.get("verify.calls", 0), verifier_kind=told.by_kind,
        shares={c.value: sum(v.verdict is c for v in verdicts) / n for c in VerdictClass}, no_verdict_share=told.no_verdict_share,
        pass_share=told.pass_share, seconds_per_rollout=seconds / n, cpu_seconds_per_rollout=sum(v.cpu_ms for v in verdicts) / 1e3 / n,
        canaries=counters.get("verify.canaries", 0),
        canary_failures=counters.get("verify.canary_failures", 0) + counters.get("exec.canary_failures", 0),
        bad_tasks=counters.get("verify.bad_tasks", 0), replayed=counters.get("verify.replayed", 0), fork_budget=config.fork_budget,
        replay_differences=counters.get("verify.replay_differences", 0),
        hack_screen=screen if VerifierKind.EXEC.value in told.by_kind else "nothing to read",
        screened=told.by_class.get(VerdictClass.HACK_SUSPECTED.value, 0),
        labels=dict(sorted(Counter(label for v in verdicts for label in v.labels).items())), verifier_sha256=verifier_sha256(),
        isolation=told.by_isolation, layers=tuple(dict.fromkeys(layer for v in verdicts for layer in v.layers)),
        before=None if before is None else _rejudged(before, verdicts))


def _rejudged(before: Sequence[Verdict], now: Sequence[Verdict]) -> Rejudged:
    was = {v.trajectory_id: v for v in before}
    pairs = [(was[v.trajectory_id], v) for v in now if v.trajectory_id in was]
    changed = Counter(f"{a.verdict} -> {b.verdict}" for a, b in pairs if a.verdict is not b.verdict)
    return Rejudged(verdicts=len(pairs), stale=stale(before), changed=dict(sorted(changed.items())))


def stale(verdicts: Sequence[Verdict]) -> int:
    """How many were given by another version of the verifier than the one that runs now."""
    return sum(v.verifier_sha256 != verifier_sha256() for v in verdicts)
