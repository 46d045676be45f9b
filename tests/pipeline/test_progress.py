"""Progress: rates and time left, lines of a log, and the live line of a terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dormouse_pipeline.cli.progress import Meter, Throttled, clock, line_of, rate_text
from tests.pipeline.conftest import environment


def test_a_meter_reports_rate_and_the_line_time_left() -> None:
    now = [0.0]
    meter = Meter(lambda: now[0])
    assert meter.update(0) is None
    now[0] = 2.0
    rate = meter.update(100)
    assert rate == 50.0
    line = line_of("rollouts", 100, 400, "trajectories", rate, {"lanes": 0.98})
    assert line == "rollouts  100/400 trajectories  50/s  lanes 0.98  ~0:06 left"


def test_a_log_gets_a_line_every_few_seconds_and_the_last_one() -> None:
    now, said = [0.0], list[str]()
    shown = Throttled(said.append, 5.0, now=lambda: now[0])
    for step in range(13):
        now[0] = float(step)
        shown("rl", step, 12, "rounds")
    assert [line.split()[1] for line in said] == ["5/12", "10/12", "12/12"]


def test_passes_of_a_stage_are_rated_each_by_itself_and_short_ones_say_nothing_of_their_own() -> None:
    now, said = [0.0], list[str]()
    shown = Throttled(said.append, 5.0, now=lambda: now[0])
    for first in range(21):  # passes of a second, whose reports come together at the end
        for done, at in ((64, 0.9), (128, 0.9001)):
            now[0] = first + at
            shown("rollouts", done, 128, "trajectories")
    assert len(said) == 20 // 5
    assert all(60 < float(line.split()[3].removesuffix("/s")) < 150 for line in said)


_INSIDE_A_STEP = """
import os
from dormouse_pipeline.cli.progress import Reporter
with Reporter() as reporter:
    log = os.open("log", os.O_WRONLY | os.O_CREAT)
    terminal = os.dup(2)
    os.dup2(log, 2)  # as Dagster does for the time of a step
    reporter.ledger("base").progress("train", 1, 2, "step")
    reporter.say("train is half done")
    reporter.say("train ended")
    os.dup2(terminal, 2)
"""


def test_on_a_terminal_the_live_line_stands_while_dagster_has_standard_error_redirected(tmp_path: Path) -> None:
    outer, inner = os.openpty()
    with open(outer, "rb", buffering=0) as screen:
        ran = subprocess.run([sys.executable, "-c", _INSIDE_A_STEP], cwd=tmp_path, env=environment() | {"TERM": "xterm"}, stdin=inner,
                             stdout=inner, stderr=inner, timeout=60)
        os.close(inner)
        shown = screen.read(65536).decode()
    assert ran.returncode == 0, shown
    assert "1/2 step" in shown and "\r\x1b[2Ktrain ended\r\n" in shown, shown
    assert not (tmp_path / "log").read_text()


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0:00"), (61, "1:01"), (3725, "1:02:05")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(0.123, "0.12/s"), (412.4, "412/s"), (12345, "12.3k/s"), (3.2e6, "3.2M/s")])
def test_rate_text(rate: float, text: str) -> None:
    assert rate_text(rate) == text
