"""No hostile program passes, each gets the class and the decider that fit it, nothing around the jail is touched, nothing stays."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox.runner import IN_FLIGHT, MAX_RESTARTS, Runners
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.adversarial.configurations import CONFIGURATIONS, NEED_ROOT
from tests.adversarial.escapes import escapes, surroundings
from tests.adversarial.hostile import HOSTILE, Hostile
from tests.adversarial.made import RIGHT, attempt

CONFIG = VerifyConfig(cpu_seconds=0.4, wall_seconds=8, memory_mib=64, workers=2)


def verdicts_of(programs: dict[str, Hostile]) -> dict[str, Verdict]:
    """Every hostile program in one batch, an honest one between any two."""
    ledger = Ledger()
    honest = [attempt(f"# {i}\n{RIGHT}", f"honest{i}") for i in range(len(programs))]
    hostile = [attempt(h.source, name) for name, h in programs.items()]
    batch = [a for pair in zip(hostile, honest, strict=True) for a in pair]
    found = {v.trajectory_id: v for v in judge(batch, CONFIG, ledger)}
    assert ledger.counts["exec.runner_restarts"] == 0
    return found


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, Verdict]]:
    yield verdicts_of(HOSTILE)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_program_gets_its_class_from_the_right_decider(name: str, verdicts: dict[str, Verdict]) -> None:
    got = verdicts[name]
    assert (got.verdict, got.decided_by) == (HOSTILE[name].verdict, HOSTILE[name].decided_by), got.reason
    assert got.score < 1


def test_honest_programs_between_hostile_ones_all_pass(verdicts: dict[str, Verdict]) -> None:
    wrong = {n: v.reason for n, v in verdicts.items() if n.startswith("honest") and v.verdict is not VerdictClass.PASS}
    assert not wrong


def test_reasons_are_one_printable_line_without_a_word_of_the_candidates(verdicts: dict[str, Verdict]) -> None:
    """Neither a claimed value called a class, nor a line break, nor a terminal's escape."""
    assert [n for n, v in verdicts.items() if not v.reason.isprintable() or not v.decided_by.isprintable()] == []
    for name in ("answer_as_a_class", "answer_as_a_type", "report_as_a_class", "report_as_a_class_at_import"):
        assert verdicts[name].reason.endswith("a class of its own"), verdicts[name].reason


def test_no_escape_reaches_anything_and_the_layer_that_must_stop_it_does() -> None:
    with surroundings() as around:
        programs = escapes(around)
        found = verdicts_of(programs)
        assert not around.harm()
    odd = {n: (v.verdict.value, v.decided_by, v.reason) for n, v in found.items()
           if n in programs and (v.verdict, v.decided_by) != (programs[n].verdict, programs[n].decided_by)}
    jail = {v.isolation for v in found.values()}
    assert not (odd if jail == {"jail"} else {n: v for n, v in odd.items() if v[0] == "pass"}), jail
    assert not {n for n, v in found.items() if n.startswith("honest") and v.verdict is not VerdictClass.PASS}


