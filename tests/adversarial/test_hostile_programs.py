"""No hostile program passes, each gets the class and the decider that fit it, and nothing of it stays behind."""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.adversarial.hostile import HOSTILE

CONFIG = VerifyConfig(cpu_seconds=0.4, wall_seconds=8, memory_mib=64, workers=2)
ADD = Task(pool=Pool.CODE, family="add", prompt=b"", environment="answer", verifier=VerifierKind.EXEC, split=Split.TRAIN, use=Use.TRAIN,
           trusted={"entry_point": "f", "cases": [{"args": repr((i, i * i + 1)), "expected": repr(i + i * i + 1)} for i in range(2, 10)]})
RIGHT = "def f(a, b):\n    return a + b\n"


def attempt(source: str, name: str = "t", task: Task = ADD) -> Attempt:
    return Attempt(name, task, (source.encode(),), StopReason.SUBMITTED)


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, Verdict]]:
    """Every hostile program in one batch, an honest one between any two."""
    ledger = Ledger()
    honest = [attempt(f"# {i}\n{RIGHT}", f"honest{i}") for i in range(len(HOSTILE))]
    hostile = [attempt(h.source, name) for name, h in HOSTILE.items()]
    batch = [a for pair in zip(hostile, honest, strict=True) for a in pair]
    yield {v.trajectory_id: v for v in judge(batch, CONFIG, ledger)}
    assert ledger.counts["exec.runner_restarts"] == 0


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_program_gets_its_class_from_the_right_decider(name: str, verdicts: dict[str, Verdict]) -> None:
    got = verdicts[name]
    assert (got.verdict, got.decided_by) == (HOSTILE[name].verdict, HOSTILE[name].decided_by), got.reason
    assert got.score < 1


def test_honest_programs_between_hostile_ones_all_pass(verdicts: dict[str, Verdict]) -> None:
    wrong = {n: v.reason for n, v in verdicts.items() if n.startswith("honest") and v.verdict is not VerdictClass.PASS}
    assert not wrong


def test_nothing_is_left_of_a_batch_but_its_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ledger = Ledger()
    before = (len(os.listdir("/proc/self/fd")), children(), os.listdir(tmp_path))
    judge([attempt(HOSTILE[n].source, n) for n in ("fork", "result_flood", "os_exit_in_call", "segfault", "sleep")], CONFIG, ledger)
    assert (len(os.listdir("/proc/self/fd")), children(), os.listdir(tmp_path)) == before


def test_no_byte_is_written_to_a_file_anywhere() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        target = Path(folder) / "out"
        source = f"def f(a, b):\n    with open({str(target)!r}, 'w') as out:\n        out.write('x' * 100)\n"
        (verdict,) = judge([attempt(source)], CONFIG, Ledger())
        assert (verdict.verdict, verdict.reason) == (VerdictClass.VIOLATION, "case 0: raise:PermissionError")
        assert not target.exists()


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_killed_runner_gives_verifier_error_for_what_it_ran_and_the_rest_is_judged() -> None:
    ledger = Ledger()
    config = VerifyConfig(cpu_seconds=5, wall_seconds=20, workers=1)
    with Runners(config, ledger) as runners:
        judge([attempt(RIGHT)], config, ledger, runners)
        (victim,) = runners.pids
        slow = [attempt(f"import time\n# {i}\ntime.sleep(0.3)\n{RIGHT}", f"slow{i}") for i in range(4)]
        quick = [attempt(f"# {i}\n{RIGHT}", f"quick{i}") for i in range(20)]
        timer = threading.Timer(0.15, os.kill, (victim, 9))
        timer.start()
        verdicts = judge([*slow, *quick], config, ledger, runners)
        timer.join()
        assert runners.pids != (victim,)
    classes = [v.verdict for v in verdicts]
    assert classes.count(VerdictClass.VERIFIER_ERROR) == 2 and classes.count(VerdictClass.PASS) == 22
    assert all(v.decided_by == "exec.runner" and v.score == 0 for v in verdicts if v.verdict is VerdictClass.VERIFIER_ERROR)
    assert ledger.counts["exec.runner_restarts"] == 1 and ledger.counts["exec.lost_to_runner_death"] == 2


def test_runner_that_keeps_dying_ends_the_batch_without_a_score() -> None:
    ledger = Ledger()
    config = VerifyConfig(wall_seconds=20, workers=1)
    with Runners(config, ledger) as runners:
        stop = threading.Event()

        def hunt() -> None:
            while not stop.is_set():
                for pid in runners.pids:
                    os.kill(pid, 9)
                time.sleep(0.01)

        hunter = threading.Thread(target=hunt)
        hunter.start()
        verdicts = judge([attempt(f"import time\ntime.sleep(0.2)\n# {i}\n{RIGHT}", str(i)) for i in range(30)], config, ledger, runners)
        stop.set()
        hunter.join()
    assert {v.verdict for v in verdicts} == {VerdictClass.VERIFIER_ERROR}


def test_ten_right_answers_pass_from_a_thread_as_from_the_main_one() -> None:
    results: list[Verdict] = []
    thread = threading.Thread(target=lambda: results.extend(judge([attempt(f"# {i}\n{RIGHT}", str(i)) for i in range(10)], CONFIG,
                                                                  Ledger())))
    thread.start()
    thread.join()
    assert [v.verdict for v in results] == [VerdictClass.PASS] * 10
