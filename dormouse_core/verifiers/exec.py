"""exec: run the candidate's function on hidden inputs, decide on what it claims.

What decides is the task's cases (cases.py): an expected value, one of several, or a trusted checker's yes (checker.py).
program = start["program_prefix"] + action + start["program_suffix"]; the action of a multi-step episode is what its environment says the
actions leave (`Environment.leaves`), which is found from them alone.
A pass needs every case claimed once, in order, right; the END frame; a clean exit. Three canaries (right, wrong, liar)
ride with every batch through the same path: one that is judged wrongly voids the batch.
trusted = {"entry_point": "f", "test_src": "..."} runs the asserts inside the child, where a hostile program can lie to them; such
verdicts carry the label `in_child_asserts`. admission/asserts.py turns most such tests into cases.
Not here: limits and isolation (sandbox/).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dormouse_core.envs.registry import environment
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox import limits, wire
from dormouse_core.sandbox.runner import End, Job, Outcome, Runners
from dormouse_core.verifiers import checker
from dormouse_core.verifiers.attempt import Attempt, BadTask, Finding, truncated
from dormouse_core.verifiers.cases import Cases, prepare, wanted
from dormouse_core.verifiers.checker import Asked, Trouble
from dormouse_core.verifiers.compare import TYPE_NAME
from dormouse_core.verifiers.spoken import class_name, no_form
from dormouse_core.verifiers.verdict import VerdictClass

MAX_PROGRAM = 1 << 18
"""Bytes of source past which nothing is run."""
IN_CHILD = "in_child_asserts"
NOTHING: Mapping[int, Trouble | None] = {}


def program_of(attempt: Attempt, cases: Cases) -> bytes:
    start = attempt.task.start
    head, tail = str(start.get("program_prefix", "")), str(start.get("program_suffix", ""))
    return head.encode() + attempt.actions[-1] + (tail + cases.test_src).encode()


def _left(attempt: Attempt) -> Attempt | BadTask | None:
    """The attempt reduced to the program it left; None where a multi-step episode left none, BadTask where its start state is none."""
    if attempt.task.environment == "answer":
        return attempt
    try:
        program = environment(attempt.task.environment).leaves(attempt.task, attempt.actions)
    except (DormouseError, KeyError, TypeError, ValueError, AttributeError) as error:
        return BadTask(f"environment {attempt.task.environment}: {type(error).__name__}: {str(error)[:80]}")
    return None if program is None else replace(attempt, actions=(program,))


def judge_batch(attempts: Sequence[Attempt], runners: Runners, ledger: Ledger) -> list[Finding]:
    """One finding an attempt, in order. Identical programs of one task run once."""
    findings: list[Finding | None] = [None] * len(attempts)
    ready: dict[str, Cases | BadTask] = {}
    jobs: dict[tuple[str, bytes], list[int]] = {}
    for index, attempt in enumerate(attempts):
        task_id = attempt.task.id
        if task_id not in ready:
            try:
                ready[task_id] = prepare(attempt.task)
            except BadTask as error:
                ready[task_id] = error
        cases = ready[task_id]
        left: Attempt | BadTask | None = cases if isinstance(cases, BadTask) else _left(attempt)
        if isinstance(left, BadTask) or isinstance(cases, BadTask):
            findings[index] = Finding(VerdictClass.VERIFIER_ERROR, "exec.task", str(left))
        elif (early := _without_running(attempt, left)) is not None:
            findings[index] = early
        else:
            jobs.setdefault((task_id, program_of(left or attempt, cases)), []).append(index)
    if jobs:
        for indices, finding in zip(jobs.values(), _run(list(jobs), ready, runners, ledger), strict=True):
            for index in indices:
                findings[index] = finding
        ledger.count("exec.programs_run", len(jobs))
        ledger.count("verify.canaries", len(CANARIES))
        ledger.count("exec.verdicts_shared", sum(map(len, jobs.values())) - len(jobs))
    return [f or Finding(VerdictClass.VERIFIER_ERROR, "exec.batch", "no finding") for f in findings]


def _without_running(attempt: Attempt, left: Attempt | None) -> Finding | None:
    if (early := truncated(attempt, "exec.stop")) is not None:
        return early
    if left is None:
        return Finding(VerdictClass.UNPARSEABLE, "exec.stop", f"nothing was submitted in {len(attempt.actions)} actions")
    action = left.actions[-1]
    if not action.strip():
        return Finding(VerdictClass.UNPARSEABLE, "exec.program", "empty program")
    if len(action) > MAX_PROGRAM:
        return Finding(VerdictClass.FAIL, "exec.program", f"program of {len(action)} bytes, the limit is {MAX_PROGRAM}")
    return None


def _run(keys: list[tuple[str, bytes]], ready: dict[str, Any], runners: Runners, ledger: Ledger) -> list[Finding]:
    jobs = [Job(program, ready[task_id].entry_point, ready[task_id].inputs, ready[task_id].output_limit, ready[task_id].cpu_seconds)
            for task_id, program in keys]
    outcomes, canaries = runners.run(jobs, [Job(source, CANARY_CASES.entry_point, CANARY_CASES.inputs) for _, source, _ in CANARIES])
    if trouble := canary_trouble(canaries):
        ledger.loud(f"exec verifier: a canary was judged wrongly ({trouble}), so this batch of {len(jobs)} programs has no verdicts. "
                    "The runner or the machine cannot be trusted as it is: see docs/verifier.md, canaries.")
        ledger.count("exec.canary_failures")
        return [Finding(VerdictClass.VERIFIER_ERROR, "exec.canary", trouble) for _ in jobs]
    checked = _checked([ready[task_id] for task_id, _ in keys], outcomes, runners, ledger)
    return [find(ready[task_id], outcome, said) for (task_id, _), outcome, said in zip(keys, outcomes, checked, strict=True)]


def _checked(cases: Sequence[Cases], outcomes: Sequence[Outcome], runners: Runners,
             ledger: Ledger) -> Sequence[Mapping[int, Trouble | None]]:
    """What trusted checkers say of each outcome's claims."""
    owners = [i for i, each in enumerate(cases) if each.checker is not None]
    asked = [Asked(each.checker, each.checks, outcomes[i].claims, each.cpu_seconds)
             for i in owners if (each := cases[i]).checker is not None]
    said = dict(zip(owners, checker.answers(asked, runners, ledger) if asked else (), strict=True))
    return [said.get(i, NOTHING) for i in range(len(cases))]


