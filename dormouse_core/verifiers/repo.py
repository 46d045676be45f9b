"""repo: apply a patch to a tree, run hidden tests in the jail of several processes, compare what they claim with what was expected.

start = {"files": {path: text}}; trusted = {"tests": {path: text}, "fail_to_pass": [ids], "pass_to_pass": [ids]} and optionally
"cpu_seconds" for the whole run. The action is a unified diff. A pass needs every FAIL_TO_PASS and every PASS_TO_PASS test.
A test that asserts beside the code it tries can be lied to, whoever runs it. So the tests are taken apart (repo_tests.py): what goes into
the jail computes values, the expected ones stay here, and a test passes when every site it must claim was claimed with the right value
and it ended. Test files are the trusted ones: what a patch does to them, or to the folder of tests they stand in, is undone and labelled
`edits_tests`. pytest, `conftest.py` and `sitecustomize` play no part: the driver is a bare interpreter.
Three canaries (right, wrong, liar) ride with every batch. Not here: the jail (sandbox/multi.py).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox import wire
from dormouse_core.sandbox.multi import MultiLimits, MultiOutcome, run_multi
from dormouse_core.sandbox.runner import End
from dormouse_core.tasks import patch
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.attempt import Attempt, BadTask, Finding, truncated
from dormouse_core.verifiers.compare import TYPE_NAME, equal
from dormouse_core.verifiers.repo_driver import HEAD, SITES
from dormouse_core.verifiers.repo_tests import HiddenTest, Site, take_apart
from dormouse_core.verifiers.spoken import class_name, no_form
from dormouse_core.verifiers.verdict import VerdictClass

EDITS_TESTS = "edits_tests"
CPU_SECONDS, MAX_CPU_SECONDS = 20.0, 600.0
_TEST_FOLDERS = ("test", "tests")
_STEERING = ("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", "tox.ini", "setup.cfg")
"""Files that steer a test runner elsewhere; here they do nothing. Touching one is labelled."""


Held = tuple[str, tuple[str, ...]]
"""Isolation level and layers of what was run."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A task's tree and hidden tests, made ready once."""

    files: dict[str, str]
    tests: tuple[HiddenTest, ...]
    to_pass: int
    """How many of `tests`, the first ones, must come to pass; the rest must still pass."""
    sources: dict[str, str]
    helpers: dict[str, str]
    cpu_seconds: float
    protected: frozenset[str] = field(default_factory=frozenset)
    """Folders that hold trusted tests and are called so."""


def prepare(task: Task) -> Suite:
    """Raises BadTask where the tree or the hidden tests cannot be used, with the cause."""
    files, trusted = task.start.get("files"), task.trusted
    tests, wanted = trusted.get("tests"), [trusted.get(key) for key in ("fail_to_pass", "pass_to_pass")]
    if not isinstance(files, dict) or not isinstance(tests, dict) or not all(isinstance(names, list | tuple) for names in wanted):
        raise BadTask("a repository task needs files, tests, and the tests' names")
    if not wanted[0]:  # the isinstance above leaves only lists
        raise BadTask("no hidden cases: no test must come to pass")
    cpu = trusted.get("cpu_seconds") or CPU_SECONDS
    if not isinstance(cpu, int | float) or not 0 < cpu <= MAX_CPU_SECONDS:
        raise BadTask(f"cpu_seconds must be a number up to {MAX_CPU_SECONDS}")
    for path, text in (*files.items(), *tests.items()):
        try:
            patch.safe_path(path)
        except patch.Forbidden as error:
            raise BadTask(str(error)) from error
        if not isinstance(text, str):
            raise BadTask(f"{path[:80]} holds no text")
    names = [str(n) for side in wanted for n in side or ()]
    named = {name.partition("::")[0] for name in names}
    apart = {path: take_apart(path, text) for path, text in tests.items() if path in named}
    known = {name: test for hidden in apart.values() for name, test in hidden.tests.items()}
    if missing := [name for name in names if name not in known]:
        raise BadTask(f"the hidden test {missing[0][:120]} is in none of the test files")
    chosen = tuple(known[name] for name in names)
    for test in chosen[: len(wanted[0])]:
        if not any(site.strong and site.required for site in test.sites):
            raise BadTask(f"the hidden test {test.name[:120]} keeps no expected value back: a program that claims anything could pass it")
    if len(chosen) > 1000 or any(len(test.sites) >= SITES for test in chosen):
        raise BadTask("more than 1000 tests, or too many assertions in one")
    protected = {str(folder) for path in tests for folder in PurePosixPath(path).parents if folder.name in _TEST_FOLDERS}
    return Suite(dict(files), chosen, len(wanted[0]), {path: hidden.source for path, hidden in apart.items()},
                 {path: text for path, text in tests.items() if path not in named}, float(cpu), frozenset(protected))


