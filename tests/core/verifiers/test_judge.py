"""judge: order, one class a cause, sharing of equal programs, canaries, and no answer that ends a batch."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox import limits, wire
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.registry import draw, families
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers import exact, exec
from dormouse_core.verifiers.attempt import Attempt, Finding, verifier_sha256
from dormouse_core.verifiers.judge import IN_PROCESS, judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

V = VerdictClass
CONFIG = VerifyConfig(cpu_seconds=0.4, wall_seconds=8, workers=2)


def task(kind: VerifierKind, trusted: dict[str, Any], **fields: Any) -> Task:
    return Task(**{"pool": Pool.CODE, "family": "t", "prompt": b"", "environment": "answer", "verifier": kind, "split": Split.TRAIN,
                   "use": Use.TRAIN,
                   "trusted": trusted, **fields})


def cases(*pairs: tuple[object, object], **more: Any) -> dict[str, Any]:
    return {"entry_point": "f", "cases": [{"args": repr(a), "expected": repr(e)} for a, e in pairs], **more}


ADD = task(VerifierKind.EXEC, cases(((1, 2), 3), ((0, 0), 0), ((-1, 5), 4)),
           start={"program_prefix": "def f(a, b):\n return ", "program_suffix": "\n"})
SEVEN = task(VerifierKind.EXACT, {"answer": "7", "form": "number", "expressions": True})
REGISTER = draw("register_machine", 2, Split.TRAIN, 0, "test")
FILES = draw("file_system", 3, Split.TRAIN, 0, "test")
DONE, SUBMITTED = StopReason.SOLVED, StopReason.SUBMITTED


def attempt(task: Task, *actions: str | bytes, stop: StopReason = SUBMITTED, name: str = "t") -> Attempt:
    return Attempt(name, task, tuple(a.encode() if isinstance(a, str) else a for a in actions), stop)


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    with Runners(CONFIG, Ledger()) as running:
        yield running


def one(attempt: Attempt, runners: Runners | None = None) -> Verdict:
    return judge([attempt], CONFIG, Ledger(), runners)[0]


CLASSES = [
    (V.PASS, attempt(ADD, "a+b"), "exec.compare"),
    (V.PASS, attempt(SEVEN, "7"), "exact.number"),
    (V.PASS, attempt(REGISTER, *REGISTER.reference, stop=DONE), "env_step.state"),
    (V.PASS, attempt(FILES, *FILES.reference, stop=DONE), "env_step.state"),
    (V.FAIL, attempt(ADD, "a-b"), "exec.compare"),
    (V.FAIL, attempt(SEVEN, "8"), "exact.number"),
    (V.FAIL, attempt(REGISTER, "?"), "env_step.state"),
    (V.UNDECIDED, attempt(SEVEN, "log(10^7)"), "exact.number"),
    (V.UNPARSEABLE, attempt(SEVEN, "dunno"), "exact.number"),
    (V.UNPARSEABLE, attempt(ADD, "a+"), "exec.compile"),
    (V.UNPARSEABLE, attempt(ADD, ""), "exec.program"),
    (V.UNPARSEABLE, attempt(ADD), "exec.stop"),
    (V.UNPARSEABLE, attempt(REGISTER), "env_step.stop"),
    (V.TRUNCATED, attempt(ADD, "a+b", stop=StopReason.BYTE_BUDGET), "exec.stop"),
    (V.TRUNCATED, attempt(SEVEN, stop=StopReason.BYTE_BUDGET), "exact.stop"),
    (V.TRUNCATED, attempt(REGISTER, "?", stop=StopReason.MAX_STEPS), "env_step.stop"),
    (V.TIMEOUT, attempt(ADD, "[0 for _ in iter(int, 1)]"), "exec.rlimit_cpu"),
    (V.VIOLATION, attempt(ADD, "__import__('os').fork()"), "exec.permission"),
    (V.VERIFIER_ERROR, attempt(ADD, "a+b", stop=StopReason.INFRA), "rollout.infra"),
    (V.VERIFIER_ERROR, attempt(task(VerifierKind.EXEC, {"entry_point": "f", "cases": []}), "1"), "exec.task"),
    (V.VERIFIER_ERROR, attempt(task(VerifierKind.EXACT, {}), "1"), "exact.task"),
    (V.VERIFIER_ERROR, attempt(task(VerifierKind.ENV_STEP, {}), "1"), "env_step.task"),
    (V.VERIFIER_ERROR, attempt(task(VerifierKind.ENV_STEP, {"target": {"x": 1}}, environment="nowhere"), "1"), "env_step.task"),
]


def test_every_class_has_its_cause_and_order_is_kept() -> None:
    ledger = Ledger()
    verdicts = judge([a for _, a, _ in CLASSES], CONFIG, ledger)
    assert [(v.verdict, v.decided_by) for v in verdicts] == [(c, by) for c, _, by in CLASSES]
    assert {v.verdict for v in verdicts} == set(V) - {V.HACK_SUSPECTED}, "the hack screen's class alone comes from elsewhere"
    assert all(v.decided_by and (v.verdict is V.PASS or v.reason) for v in verdicts)
    assert sum(n for name, n in ledger.counts.items() if name.startswith("verdicts.")) == len(CLASSES)


def test_a_verdict_says_under_which_layers_a_program_ran_and_only_then(runners: Runners) -> None:
    ran, not_run, cut = one(attempt(ADD, "a+b"), runners), one(attempt(SEVEN, "7"),
                                                               runners), one(attempt(ADD, "a", stop=StopReason.BYTE_BUDGET), runners)
    assert ran.isolation == limits.isolation_of(runners.layers)
    assert set(limits.BASE_LAYERS) < set(ran.layers) and "seccomp" in ran.layers
    assert (not_run.isolation, not_run.layers) == (cut.isolation, cut.layers) == ("none", ())
    assert ran.verifier_sha256 == verifier_sha256() and len(ran.verifier_sha256) == 64


def test_equal_programs_of_one_task_run_once_and_share_the_verdict() -> None:
    ledger = Ledger()
    batch = [attempt(ADD, "a+b", name=f"r{i}") for i in range(8)] + [attempt(ADD, "b+a", name=f"s{i}") for i in range(4)]
    verdicts = judge(batch, CONFIG, ledger)
    assert [v.trajectory_id for v in verdicts] == [a.trajectory_id for a in batch] and {v.verdict for v in verdicts} == {V.PASS}
    assert (ledger.counts["exec.programs_run"], ledger.counts["exec.verdicts_shared"]) == (2, 10)


def test_a_pass_needs_every_case_and_the_score_is_their_share(runners: Runners) -> None:
    found = one(attempt(ADD, "abs(a)+abs(b)"), runners)
    assert (found.verdict, found.cases_passed, found.cases_total, found.score) == (V.FAIL, 2, 3, 2 / 3)
    assert found.reason == "case 2: wrong int"
    assert one(attempt(ADD, "a+b"), runners).score == 1.0


def test_an_exception_in_one_case_does_not_hide_the_others(runners: Runners) -> None:
    found = one(attempt(ADD, "a+b+0*(1//a)"), runners)
    assert (found.verdict, found.cases_passed, found.reason) == (V.FAIL, 2, "case 1: raise:ZeroDivisionError")


def test_arguments_are_fresh_in_every_case_and_dicts_keep_their_order(runners: Runners) -> None:
    trusted = cases((({"b": 1, "a": 2},), "ba"), (({"a": 1, "b": 2},), "ab"), (([],), ""), (([],), ""))
    program = "def f(x):\n    if type(x) is list:\n        x.append('z')\n        return ''.join(x[1:])\n    return ''.join(x)\n"
    assert one(attempt(task(VerifierKind.EXEC, trusted), program), runners).verdict is V.PASS


@pytest.mark.parametrize(("trusted", "body", "verdict"), [
    (cases(((), 1)), "True", V.FAIL), (cases(((), 1), typing="python"), "True", V.PASS), (cases(((), 1), typing="numeric"), "1.0", V.PASS),
    (cases(((), 1)), "1.0", V.FAIL), (cases(((), 0.3)), "0.1+0.2", V.FAIL), (cases(((), 0.3), tolerance=1e-9), "0.1+0.2", V.PASS),
    (cases(((), (1, 2))), "[1,2]", V.FAIL), (cases(((), (1, 2)), relax="sequence"), "[1,2]", V.PASS),
    (cases(((), True), relax="truth"), "[0]", V.PASS),
    (cases(((), {1, 2})), "{2,1}", V.PASS), (cases(((), {"a": {1: (2.0, None)}})), "{'a':{1:(2.0,None)}}", V.PASS),
    (cases(((), -0.0)), "0.0", V.PASS),
    (cases(((), "é\ud800")), "'é\\ud800'", V.PASS), (cases(((), 2**70)), "2**70", V.PASS), (cases(((), b"\x00")), "bytes(1)", V.PASS),
])
def test_comparison_follows_the_task(trusted: dict[str, Any], body: str, verdict: VerdictClass, runners: Runners) -> None:
    assert one(attempt(task(VerifierKind.EXEC, trusted), f"def f():\n    return {body}\n"), runners).verdict is verdict


@pytest.mark.parametrize("trusted", [
    {}, {"entry_point": "f"}, {"entry_point": "f()", "cases": [{"args": "()", "expected": "1"}]},
    {"entry_point": "f", "cases": [{"args": "1", "expected": "1"}]},
    {"entry_point": "f", "cases": [{"args": "()", "expected": "f(1)"}]}, {"entry_point": "f", "cases": [{"args": "(", "expected": "1"}]},
    {"entry_point": "f", "cases": [{"args": "()"}]}, {"entry_point": "f", "cases": [{"args": "()", "expected": "1e999-1e999"}]},
    {"entry_point": "f", "cases": ["x"]},
    {"entry_point": "f", "cases": [{"args": "()", "expected": "1"}], "typing": "loose"},
    {"entry_point": "f", "cases": [{"args": "()", "expected": "1"}], "tolerance": -1},
    {"entry_point": "f", "cases": [{"args": "()", "expected": "1"}], "cpu_seconds": 1e9},
    {"entry_point": "f", "cases": [{"args": "()", "expected": "1e999"}], "tolerance": "x"},
])
def test_a_task_with_unusable_data_is_named_and_scores_nobody(trusted: dict[str, Any], runners: Runners) -> None:
    found = one(attempt(task(VerifierKind.EXEC, trusted), "def f(): return 1"), runners)
    assert (found.verdict, found.decided_by, found.score) == (V.VERIFIER_ERROR, "exec.task", 0.0) and found.reason


def test_asserts_that_had_to_run_inside_the_child_are_labelled(runners: Runners) -> None:
    suite = task(VerifierKind.EXEC, {"entry_point": "f", "test_src": "def check(c):\n    assert c(2) == 4\ncheck(f)\n"})
    right, wrong = one(attempt(suite, "def f(x): return x*2"), runners), one(attempt(suite, "def f(x): return x"), runners)
    assert (right.verdict, right.labels) == (V.PASS, (exec.IN_CHILD,))
    assert (wrong.verdict, wrong.reason, wrong.labels) == (V.FAIL, "load:AssertionError", (exec.IN_CHILD,))


def test_set_order_and_random_numbers_are_the_same_in_every_run() -> None:
    source = "import random\ndef f():\n    return [list({'ab', 'cd', 'ef', 'gh'}), random.random()]\n"
    seen = []
    for _ in range(3):
        with Runners(CONFIG, Ledger()) as fresh:
            seen.append(fresh.run([exec.Job(source.encode(), "f", (wire.encode(()),))])[0][0].claims[0].payload)
    assert len(set(seen)) == 1


@pytest.mark.parametrize("which", range(3))
def test_one_wrong_canary_voids_the_batch_loudly(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = list(exec.CANARIES)
    spoiled[which] = (spoiled[which][0], spoiled[(which + 1) % 3][1], spoiled[which][2])
    monkeypatch.setattr(exec, "CANARIES", tuple(spoiled))
    ledger = Ledger()
    verdicts = judge([attempt(ADD, "a+b"), attempt(ADD, "a-b"), attempt(SEVEN, "7")], CONFIG, ledger)
    assert [v.verdict for v in verdicts] == [V.VERIFIER_ERROR, V.VERIFIER_ERROR, V.PASS]
    assert verdicts[0].decided_by == "exec.canary" and any("canary" in line for line in ledger.lines)


def test_a_verifier_that_raises_costs_its_own_attempt_only(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = exact.final_answer

    def broken(text: str, *rest: Any, **more: Any) -> str:
        if "7" in text:
            raise ZeroDivisionError
        return whole(text, *rest, **more)

    monkeypatch.setattr(exact, "final_answer", broken)
    ledger = Ledger()
    verdicts = judge([attempt(SEVEN, "7"), attempt(REGISTER, *REGISTER.reference, stop=DONE)], CONFIG, ledger)
    assert [v.verdict for v in verdicts] == [V.VERIFIER_ERROR,
                                             V.PASS] and verdicts[0].decided_by == "exact.defect" and len(ledger.lines) == 1


@pytest.mark.parametrize("kind", [VerifierKind.EXACT, VerifierKind.ENV_STEP])
@pytest.mark.parametrize("lie", [V.PASS, V.FAIL])
def test_a_verifier_gone_wrong_is_caught_by_its_canaries_and_only_its_kind_is_voided(kind: VerifierKind, lie: V,
                                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    by = f"{kind}.{'number' if kind is VerifierKind.EXACT else 'state'}"
    monkeypatch.setitem(IN_PROCESS, kind, lambda _: Finding(lie, by))  # passes all, or fails all
    ledger = Ledger()
    batch = [attempt(SEVEN, "7"), attempt(REGISTER, *REGISTER.reference, stop=DONE), attempt(ADD, "a+b")]
    found = {v.kind: v for v in judge(batch, CONFIG, ledger)}
    assert (found[kind].verdict, found[kind].decided_by) == (V.VERIFIER_ERROR, f"{kind}.canary")
    assert all(v.verdict is V.PASS for other, v in found.items() if other is not kind)
    assert ledger.counts["verify.canary_failures"] == 1 and any("canary was judged wrongly" in line for line in ledger.lines)


def test_three_canaries_of_every_kind_ride_in_every_batch() -> None:
    for batch, kinds in (([attempt(SEVEN, "7")], 1), ([attempt(SEVEN, "7"), attempt(REGISTER, "a"), attempt(ADD, "a+b")], 3)):
        ledger = Ledger()
        judge(batch, CONFIG, ledger)
        assert ledger.counts["verify.canaries"] == 3 * kinds


def test_tasks_that_cannot_be_judged_by_are_named_once_and_counted() -> None:
    ledger = Ledger()
    empty = [task(VerifierKind.EXEC, {"entry_point": "f", "cases": []}, prompt=str(i).encode()) for i in range(7)]
    undecodable = task(VerifierKind.EXEC, {"entry_point": "f", "cases": [{"args": "(1,)", "expected": "b64:eJw="}]})
    batch = [attempt(t, "return 1") for t in (*empty, *empty, undecodable)] + [attempt(task(VerifierKind.EXACT, {"form": "number"}), "1")]
    verdicts = judge(batch, CONFIG, ledger)
    assert {v.verdict for v in verdicts} == {V.VERIFIER_ERROR} and {v.score for v in verdicts} == {0.0}
    assert "no hidden cases" in verdicts[0].reason and "case 0: " in verdicts[14].reason
    named = [line for line in ledger.lines if "is refused by" in line]
    assert len(named) == 5 and ledger.counts["verify.bad_tasks"] == 9


def test_a_defect_of_the_exec_verifier_voids_programs_alone_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(exec, "judge_batch", broken)
    ledger = Ledger()
    found = judge([attempt(ADD, "a+b"), attempt(SEVEN, "7")], CONFIG, ledger)
    assert [v.decided_by for v in found] == ["exec.defect", "exact.number"] and "ZeroDivisionError" in ledger.lines[-1]


@given(st.lists(st.binary(max_size=40), max_size=3), st.sampled_from(list(StopReason)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_judged_by_every_verifier(runners: Runners, actions: list[bytes], stop: StopReason) -> None:
    verdicts = judge([Attempt("t", t, tuple(actions), stop) for t in (ADD, SEVEN, REGISTER, FILES)], CONFIG, Ledger(), runners)
    assert all(0 <= v.score <= 1 and v.verdict in V for v in verdicts)


def test_a_megabyte_program_is_refused_not_run(runners: Runners) -> None:
    found = one(attempt(ADD, "1+" * 500_000 + "1"), runners)
    assert (found.verdict, found.decided_by) == (V.FAIL, "exec.program")


def test_replay_counts_milestones_once_and_believes_only_actions() -> None:
    first = one(attempt(FILES, FILES.reference[0], FILES.reference[0]))
    total = first.milestones_total
    assert first.verdict is V.FAIL and 1 <= first.milestones_passed < total + 1 and first.score == first.milestones_passed / (total + 1)
    lie = one(attempt(REGISTER, "?", stop=StopReason.SOLVED))
    assert (lie.verdict, lie.milestones_passed) == (V.FAIL, 0)


def test_every_family_has_a_reference_that_passes_and_a_wrong_action_that_does_not() -> None:
    from dormouse_core.seeding import generator

    batch, want = [], []
    for name, family in families().items():
        drawn = draw(name, 2, Split.TRAIN, 0, "test")
        stop = SUBMITTED if drawn.max_steps == 1 else DONE
        batch += [attempt(drawn, *drawn.reference, stop=stop, name=name),
                  attempt(drawn, family.wrong(drawn, generator("wrong", name)), name=f"{name}/wrong")]
        want += [True, False]
    verdicts = judge(batch, CONFIG, Ledger())
    assert [v.trajectory_id for v, w in zip(verdicts, want, strict=True) if (v.verdict is V.PASS) != w] == []


def test_judging_from_two_threads_at_once_mixes_nothing() -> None:
    found: dict[int, list[VerdictClass]] = {}

    def work(n: int) -> None:
        found[n] = [v.verdict for v in judge([attempt(ADD, f"a+b+{n}*{i}") for i in range(10)], CONFIG, Ledger())]

    threads = [threading.Thread(target=work, args=(n,)) for n in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {0: [V.PASS] * 10, 1: [V.PASS] + [V.FAIL] * 9}
