"""math-verify behind the exact verifier: it may prove what stayed open, is killed at its limit, and holds nothing else up."""

import threading
import time

import pytest

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers import prover
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.prover import Proof, Prover
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

ON = VerifyConfig(math_verify=True, cpu_seconds=2.0, wall_seconds=60.0)


def judged(pairs: list[tuple[str, str]], ledger: Ledger, config: VerifyConfig = ON) -> list[Verdict]:
    attempts = []
    for answer, text in pairs:
        task = Task(pool=Pool.MATH, family="t", prompt=b"", environment="answer", verifier=VerifierKind.EXACT, split=Split.TRAIN,
                    use=Use.TRAIN, trusted={"answer": answer, "form": "number", "expressions": True})
        attempts.append(Attempt(text, task, (text.encode(),), StopReason.SUBMITTED))
    return judge(attempts, config, ledger)


def test_without_the_extra_the_switch_is_said_and_answers_stay_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "find_spec", lambda _: None)
    with pytest.raises(DormouseError, match=r"dormouse\[math\]"):
        Prover(1.0, 1.0)
    ledger = Ledger()
    (found,) = judged([("1+\\sqrt{2}", "\\sqrt{3+2\\sqrt{2}}")], ledger)
    assert found.verdict is VerdictClass.UNDECIDED and "math-verify is not installed" in ledger.lines[0]
    assert ledger.arms()["closed forms put to math-verify"] == "0/1"


def test_what_stayed_open_is_proven_and_nothing_else_is_asked() -> None:
    pytest.importorskip("math_verify", reason="the extra `math` is not installed: closed forms were not put to math-verify")
    ledger = Ledger()
    pairs = [("1+\\sqrt{2}", "\\sqrt{3+2\\sqrt{2}}"), ("1+\\sqrt{2}", "\\sqrt{3+2\\sqrt{3}}"), ("4", "2+2"), ("3", "log(1000)")]
    found = judged(pairs, ledger)
    assert [v.verdict.value for v in found] == ["pass", "fail", "pass", "undecided"]
    assert found[0].decided_by == "exact.math_verify" and found[1].decided_by == "exact.number"
    assert ledger.arms()["closed forms put to math-verify"] == "1/1" and ledger.counts["exact.math_verify_equal"] == 1


def test_a_question_past_its_cpu_limit_is_killed_and_other_threads_go_on() -> None:
    pytest.importorskip("math_verify", reason="the extra `math` is not installed: its limit was not tried")
    beats: list[float] = []
    done = threading.Event()

    def heart() -> None:
        while not done.wait(0.01):
            beats.append(time.perf_counter())

    with Prover(0.5, 60.0) as asked:
        assert asked.ask("2", "1+1") is Proof.EQUAL  # started, imports done
        first = asked._process
        assert first is not None
        thread = threading.Thread(target=heart)
        thread.start()
        spent = time.thread_time()
        assert asked.ask("\\sum_{k=1}^{3000} k^k", "3") is Proof.TIMEOUT  # no answer gets that far: the reader refuses sums
        spent = time.thread_time() - spent
        done.set()
        thread.join()
        assert asked.restarts == 1 and first.poll() is not None, "it ran into its limit, and its process is gone"
        assert asked.ask("3", "1+2") is Proof.EQUAL, "the next question starts another"
    assert spent < 0.5, "waiting costs this process next to nothing"
    assert len(beats) > 10