def test_harm_is_noticed() -> None:
    """The watch over the surroundings is no rubber stamp."""
    with surroundings() as around:
        (around.folder / "canary").write_text("x")
        (around.folder / "made").mkdir()
        os.kill(around.victim, 9)
        deadline = time.monotonic() + 5
        while "the other process is Z" not in (harm := around.harm()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert harm == ["canary", "new file made", "the other process is Z"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_hostile_program_passes_in_any_configuration_of_the_layers(name: str) -> None:
    if name in NEED_ROOT and os.getuid() != 0:
        pytest.skip(f"{name}: only root can take the shape of another user")
    done = subprocess.run([sys.executable, "-m", "tests.adversarial.configurations", name], capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["programs"] > 150 and not said["harm"] and not said["honest_wrong"] and said["restarts"] == 0
    classes = {n: v[0] for n, v in said["verdicts"].items()}
    assert not {n for n, c in classes.items() if c in ("pass", "verifier_error")} and len(classes) == said["programs"]
    level = {"root": "jail", "user": "jail", "namespaces_only": "weakened"}.get(name, "jail_without_namespaces")
    assert said["isolation"] == level and bool(said["lines"]) == (level != "jail")
    if level == "jail":
        odd = {n: v for n, v in said["verdicts"].items() if v[:2] != v[3:]}
        assert not odd


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
        slow = [attempt(f"import time\n# {i}\ntime.sleep(0.5)\n{RIGHT}", f"slow{i}") for i in range(6)]
        quick = [attempt(f"# {i}\n{RIGHT}", f"quick{i}") for i in range(20)]
        timer = threading.Timer(0.6, os.kill, (victim, 9))
        timer.start()
        verdicts = judge([*slow, *quick], config, ledger, runners)
        timer.join()
        assert runners.pids != (victim,)
    classes = [v.verdict for v in verdicts]
    lost = classes.count(VerdictClass.VERIFIER_ERROR)
    assert 1 <= lost <= IN_FLIGHT and classes.count(VerdictClass.PASS) == len(classes) - lost == 26 - lost
    assert all(v.decided_by == "exec.runner" and v.score == 0 for v in verdicts if v.verdict is VerdictClass.VERIFIER_ERROR)
    assert ledger.counts["exec.runner_restarts"] == 1 and ledger.counts["exec.lost_to_runner_death"] == lost


def test_runner_that_keeps_dying_ends_the_batch_without_a_score() -> None:
    ledger = Ledger()
    config = VerifyConfig(wall_seconds=20, workers=1)
    with Runners(config, ledger) as runners:
        stop = threading.Event()

        def hunt() -> None:
            while not stop.is_set():
                for pid in runners.pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)
                time.sleep(0.01)

        hunter = threading.Thread(target=hunt)
        hunter.start()
        verdicts = judge([attempt(f"import time\ntime.sleep(0.2)\n# {i}\n{RIGHT}", str(i)) for i in range(30)], config, ledger, runners)
        stop.set()
        hunter.join()
    assert {v.verdict for v in verdicts} == {VerdictClass.VERIFIER_ERROR}


@pytest.mark.parametrize("failing", [1, MAX_RESTARTS])
def test_a_restart_that_fails_takes_no_verdict_that_was_there(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner killed while it starts again counts as a restart; what was judged before stands."""
    ledger = Ledger()
    config = VerifyConfig(wall_seconds=20, workers=1)
    with Runners(config, ledger) as runners:
        judge([attempt(RIGHT)], config, ledger, runners)
        launch, left = Runners._launch, [failing]

        def launched(self: Runners) -> object:
            process, *rest = launch(self)
            if left[0] > 0:
                left[0] -= 1
                process.kill()
            return process, *rest

        monkeypatch.setattr(Runners, "_launch", launched)
        timer = threading.Timer(0.5, os.kill, (runners.pids[0], 9))
        timer.start()
        verdicts = judge([attempt(f"import time\ntime.sleep(0.1)\n# {i}\n{RIGHT}", str(i)) for i in range(40)], config, ledger, runners)
        timer.join()
    lost = [v for v in verdicts if v.verdict is VerdictClass.VERIFIER_ERROR]
    assert 1 <= len(lost) < 40 and {v.verdict for v in verdicts if v not in lost} == {VerdictClass.PASS}
    assert {v.decided_by for v in lost} == {"exec.runner"} and sum("did not start" in line for line in ledger.lines) == failing
    assert (len(lost) <= IN_FLIGHT) == (failing < MAX_RESTARTS), "the rest is judged where one starts"


def test_ten_right_answers_pass_from_a_thread_as_from_the_main_one() -> None:
    results: list[Verdict] = []
    thread = threading.Thread(target=lambda: results.extend(judge([attempt(f"# {i}\n{RIGHT}", str(i)) for i in range(10)], CONFIG,
                                                                  Ledger())))
    thread.start()
    thread.join()
    assert [v.verdict for v in results] == [VerdictClass.PASS] * 10
