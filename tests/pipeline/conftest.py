"""A project in a temporary folder, with the same instance `dormouse loop` would make there; and one small finished line."""

import email
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from dormouse_core.ledger import Ledger
from dormouse_pipeline.driver import CycleRun, Driver
from dormouse_pipeline.instance import Project, project_instance
from dormouse_pipeline.resources import Crew, Settings

ROOT = Path(__file__).resolve().parents[2]
SETS = [f"train.data={Path(email.__file__).parent}", "train.steps=4", "train.eval_batches=1", "sft.rows_per_pool=12",
        "sft.max_epochs=2", "rl.rounds=8", "rl.ckpt_every=1", "eval.tasks_per_pool=3", "eval.bootstrap=100", "eval.samples=2"]
"""Preset tiny, smaller still: the machinery is tested here, not what it learns."""


@pytest.fixture(autouse=True)
def _no_dagster_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.at(root=tmp_path)


@pytest.fixture
def instance(project: Project) -> Iterator[dg.DagsterInstance]:
    with project_instance(project) as opened:
        yield opened


def drive(project: Project, cycles: int, sets: list[str] | None = None, line: str = "main") -> list[CycleRun]:
    """`dormouse loop` in this process, silent."""
    settings = Settings(preset="tiny", sets=[*SETS, *(sets or []), f"loop.line={line}"])
    with Crew() as crew:
        return Driver(project, settings, line, cycles, lambda line: None, lambda label, asset: Ledger(), crew).run()


@dataclass(frozen=True)
class Line:
    """A finished line of two cycles."""

    root: Path
    project: Project
    runs: list[CycleRun]


@pytest.fixture(scope="session")
def line(tmp_path_factory: pytest.TempPathFactory) -> Line:
    """Made once; tests read it, and put back what they break."""
    os.environ.pop("DAGSTER_HOME", None)
    root = tmp_path_factory.mktemp("line")
    project = Project.at(root=root)
    return Line(root, project, drive(project, 2))


def dormouse(*arguments: str, cwd: Path, timeout: float = 300.0) -> "subprocess.CompletedProcess[str]":
    """The command line as a user calls it."""
    return subprocess.run([sys.executable, "-m", "dormouse_pipeline.cli.main", *arguments], cwd=cwd, env=environment(), capture_output=True,
                          text=True, timeout=timeout, check=False)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "DORMOUSE_STORE")}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
