"""The repair environment: what the commands do, what the visible tests say, and that only the hidden ones decide."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.admission.asserts import convert
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs import repair as env
from dormouse_core.envs.environment import StopReason
from dormouse_core.envs.registry import restore, start
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks import repair
from dormouse_core.tasks.public import load_public
from dormouse_core.tasks.task import Task, Use
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.core.envs.made import BUGGY, FIXED, VISIBLE, repair_task

V = VerdictClass
CONFIG = VerifyConfig(workers=1)
TASK = repair_task()
PATH = (b"r", b"t", b"e 99\nx", b"\xff", b"i 0\n# mended", b"t", b"d 1", *TASK.reference)
"""Reads, tests, a refused and a malformed action, an insertion and its removal, the repair, and the submission."""


@pytest.fixture(autouse=True, scope="module")
def no_runner_left() -> Iterator[None]:
    yield
    env._JAIL.close()


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    with Runners(CONFIG, Ledger()) as running:
        yield running


def verdict(task: Task, actions: Sequence[bytes], runners: Runners | None = None, stop: StopReason = StopReason.SUBMITTED) -> Verdict:
    return judge([Attempt("t", task, tuple(actions), stop)], CONFIG, Ledger(), runners)[0]


def played(task: Task, actions: Sequence[bytes]) -> list[bytes]:
    state = start(task)
    return [state.step(action).observation for action in actions]


def test_commands_do_what_the_help_says() -> None:
    state = start(TASK)
    assert state.step(b"r 3-4").observation == b"3     for x in xs[1:]:\n4         if x % 2 == 0:\n"
    assert state.step(b"e 3\n    for x in xs:").observation == b"6 lines"
    assert state.facts()["source"] == FIXED
    assert state.step(b"i 0\n# one\n# two").observation == b"8 lines" and state.facts()["source"].startswith("# one\n# two\ndef")
    assert state.step(b"d 1-2").observation == b"6 lines" and state.facts()["source"] == FIXED
    assert state.step(b"w\ndef evens(xs):\n    return 2").observation == b"2 lines"
    assert state.step(b"r").observation == b"1 def evens(xs):\n2     return 2\n"
    result = state.step(b"s")
    assert (result.stop, result.tool, result.tool_ok) == (StopReason.SUBMITTED, "submit", True)


@pytest.mark.parametrize(("action", "said"), [
    (b"", b"?"), (b"x", b"?"), (b"r 0-", b"?"), (b"e\nx", b"?"), (b"e 3", b"?"), (b"w", b"?"), (b"e 1-2-3\nx", b"?"),
    (b"i 1-2\nx", b"?"), (b"t\nx", b"?"),
    (b"s 3", b"?"), (b"\xff", b"?"), (b"w\nx\0", b"?"), (b"e 3-2\nx", b"!"), (b"e 0\nx", b"!"), (b"e 7\nx", b"!"), (b"i 7\nx", b"!"),
    (b"d 9", b"!"), (b"r 9", b"!"),
    (b"w\n" + b"x" * 70_000, b"!")])
def test_what_is_no_command_or_cannot_be_done_changes_nothing_but_the_step_count(action: bytes, said: bytes) -> None:
    state = start(TASK)
    result = state.step(action)
    assert (result.observation, result.tool_ok, state.facts()["source"]) == (said, False, BUGGY)


def test_visible_tests_say_which_hold_and_never_decide() -> None:
    assert played(TASK, [b"t"]) == [b"2/2"]
    assert played(TASK, [b"e 3\n    for x in xs[2:]:", b"t"])[1] == b"1/2\nevens([1, 2, 3]) == 2: wrong"
    assert played(TASK, [b"e 3\n    for x in y:", b"t"])[1].startswith(b"0/2\nevens([1, 2, 3]) == 2: raises NameError\n")
    assert played(TASK, [b"e 1\ndef evens(xs:", b"t"])[1] == b"0/2\nthe program does not load: SyntaxError"
    assert b"ended the program" in played(TASK, [b"e 2\n    __import__('os')._exit(0)", b"t"])[1]
    assert played(repair_task(visible=""), [b"t"]) == [b"no visible tests"]


def test_a_program_that_passes_every_visible_test_is_caught_by_a_hidden_one(runners: Runners) -> None:
    assert played(TASK, [b"t"]) == [b"2/2"]
    assert verdict(TASK, [b"t", b"s"], runners).verdict is V.FAIL
    assert verdict(TASK, TASK.reference, runners).verdict is V.PASS


def test_the_verdict_is_of_the_submitted_program_and_of_nothing_the_trajectory_says(runners: Runners) -> None:
    fix, submit = TASK.reference
    assert verdict(TASK, [fix, submit, b"w\nbroken"], runners).verdict is V.PASS, "edits after the end change nothing"
    assert verdict(TASK, [submit, fix], runners).verdict is V.FAIL
    assert verdict(TASK, [fix], runners).verdict is V.UNPARSEABLE, "it says SUBMITTED, but nothing was"
    assert verdict(TASK, [fix], runners, StopReason.MAX_STEPS).verdict is V.TRUNCATED
    late = repair_task(steps=2)
    assert verdict(late, [b"r", fix, submit], runners).verdict is V.UNPARSEABLE, "past the step limit"
    assert verdict(TASK, [b"w\n", submit], runners).verdict is V.UNPARSEABLE


def test_a_broken_start_state_or_environment_costs_its_own_attempt_only(runners: Runners) -> None:
    broken = TASK.model_copy(update={"start": {"visible": []}})
    nowhere = TASK.model_copy(update={"environment": "nowhere"})
    attempts = [Attempt(str(i), t, t.reference, StopReason.SUBMITTED) for i, t in enumerate((broken, TASK, nowhere))]
    for task in (broken, nowhere):
        task.__dict__.pop("id", None)
    found = judge(attempts, CONFIG, Ledger(), runners)
    assert [v.verdict for v in found] == [V.VERIFIER_ERROR, V.PASS, V.VERIFIER_ERROR]
    assert "environment repair: KeyError" in found[0].reason and "no environment" in found[2].reason


def test_a_fork_at_every_step_has_the_same_digests_observations_and_verdict(runners: Runners) -> None:
    trunk = start(TASK)
    blobs, digests, results = [trunk.snapshot()], [trunk.digest()], []
    for action in PATH:
        results.append(trunk.step(action))
        blobs.append(trunk.snapshot())
        digests.append(trunk.digest())
    whole = verdict(TASK, PATH, runners)
    assert whole.verdict is V.PASS and results[-1].stop is StopReason.SUBMITTED
    for k in range(len(PATH) + 1):
        env._JAIL._known.clear()  # what a test says is found anew
        fork = restore(TASK, blobs[k])
        assert [fork.step(action) for action in PATH[k:]] == results[k:]
        assert fork.digest() == digests[-1]
        assert env.Repair.leaves(TASK, (*PATH[:k], *PATH[k:])) == fork.facts()["source"].encode()


@given(st.lists(st.sampled_from(["a", "b", "c", "  d", "# ü", ""]), max_size=8), st.lists(st.sampled_from(["a", "b", "x", "  d", ""]),
                                                                                     min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_repairing_actions_turn_any_program_into_any_other(before: list[str], after: list[str]) -> None:
    buggy, reference = ("".join(f"{line}\n" for line in lines) for lines in (before, [*after, "end"]))
    task = repair_task(buggy=buggy or "\n", steps=40)
    assert env.Repair.leaves(task, repair.repairing_actions(task.start["source"], reference)) == reference.encode()


def test_a_visible_suite_of_another_form_is_refused() -> None:
    for suite in ("def check(f):\n    x = f(1)\n    assert x\n", "def a(f): pass\ndef b(f): pass\n", "def check(f, g):\n    assert f\n"):
        with pytest.raises(ValueError):
            repair.visible_tests(suite, "evens")
    assert repair.visible_tests(VISIBLE, "evens") == ["evens([1, 2, 3]) == 2", "evens([]) == 0"]


def test_of_humanevalfix_every_buggy_program_is_caught_by_its_hidden_tests_also_where_the_visible_ones_pass(
        tasks_dir: Path, runners: Runners) -> None:
    tasks = load_public("humanevalfix_repair", tasks_dir, Ledger())
    assert len(tasks) == 110 and {t.use for t in tasks} == {Use.EVALUATION} and {t.environment for t in tasks} == {"repair"}
    ledger = Ledger()
    chosen = convert(tasks[::6], runners, ledger)
    assert ledger.counts["admission.asserts_converted"] >= 15, "cases in place of asserts that a program could lie to"
    attempts = [Attempt(f"{i}", t, actions, StopReason.SUBMITTED) for i, t in enumerate(chosen) for actions in (t.reference, (b"s",))]
    verdicts = judge(attempts, CONFIG, Ledger())
    assert {v.verdict for v in verdicts[::2]} == {V.PASS}
    assert not {v.verdict for v in verdicts[1::2]} & {V.PASS, V.UNDECIDED, V.VERIFIER_ERROR}


@pytest.mark.slow
def test_all_of_humanevalfix_in_full_with_the_traps_that_pass_the_visible_tests(tasks_dir: Path) -> None:
    tasks = load_public("humanevalfix_repair", tasks_dir, Ledger())
    traps = [t for t in tasks if t.start["visible"] and _passes_all(played(t, [b"t"])[0])]
    assert len(traps) >= 9
    attempts = [Attempt(f"{i}", t, actions, StopReason.SUBMITTED) for i, t in enumerate(tasks) for actions in (t.reference, (b"t", b"s"))]
    verdicts = judge(attempts, CONFIG, Ledger())
    assert {v.verdict for v in verdicts[::2]} == {V.PASS}
    assert not {v.verdict for v in verdicts[1::2]} & {V.PASS, V.UNDECIDED, V.VERIFIER_ERROR}
    for task in tasks:
        assert _passes_all(played(task, (*task.reference[:-1], b"t"))[-1]) or not task.start["visible"], task.source


def _passes_all(observation: bytes) -> bool:
    passed, _, total = observation.split(b"\n")[0].partition(b"/")
    return passed == total