def judge_batch(attempts: Sequence[Attempt], config: VerifyConfig, ledger: Ledger) -> tuple[list[Finding], Held]:
    """One finding an attempt, in order, and what held the patches that ran. Equal patches of one task run once. Raises DormouseError where
    this machine has no jail for several processes."""
    findings: list[Finding | None] = [None] * len(attempts)
    ready: dict[str, Suite | BadTask] = {}
    jobs: dict[tuple[str, bytes], list[int]] = {}
    for index, attempt in enumerate(attempts):
        task = attempt.task
        if task.id not in ready:
            try:
                ready[task.id] = prepare(task)
            except BadTask as error:
                ready[task.id] = error
        if isinstance(suite := ready[task.id], BadTask):
            findings[index] = Finding(VerdictClass.VERIFIER_ERROR, "repo.task", str(suite))
        elif (early := truncated(attempt, "repo.stop")) is not None:
            findings[index] = early
        else:
            jobs.setdefault((task.id, attempt.actions[-1]), []).append(index)
    held: Held = ("none", ())
    if jobs:
        trouble, held = _canary_trouble(config)
        ledger.count("verify.canaries", len(CANARIES))
        for (task_id, action), indices in jobs.items():
            suite = ready[task_id]
            assert isinstance(suite, Suite)  # a BadTask has no jobs
            found = Finding(VerdictClass.VERIFIER_ERROR, "repo.canary", trouble) if trouble else judge_patch(suite, action, config)[0]
            for index in indices:
                findings[index] = found
        if trouble:
            ledger.loud(f"repo verifier: a canary was judged wrongly ({trouble}), so this batch of {len(jobs)} patches has no "
                        "verdicts. The jail or the machine cannot be trusted as it is: see docs/mechanisms/canaries.md.")
            ledger.count("verify.canary_failures")
        ledger.count("repo.patches_run", len(jobs))
    return [f or Finding(VerdictClass.VERIFIER_ERROR, "repo.batch", "no finding") for f in findings], held


def judge_patch(suite: Suite, action: bytes, config: VerifyConfig) -> tuple[Finding, Held]:
    """The finding on one patch, and what held it."""
    try:
        patches = patch.parse(action.decode())
        tree = patch.apply(suite.files, patches)
    except (UnicodeDecodeError, patch.PatchError) as error:
        return Finding(VerdictClass.UNPARSEABLE, "repo.patch", str(error)[:120]), ("none", ())
    except patch.NotApplicable as error:
        return Finding(VerdictClass.FAIL, "repo.patch", str(error)[:120], cases_total=len(suite.tests)), ("none", ())
    except patch.Forbidden as error:
        return Finding(VerdictClass.VIOLATION, "repo.patch", str(error)[:120], cases_total=len(suite.tests)), ("none", ())
    touched = {path for p in patches for path in (p.before, p.after) if path is not None}
    labels = (EDITS_TESTS,) if any(_of_tests(suite, path) for path in touched) else ()
    outcome = run_multi(_workspace(suite, tree), ["python", "-I", "-S", "-B", "judge/driver.py"], MultiLimits(
        cpu_seconds=suite.cpu_seconds, memory_mib=max(config.memory_mib, 512)))
    return find(suite, outcome)._replace(labels=labels), (outcome.isolation, outcome.layers)


