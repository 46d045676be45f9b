"""The repo verifier: a patch is judged by hidden tests whose expected values never enter the jail, and no patch passes by another way."""

from collections.abc import Mapping
from typing import Any

import pytest

from dormouse_core.admission.reference import admit
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox import wire
from dormouse_core.sandbox.multi import MultiOutcome
from dormouse_core.sandbox.runner import End
from dormouse_core.tasks.repo import repo_task
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers import repo
from dormouse_core.verifiers.attempt import Attempt, BadTask
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.repo_driver import HEAD, SITES
from dormouse_core.verifiers.repo_tests import take_apart
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.core.verifiers import shop

V = VerdictClass
CONFIG = VerifyConfig(workers=1)
TASK = repo_task(shop.ROW, shop.TREE)


def changed(**trusted: Any) -> Task:
    return Task.model_validate(TASK.model_dump() | {"trusted": {**TASK.trusted, **trusted}})


def verdicts(actions: Mapping[str, bytes], task: Task = TASK, ledger: Ledger | None = None) -> dict[str, Verdict]:
    attempts = [Attempt(name, task, (action,), StopReason.SUBMITTED) for name, action in actions.items()]
    return {v.trajectory_id: v for v in judge(attempts, CONFIG, ledger or Ledger())}


def test_the_solution_passes_and_honest_misses_fail_with_the_test_named() -> None:
    half = shop.change(shop__price=shop.FIXED.replace("100 - percent", "100 - 2 * percent"))
    breaks = shop.change(shop__price=shop.FIXED.replace("return sum(prices)", "return sum(prices[:1])"))
    with_tests = shop.diff(shop.TREE, shop.TREE | {"shop/price.py": shop.FIXED, "tests/test_more.py": "def test_x():\n    pass\n"}).encode()
    ledger = Ledger()
    found = verdicts({"right": shop.SOLUTION, "again": shop.SOLUTION, "half": half, "breaks": breaks, "with tests": with_tests,
                      "nothing": shop.change(README="x")}, ledger=ledger)
    assert found["right"].verdict is V.PASS and found["right"].cases_passed == found["right"].cases_total == 6
    assert found["right"].isolation == "jail" and "seccomp_multi" in found["right"].layers
    assert (found["with tests"].verdict, found["with tests"].labels) == (V.PASS, ("edits_tests",))
    assert (found["half"].verdict, found["half"].score) == (V.FAIL, 0.25)
    assert "test_discount: assertion 0: wrong int" in found["half"].reason
    assert found["breaks"].verdict is V.FAIL and found["breaks"].score == 0.0, "a broken PASS_TO_PASS test leaves no share"
    assert found["nothing"].verdict is V.FAIL and found["nothing"].cases_passed == 2 and found["nothing"].score == 0.0
    assert (ledger.counts["repo.patches_run"], ledger.counts["verify.canaries"]) == (5, 3), "equal patches run once"
    assert not any(value in v.reason for v in found.values() for value in ("970", "4850", "27"))


def test_no_hostile_patch_passes_and_none_is_excused() -> None:
    found = verdicts(shop.HOSTILE)
    assert {name: v.verdict for name, v in found.items() if v.verdict not in (V.FAIL, V.VIOLATION)} == {}
    assert all(v.cases_passed < v.cases_total or v.verdict is V.VIOLATION for v in found.values())
    assert found["forges frames"].verdict is V.VIOLATION and found["edits the tests"].labels == ("edits_tests",)


def test_an_endless_patch_ends_by_the_cpu_limit() -> None:
    endless = shop.change(shop__price=shop.FIXED + "while True:\n    pass\n")
    assert verdicts({"endless": endless}, changed(cpu_seconds=1.0))["endless"].verdict is V.TIMEOUT


@pytest.mark.parametrize(("action", "verdict"), [
    (b"", V.UNPARSEABLE), (b"I would change the sign.", V.UNPARSEABLE), (b"\xff", V.UNPARSEABLE),
    (shop.SOLUTION.replace(b"percent // 100", b"percent // 1000"), V.FAIL),
    (shop.SOLUTION.replace(b"shop/price.py", b"../judge/driver.py"), V.VIOLATION),
    (b"new file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n", V.VIOLATION)])
def test_what_is_no_patch_for_this_tree_runs_nothing(action: bytes, verdict: VerdictClass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repo, "run_multi", None)
    found, _ = repo.judge_patch(repo.prepare(TASK), action, CONFIG)
    assert (found.verdict, found.decided_by, found.ran) == (verdict, "repo.patch", False)