def find(cases: Cases, outcome: Outcome, checked: Mapping[int, Trouble | None] = NOTHING) -> Finding:
    """The class of one outcome. checked: what the task's checker says, by case. Total. A certain fault comes before a checker's
    trouble: a wrong claim on one case is wrong whatever the checker makes of another."""
    wrong = [w for i, claim in enumerate(outcome.claims) if (w := _case_trouble(cases, i, claim.kind, claim.payload, checked))]
    wrong.sort(key=lambda trouble: trouble[0] is VerdictClass.VERIFIER_ERROR)
    total = len(cases.inputs)
    passed = len(outcome.claims) - len(wrong)
    verdict, decided_by, reason = _class_of(outcome, wrong, passed, total, checker.BY if cases.checks else "exec.compare")
    labels = (IN_CHILD,) if cases.test_src else ()
    return Finding(verdict, decided_by, reason, passed / total if verdict is not VerdictClass.VERIFIER_ERROR else 0.0, passed, total,
                   labels=labels, cpu_ms=outcome.cpu_ms, wall_ms=outcome.wall_ms, ran=True)


_BY_END = {
    End.INFRA: (VerdictClass.VERIFIER_ERROR, "exec.runner"),
    End.CPU: (VerdictClass.TIMEOUT, "exec.rlimit_cpu"),
    End.WALL: (VerdictClass.TIMEOUT, "exec.wall_backstop"),
    End.OUTPUT: (VerdictClass.FAIL, "exec.output_limit"),
    End.CRASH: (VerdictClass.FAIL, "exec.signal"),
    End.BREACH: (VerdictClass.VIOLATION, "exec.protocol"),
    End.FORBIDDEN: (VerdictClass.VIOLATION, "exec.seccomp"),
    End.EARLY_EXIT: (VerdictClass.FAIL, "exec.early_exit"),
}
_BY_ERROR = {
    "MemoryError": (VerdictClass.FAIL, "exec.rlimit_as"),
    "BlockingIOError": (VerdictClass.VIOLATION, "exec.rlimit_nproc"),
    "PermissionError": (VerdictClass.VIOLATION, "exec.permission"),
}


