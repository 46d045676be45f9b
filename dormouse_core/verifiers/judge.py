"""judge: one verdict an attempt, in order, whatever the attempts hold.

One answer never ends a batch: what a verifier raises becomes that attempt's `verifier_error`, counted and named.
Not here: how each kind decides (exact, exec, env_step), what a verdict is worth (learning/reward.py).
"""

import time
from collections import Counter
from collections.abc import Sequence

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox import limits
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.task import VerifierKind
from dormouse_core.verifiers import canaries, env_step, exact, exec, repo
from dormouse_core.verifiers.attempt import Attempt, BadTask, Finding, verifier_sha256
from dormouse_core.verifiers.prover import Proof, Prover, settle
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

IN_PROCESS = {VerifierKind.EXACT: exact.judge, VerifierKind.ENV_STEP: env_step.judge}
BAD_SHOWN = 5
"""Tasks named one by one in a batch; the rest are counted."""


def judge(attempts: Sequence[Attempt], config: VerifyConfig, ledger: Ledger, runners: Runners | None = None) -> list[Verdict]:
    """Verdicts of `attempts`, in their order.

    runners: kept open by a caller that judges many batches; without it they are started for this batch when it holds
    programs. Canaries of every kind in the batch are judged with it, and void their kind where one is judged wrongly. Counts every class
    in the ledger as `verdicts.<class>`, and `verify.canaries`. Never raises because of an answer or a task.
    """
    began = time.perf_counter()
    findings: list[Finding | None] = [None] * len(attempts)
    held: dict[VerifierKind, tuple[str, tuple[str, ...]]] = {}  # isolation and layers of what was run
    programs: list[int] = []
    patches: list[int] = []
    seen: dict[tuple[str, tuple[bytes, ...], StopReason], Finding] = {}
    voided = _voided({a.task.verifier for a in attempts}, ledger)
    for index, attempt in enumerate(attempts):
        kind = attempt.task.verifier
        if attempt.stop is StopReason.INFRA:
            findings[index] = Finding(VerdictClass.VERIFIER_ERROR, "rollout.infra", "the episode ended by a failure of the machine")
        elif kind is VerifierKind.EXEC:
            programs.append(index)
        elif kind is VerifierKind.REPO:
            patches.append(index)
        elif kind in voided:
            findings[index] = Finding(VerdictClass.VERIFIER_ERROR, f"{kind}.canary", voided[kind])
        else:
            key = (attempt.task.id, attempt.actions, attempt.stop)
            if key not in seen:
                seen[key] = _in_process(attempt, ledger)
            findings[index] = seen[key]
    if config.math_verify:
        _prove(attempts, findings, config, ledger)
    if programs:
        batch = [attempts[i] for i in programs]
        found, layers = _programs(batch, config, ledger, runners)
        held[VerifierKind.EXEC] = (limits.isolation_of(layers).value, layers)
        for index, finding in zip(programs, found, strict=True):
            findings[index] = finding
    if patches:
        found, held[VerifierKind.REPO] = _patches([attempts[i] for i in patches], config, ledger)
        for index, finding in zip(patches, found, strict=True):
            findings[index] = finding
    verdicts = [_verdict(a, f or Finding(VerdictClass.VERIFIER_ERROR, "judge", "no finding"), *held.get(a.task.verifier, ("none", ())))
                for a, f in zip(attempts, findings, strict=True)]
    _name_bad_tasks(verdicts, ledger)
    for name, n in Counter(v.verdict for v in verdicts).items():
        ledger.count(f"verdicts.{name}", n)
    ledger.seconds["judge"] += time.perf_counter() - began
    return verdicts


def _prove(attempts: Sequence[Attempt], findings: list[Finding | None], config: VerifyConfig, ledger: Ledger) -> None:
    """Put closed forms that stayed undecided to math-verify; findings change in place."""
    asked = [i for i, f in enumerate(findings) if f is not None and exact.OPEN in f.labels]
    if not asked:
        return
    try:
        with Prover(config.cpu_seconds, config.wall_seconds) as prover:
            proofs = settle([exact.open_question(attempts[i]) for i in asked], prover)
    except (DormouseError, OSError) as error:
        ledger.loud(f"exact verifier: {error}")
        ledger.ask("closed forms put to math-verify", ran=False, n=len(asked))
        return
    ledger.ask("closed forms put to math-verify", ran=True, n=len(asked))
    for i, proof in zip(asked, proofs, strict=True):
        found = findings[i]
        assert found is not None  # only those that were asked about
        ledger.count(f"exact.math_verify_{proof}")
        if proof is Proof.EQUAL:
            findings[i] = found._replace(verdict=VerdictClass.PASS, decided_by="exact.math_verify", reason="", score=1.0, cases_passed=1,
                                         cases_total=1)
        elif proof is Proof.TIMEOUT:
            findings[i] = found._replace(decided_by="exact.math_verify", reason="the closed form used its CPU limit and stays undecided")