def _of_tests(suite: Suite, path: str) -> bool:
    parts = PurePosixPath(path)
    return path in suite.sources or path in suite.helpers or any(str(folder) in suite.protected for folder in parts.parents) \
        or parts.name in _STEERING


def _workspace(suite: Suite, tree: dict[str, str]) -> dict[str, bytes]:
    """What the jail is given. Folders of tests are the base's, with the trusted helpers; the trusted tests themselves come taken apart."""
    def theirs(path: str) -> bool:
        return any(str(folder) in suite.protected for folder in PurePosixPath(path).parents)

    own = {path: text for path, text in tree.items() if not theirs(path)}
    kept = {path: text for path, text in suite.files.items() if theirs(path)}
    repo = {path: text for path, text in {**own, **kept, **suite.helpers}.items() if path not in suite.sources}
    plan = {"tests": [{"file": t.file, "qualname": t.qualname} for t in suite.tests], "sources": suite.sources}
    return {f"repo/{path}": text.encode() for path, text in repo.items()} | {
        "judge/plan.json": json.dumps(plan).encode(), **{f"judge/{name}": source for name, source in _judge_files()}}


@cache
def _judge_files() -> tuple[tuple[str, bytes], ...]:
    return (("driver.py", Path(__file__).with_name("repo_driver.py").read_bytes()), ("wire.py", Path(wire.__file__).read_bytes()))


_BY_END = {
    End.INFRA: (VerdictClass.VERIFIER_ERROR, "repo.jail"), End.CPU: (VerdictClass.TIMEOUT, "repo.cpu"),
    End.WALL: (VerdictClass.TIMEOUT, "repo.wall_backstop"), End.OUTPUT: (VerdictClass.FAIL, "repo.output_limit"),
    End.FORBIDDEN: (VerdictClass.VIOLATION, "repo.seccomp"),
}


def find(suite: Suite, outcome: MultiOutcome) -> Finding:
    """The class of one outcome. Total over what a hostile run may have written."""
    said, breach = _read(outcome.output, len(suite.tests))
    wrong = [why if (why := trouble(test, said[i])) else "" for i, test in enumerate(suite.tests)]
    passed, total = sum(not why for why in wrong), len(suite.tests)
    broken = any(wrong[suite.to_pass :])
    score = 0.0 if broken else sum(not why for why in wrong[: suite.to_pass]) / suite.to_pass

    def finding(verdict: VerdictClass, by: str, reason: str, score: float = score) -> Finding:
        return Finding(verdict, by, reason, score, passed, total, cpu_ms=outcome.cpu_ms, wall_ms=outcome.wall_ms, ran=True)

    if outcome.end is not End.CLEAN:
        verdict, by = _BY_END.get(outcome.end, (VerdictClass.FAIL, f"repo.{outcome.end}"))
        return finding(verdict, by, outcome.detail or f"after {passed} of {total} tests", 0.0)
    if breach:
        return finding(VerdictClass.VIOLATION, "repo.protocol", breach, 0.0)
    first = next((f"{test.name}: {why}" for test, why in zip(suite.tests, wrong, strict=True) if why), "")
    return finding(VerdictClass.FAIL, "repo.tests", first) if first else finding(VerdictClass.PASS, "repo.tests", "", 1.0)


Said = list[tuple[bytes, int, bytes]]


def _read(data: bytes, tests: int) -> tuple[list[Said], str]:
    """Frames by test, and a breach: what no honest driver writes."""
    found: list[Said] = [[] for _ in range(tests)]
    at, last = 0, 0
    while at + HEAD.size <= len(data):
        kind, index, size = HEAD.unpack_from(data, at)
        test, site = divmod(index, SITES)
        payload = data[at + HEAD.size : at + HEAD.size + size]
        at += HEAD.size + size
        if kind not in (b"B", b"V", b"U", b"X", b"E") or test >= tests or len(payload) != size:
            return found, "unknown frame"
        if test < last or (kind == b"B") != (not found[test]) or (found[test] and found[test][-1][0] in (b"E", b"X")):
            return found, "frame out of order"
        last = test
        found[test].append((kind, site, payload))
    return found, "bytes after the last frame" if at != len(data) else ""