def _class_of(outcome: Outcome, wrong: list[Trouble], passed: int, total: int, decider: str) -> Trouble:
    if outcome.end is not End.CLEAN:
        return *_BY_END[outcome.end], outcome.detail or f"after {len(outcome.claims)} of {total} cases"
    if outcome.load_error:
        phase, _, name = outcome.load_error.partition(":")
        unparseable = (VerdictClass.UNPARSEABLE, "exec.compile") if phase == "compile" else (VerdictClass.FAIL, f"exec.{phase}")
        return *_BY_ERROR.get(name, unparseable), f"{phase}:{class_name(name.encode())}"
    if wrong:
        return wrong[0]
    if passed == total > 0:
        return VerdictClass.PASS, decider, ""
    return VerdictClass.VIOLATION, "exec.protocol", "cases missing"


def _case_trouble(cases: Cases, index: int, kind: bytes, payload: bytes, checked: Mapping[int, Trouble | None]) -> Trouble | None:
    """None when the claim is right. Reasons never hold a claimed or an expected value, only types and names."""
    if kind == b"X":
        name = class_name(payload)
        return *_BY_ERROR.get(name, (VerdictClass.FAIL, "exec.exception")), f"case {index}: raise:{name}"
    if kind == b"U":
        return VerdictClass.FAIL, "exec.wire", f"case {index}: {no_form(payload)}"
    if index in cases.checks:
        return checked.get(index, (VerdictClass.VERIFIER_ERROR, checker.BY, f"case {index}: the checker was not asked"))
    want = cases.wanted[index]
    if payload in want.encoded:
        return None
    try:
        claim = wire.decode_tree(payload)
    except wire.WireError as error:
        return VerdictClass.VIOLATION, "exec.protocol", f"case {index}: malformed value, {error}"
    if want.met(claim):
        return None
    got, due = TYPE_NAME[claim[0]], TYPE_NAME[want.trees[0][0]]
    return VerdictClass.FAIL, "exec.compare", f"case {index}: wrong {got}" + ("" if got == due else f" where {due} is due")


CANARIES: tuple[tuple[str, bytes, tuple[VerdictClass, str]], ...] = (
    ("right", b"def f(a, b):\n    return a + b\n", (VerdictClass.PASS, "exec.compare")),
    ("wrong", b"def f(a, b):\n    return a - b\n", (VerdictClass.FAIL, "exec.compare")),
    ("liar", b"class Yes:\n    def __eq__(self, other):\n        return True\ndef f(a, b):\n    return Yes()\n",
     (VerdictClass.FAIL, "exec.wire")),
)
CANARY_CASES = Cases("f", (wire.encode((2, 3)), wire.encode((-1, 8))), {0: wanted([5]), 1: wanted([7])}, limits.OUTPUT_SLACK, {})


def canary_trouble(heard: Sequence[Mapping[int, Outcome]]) -> str:
    """'' when every canary that ran was judged as it must be and one runner ran them all."""
    complete = False
    for outcomes in heard:
        for index, outcome in sorted(outcomes.items()):
            name, _, want = CANARIES[index]
            got = find(CANARY_CASES, outcome)
            if (got.verdict, got.decided_by) != want:
                return f"{name}: {got.verdict} by {got.decided_by}, {got.reason}"
        complete = complete or len(outcomes) == len(CANARIES)
    return "" if complete else "no runner answered all of them"