def _voided(kinds: set[VerifierKind], ledger: Ledger) -> dict[VerifierKind, str]:
    """Kinds whose canaries were judged wrongly, and how. One that raises on its canary is caught like one that raises on an answer."""
    found = {}
    for kind in sorted(kinds & IN_PROCESS.keys()):
        ledger.count("verify.canaries", len(canaries.canaries(kind)))
        if trouble := canaries.trouble(kind, lambda attempt: _in_process(attempt, ledger)):
            ledger.loud(f"{kind} verifier: a canary was judged wrongly ({trouble}), so its attempts in this batch have no verdicts. The "
                        "verifier cannot be trusted as it is: see docs/mechanisms/canaries.md.")
            ledger.count("verify.canary_failures")
            found[kind] = trouble
    return found


def _name_bad_tasks(verdicts: Sequence[Verdict], ledger: Ledger) -> None:
    """One loud line a task that could not be judged by, the first few; the rest are counted."""
    bad = {v.task_id: v for v in verdicts if v.verdict is VerdictClass.VERIFIER_ERROR and v.decided_by.endswith((".task", ".checker"))}
    ledger.count("verify.bad_tasks", len(bad))
    for v in list(bad.values())[:BAD_SHOWN]:
        ledger.loud(f"task {v.task_id[:12]} is refused by the {v.kind} verifier: {v.reason}. Its attempts have no verdict; correct the "
                    "task or take it out (dormouse tasks check finds such tasks beforehand).")


def _in_process(attempt: Attempt, ledger: Ledger) -> Finding:
    kind = attempt.task.verifier
    began = time.perf_counter()
    try:
        finding = IN_PROCESS[kind](attempt)
    except (BadTask, DormouseError) as error:
        finding = Finding(VerdictClass.VERIFIER_ERROR, f"{kind}.task", str(error))
    except Exception as error:  # noqa: BLE001 - a verifier's own defect is this attempt's verifier_error, never the batch's end
        ledger.loud(f"verifier {kind} failed with {type(error).__name__} on task {attempt.task.id[:12]}: such attempts have no verdict")
        finding = Finding(VerdictClass.VERIFIER_ERROR, f"{kind}.defect", type(error).__name__)
    spent = (time.perf_counter() - began) * 1e3
    return finding._replace(cpu_ms=spent, wall_ms=spent)


def _programs(batch: Sequence[Attempt], config: VerifyConfig, ledger: Ledger,
              runners: Runners | None) -> tuple[list[Finding], tuple[str, ...]]:
    try:
        if runners is not None:
            return exec.judge_batch(batch, runners, ledger), runners.layers
        with Runners(config, ledger) as own:
            return exec.judge_batch(batch, own, ledger), own.layers
    except (DormouseError, OSError) as error:
        ledger.loud(f"exec verifier: {error}; {len(batch)} programs have no verdict")
        ledger.count("exec.no_runner")
        return [Finding(VerdictClass.VERIFIER_ERROR, "exec.runner", type(error).__name__) for _ in batch], ()
    except Exception as error:  # noqa: BLE001 - as in _in_process: a defect leaves attempts without a verdict, never a stage without an end
        ledger.loud(f"exec verifier failed with {type(error).__name__} ({error}); {len(batch)} programs have no verdict")
        return [Finding(VerdictClass.VERIFIER_ERROR, "exec.defect", type(error).__name__) for _ in batch], ()


def _patches(batch: Sequence[Attempt], config: VerifyConfig, ledger: Ledger) -> tuple[list[Finding], tuple[str, tuple[str, ...]]]:
    try:
        return repo.judge_batch(batch, config, ledger)
    except (DormouseError, OSError) as error:
        ledger.loud(f"repo verifier: {error}; {len(batch)} patches have no verdict")
        return [Finding(VerdictClass.VERIFIER_ERROR, "repo.jail", type(error).__name__) for _ in batch], ("none", ())
    except Exception as error:  # noqa: BLE001 - as in _in_process
        ledger.loud(f"repo verifier failed with {type(error).__name__} ({error}); {len(batch)} patches have no verdict")
        return [Finding(VerdictClass.VERIFIER_ERROR, "repo.defect", type(error).__name__) for _ in batch], ("none", ())


def _verdict(attempt: Attempt, finding: Finding, isolation: str, layers: tuple[str, ...]) -> Verdict:
    return Verdict(
        trajectory_id=attempt.trajectory_id, task_id=attempt.task.id, kind=attempt.task.verifier, verdict=finding.verdict,
        score=1.0 if finding.verdict is VerdictClass.PASS else finding.score, cases_passed=finding.cases_passed,
        cases_total=finding.cases_total, milestones_passed=finding.milestones_passed, milestones_total=finding.milestones_total,
        isolation=isolation if finding.ran else "none", layers=layers if finding.ran else (),
        decided_by=finding.decided_by, reason=finding.reason, labels=finding.labels, verifier_sha256=verifier_sha256(),
        wall_ms=finding.wall_ms, cpu_ms=finding.cpu_ms)