def trouble(test: HiddenTest, said: Said) -> str:
    """'' where the test passed. Names sites and types, never a claimed or expected value."""
    if not said:
        return "did not run"
    if said[-1][0] == b"X":
        return f"raise:{class_name(said[-1][2])}"
    if said[-1][0] != b"E":
        return "ended before its end"
    claimed: dict[int, int] = {}
    for kind, site, payload in said[1:-1]:
        if site >= len(test.sites):
            return f"a claim of a site there is not, {site}"
        claimed[site] = claimed.get(site, 0) + 1
        if why := _site_trouble(test.sites[site], kind, payload):
            return f"assertion {site}: {why}"
    for number, site_ in enumerate(test.sites):
        if site_.required and claimed.get(number, 0) != 1:
            return f"assertion {number}: claimed {claimed.get(number, 0)} times"
    return ""


def _site_trouble(site: Site, kind: bytes, payload: bytes) -> str:
    if kind == b"U":
        return f"a value without a wire form, {no_form(payload)}"
    try:
        claim = wire.decode_tree(payload)
    except wire.WireError as error:
        return f"malformed value, {error}"
    if site.raises:
        return "" if claim[0] == wire.LIST and len(claim[1]) <= 16 and site.tree in claim[1] else "another exception, or none"
    return "" if equal(claim, site.tree, site.rule) else f"wrong {TYPE_NAME[claim[0]]}"


_CANARY_FILES = {"box.py": "def area(w, h):\n    return w + h\n", "tests/test_box.py": "def test_area():\n    assert True\n"}
_CANARY_TESTS = ("from box import area\ndef test_area():\n    assert area(3, 4) == 12\n    assert area(5, 6) == 30\n"
                 "def test_zero():\n    assert area(0, 0) == 0\n")
_HEAD_OF_PATCH = "--- a/box.py\n+++ b/box.py\n@@ -1,2 +1,2 @@\n def area(w, h):\n-    return w + h\n"
_LIE = """--- /dev/null
+++ b/sitecustomize.py
@@ -0,0 +1,2 @@
+import os
+os._exit(0)
--- /dev/null
+++ b/conftest.py
@@ -0,0 +1 @@
+import os; os._exit(0)
--- a/tests/test_box.py
+++ b/tests/test_box.py
@@ -1,2 +1,2 @@
 def test_area():
-    assert True
+    print("2 passed")
--- a/box.py
+++ b/box.py
@@ -1,2 +1,4 @@
+import os
+os.write(1, b"2 passed in 0.01s")
 def area(w, h):
-    return w + h
+    os._exit(0)
"""
CANARIES: tuple[tuple[str, bytes, tuple[VerdictClass, str]], ...] = (
    ("right", f"{_HEAD_OF_PATCH}+    return w * h\n".encode(), (VerdictClass.PASS, "repo.tests")),
    ("wrong", f"{_HEAD_OF_PATCH}+    return w - h\n".encode(), (VerdictClass.FAIL, "repo.tests")),
    ("liar", _LIE.encode(), (VerdictClass.FAIL, "repo.tests")),
)


@cache
def _canary_suite() -> Suite:
    return prepare(Task(
        pool=Pool.CODE, family="canary", prompt=b"", environment="answer", start={"files": _CANARY_FILES}, verifier=VerifierKind.REPO,
        trusted={"tests": {"tests/test_box.py": _CANARY_TESTS}, "fail_to_pass": ["tests/test_box.py::test_area"],
                 "pass_to_pass": ["tests/test_box.py::test_zero"]}, split=Split.PUBLIC, use=Use.EVALUATION))


def _canary_trouble(config: VerifyConfig) -> tuple[str, Held]:
    held: Held = ("none", ())
    for name, action, want in CANARIES:
        found, held = judge_patch(_canary_suite(), action, config)
        if (found.verdict, found.decided_by) != want:
            return f"{name}: {found.verdict} by {found.decided_by}, {found.reason}", held
    return "", held