def test_what_enters_the_jail_holds_no_expected_value() -> None:
    suite = repo.prepare(TASK)
    blob = b"\n".join(repo._workspace(suite, dict(suite.files)).values())
    for value in (b"970", b"4850", b"350", b"27", b"150"):
        assert value not in blob, value
    assert b"Empty" in blob and b"raises" not in blob and b"pytest" not in blob and b"repo/tests/test_price.py" not in blob


def test_assertions_become_sites_of_the_right_strength() -> None:
    source = """
import pytest
LIMIT = 3
def test_a():
    assert f(1) == 2
    assert 'ab' == f(2) and f(3)
    assert not f(4)
    if f(5):
        assert f(6) == 7
    assert f(8) == pytest.approx(0.5)
    assert f(9) is None
    assert f(10) == g()
    rows = [1]
    rows.append(2)
    assert f(rows) == LIMIT
    with pytest.raises(ValueError):
        f(11)
"""
    hidden = take_apart("t.py", source)
    (test,) = hidden.tests.values()
    assert [(s.required, s.strong, s.raises) for s in test.sites] == [
        (True, True, False), (True, True, False), (True, False, False), (True, False, False), (False, True, False), (True, True, False),
        (True, False, False), (True, False, False), (True, True, False), (True, False, True)]
    assert "rows.append(2)" in hidden.source and "LIMIT" not in hidden.source and "ValueError" not in hidden.source
    assert "0.5" not in hidden.source and "'ab'" not in hidden.source


def test_what_cannot_be_taken_apart_is_refused_by_name() -> None:
    for body, said in (("def test_a(tmp_path):\n    assert 1", "fixture"), ("@skip\ndef test_a():\n    assert f() == 1", "decorator"),
                       ("class T:\n    def test_a(self):\n        self.assertRegex(f(), 'x')", "assertRegex"), ("def (", "no Python")):
        with pytest.raises(BadTask, match=said):
            take_apart("t.py", body)


@pytest.mark.parametrize(("trusted", "said"), [
    ({"fail_to_pass": []}, "no hidden cases"),
    ({"fail_to_pass": ["tests/test_price.py::test_absent"]}, "is in none of the test files"),
    ({"fail_to_pass": ["tests/test_price.py::test_nothing_to_pay"]}, "keeps no expected value back"),
    ({"tests": {"tests/test_price.py": "def ("}}, "is no Python"), ({"tests": None}, "needs files, tests"),
    ({"cpu_seconds": "long"}, "cpu_seconds"), ({"tests": {"tests/test_price.py": 7}}, "holds no text")])
def test_a_task_that_cannot_be_judged_by_is_refused_and_named(trusted: dict[str, Any], said: str) -> None:
    ledger = Ledger()
    found = verdicts({"right": shop.SOLUTION}, changed(**trusted), ledger)["right"]
    assert (found.verdict, found.decided_by, found.score) == (V.VERIFIER_ERROR, "repo.task", 0.0)
    assert said in found.reason and any("is refused by the repo verifier" in line for line in ledger.lines)


@pytest.mark.parametrize(("field", "value"), [
    ("FAIL_TO_PASS", []), ("FAIL_TO_PASS", "not JSON"), ("patch", "no patch"), ("test_patch", None),
    ("patch", shop.SOLUTION.decode().replace("percent", "per_cent"))])
def test_a_row_that_is_no_task_is_refused_with_its_name(field: str, value: object) -> None:
    with pytest.raises(DormouseError, match="shop-1"):
        repo_task(shop.ROW | {field: value}, shop.TREE)


def test_admission_refuses_a_reference_that_does_not_pass() -> None:
    wrong = repo_task(shop.ROW | {"patch": shop.HOSTILE["a constant"].decode()}, shop.TREE)
    ledger = Ledger()
    kept, refused = admit([TASK, wrong], CONFIG, ledger)
    assert kept == [TASK] and refused[0].task_id == wrong.id and "shop-1" in ledger.lines[-1]


def test_a_canary_judged_wrongly_voids_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repo, "CANARIES", (("right", repo.CANARIES[1][1], repo.CANARIES[0][2]),))
    ledger = Ledger()
    found = verdicts({"right": shop.SOLUTION}, ledger=ledger)["right"]
    assert (found.verdict, found.decided_by) == (V.VERIFIER_ERROR, "repo.canary") and ledger.counts["verify.canary_failures"] == 1


def test_a_machine_without_the_jail_gives_no_verdict_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_jail(*_: object, **__: object) -> MultiOutcome:
        raise DormouseError("no jail for several processes on this machine")

    monkeypatch.setattr(repo, "run_multi", no_jail)
    ledger = Ledger()
    found = verdicts({"right": shop.SOLUTION}, ledger=ledger)["right"]
    assert (found.verdict, found.decided_by) == (V.VERIFIER_ERROR, "repo.jail") and "no jail" in ledger.lines[0]


@pytest.mark.parametrize(("end", "verdict"), [(End.INFRA, V.VERIFIER_ERROR), (End.CPU, V.TIMEOUT), (End.WALL, V.TIMEOUT), (End.OUTPUT,
V.FAIL),                                               (End.MEMORY, V.FAIL), (End.FORBIDDEN, V.VIOLATION), (End.CRASH, V.FAIL)])
def test_every_end_of_a_run_has_its_class(end: End, verdict: VerdictClass) -> None:
    found = repo.find(repo.prepare(TASK), MultiOutcome(end))
    assert found.verdict is verdict and found.score == 0.0 and found.reason


def frames(*rows: tuple[bytes, int, int, bytes]) -> bytes:
    return b"".join(HEAD.pack(kind, test * SITES + site, len(payload)) + payload for kind, test, site, payload in rows)


@pytest.mark.parametrize(("data", "verdict"), [
    (b"", V.FAIL), (b"garbage that is no frame", V.VIOLATION), (frames((b"E", 0, 0, b"")), V.VIOLATION),
    (frames((b"B", 0, 0, b""), (b"E", 0, 0, b""), (b"V", 0, 0, b"N")), V.VIOLATION), (frames((b"B", 63, 0, b"")), V.VIOLATION),
    (frames((b"B", 1, 0, b""), (b"E", 1, 0, b""), (b"B", 0, 0, b"")), V.VIOLATION), (frames((b"B", 0, 0, b""))[:-1], V.VIOLATION),
    (frames((b"B", 0, 0, b""), (b"E", 0, 0, b"")) + b"tail" * 3, V.VIOLATION)])
def test_forged_and_broken_frames_never_pass(data: bytes, verdict: VerdictClass) -> None:
    assert repo.find(repo.prepare(TASK), MultiOutcome(End.CLEAN, exit_code=0, output=data)).verdict is verdict


def right_frames() -> list[tuple[bytes, int, int, bytes]]:
    """What an honest run of the hidden tests says: every site once, with its value."""
    rows: list[tuple[bytes, int, int, bytes]] = []
    for number, test in enumerate(repo.prepare(TASK).tests):
        rows.append((b"B", number, 0, b""))
        for place, site in enumerate(test.sites):
            tag, payload = site.tree
            value = [payload.decode(), "Exception"] if site.raises else payload if tag == wire.INT else tag == wire.TRUE
            rows.append((b"V", number, place, wire.encode(value)))
        rows.append((b"E", number, 0, b""))
    return rows


def test_every_required_claim_is_needed_once_and_right() -> None:
    suite, rows = repo.prepare(TASK), right_frames()

    def judged(frames_: list[tuple[bytes, int, int, bytes]]) -> VerdictClass:
        return repo.find(suite, MultiOutcome(End.CLEAN, exit_code=0, output=frames(*frames_))).verdict

    assert judged(rows) is V.PASS
    for i, row in enumerate(rows):
        assert judged(rows[:i] + rows[i + 1 :]) in (V.FAIL, V.VIOLATION), row
        if row[0] == b"V":
            assert judged([*rows[: i + 1], row, *rows[i + 1 :]]) is V.FAIL, "claimed twice"
            for other in (wire.encode(None), wire.encode("970"), b"", b"i\xff", wire.encode(float("nan"))):
                assert judged([*rows[:i], (b"V", row[1], row[2], other), *rows[i + 1 :]]) is V.FAIL, other
    raised = next(i for i, row in enumerate(rows) if row[0] == b"V" and repo.prepare(TASK).tests[row[1]].sites[row[2]].raises)
    many = wire.encode([f"E{i}" for i in range(16)] + ["Empty"])
    assert judged([*rows[:raised], (b"V", *rows[raised][1:3], many), *rows[raised + 1 :]]) is V.FAIL, "every exception there is"
