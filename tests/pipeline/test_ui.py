"""The real UI: webserver, daemon and code server as processes, talked to through their GraphQL endpoint as the browser does."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dormouse_pipeline import lineage
from dormouse_pipeline.driver import launch_config
from dormouse_pipeline.instance import Project, project_instance
from dormouse_pipeline.jobs import BASE, CYCLE
from dormouse_pipeline.resources import Settings
from tests.pipeline.conftest import SETS, dormouse, drive, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Ui:
    """A running `dormouse ui`."""

    def __init__(self, root: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "dormouse_pipeline.cli.main", "ui", "--port", str(self.port)]
        self.log = open(root / "ui.log", "w+", encoding="utf-8")  # noqa: SIM115 - open as long as the UI is
        self.process = subprocess.Popen(command, cwd=root, env=environment(), stdout=self.log, stderr=subprocess.STDOUT)

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def wait(self) -> None:
        deadline = time.monotonic() + 200
        while "dormouse ui: http" not in self.said():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.3)

    def ask(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            value = json.load(reply)
        assert not value.get("errors"), value["errors"]
        return value["data"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose line has run one cycle of three, by the command line."""
    where = tmp_path_factory.mktemp("ui")
    drive(Project.at(root=where), 1)
    return where


@pytest.fixture(scope="module")
def ui(root: Path) -> Iterator[Ui]:
    opened = Ui(root)
    try:
        opened.wait()
        yield opened
    finally:
        if opened.process.poll() is None:
            opened.process.send_signal(signal.SIGINT)
            opened.process.wait(60)
        opened.log.close()


def test_the_ui_shows_the_nodes_and_what_the_loop_left(ui: Ui, root: Path) -> None:
    nodes = ui.ask("{ assetNodes { assetKey { path } description assetMaterializations(limit: 1) { runId partition } } }")["assetNodes"]
    found = {node["assetKey"]["path"][0]: node for node in nodes}
    assert set(found) == {*BASE, *CYCLE} and all(node["description"] for node in nodes)
    with project_instance(Project.at(root=root)) as instance:
        made = lineage.latest(instance, "promoted_checkpoint", "main.c0000")
    assert made
    shown = found["promoted_checkpoint"]["assetMaterializations"][0]
    assert (shown["runId"], shown["partition"]) == (made.run_id, "main.c0000")


def test_a_second_ui_on_the_same_project_is_refused(ui: Ui, root: Path) -> None:
    result = dormouse("ui", "--port", "3999", cwd=root)
    assert result.returncode == 1 and f"http://127.0.0.1:{ui.port}" in result.stderr


LAUNCH = """mutation Launch($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
SENSOR = """mutation Start($selector: SensorSelector!) { startSensor(sensorSelector: $selector) {
  __typename ... on PythonError { message } } }"""
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "dormouse"}


def test_a_run_launched_from_the_ui_and_the_sensor_carry_the_line_on(ui: Ui, root: Path) -> None:
    project = Project.at(root=root)
    with project_instance(project) as instance:
        instance.add_dynamic_partitions("cycle", ["main.c0001"])
    settings = Settings(preset="tiny", sets=[*SETS, "loop.line=main"])
    tags = [{"key": "dagster/partition", "value": "main.c0001"}, {"key": "dormouse/cycles", "value": "3"}]
    launched = ui.ask(LAUNCH, params={
        "selector": {**REPOSITORY, "jobName": "evolve_cycle"}, "runConfigData": launch_config(settings, quiet=False),
        "executionMetadata": {"tags": tags}, "mode": "default"})["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    started = ui.ask(SENSOR, selector={**REPOSITORY, "sensorName": "start_next_cycle"})["startSensor"]
    assert started["__typename"] == "Sensor", started
    with project_instance(project) as instance:
        deadline = time.monotonic() + 600
        while lineage.latest(instance, "promoted_checkpoint", "main.c0002") is None:
            assert time.monotonic() < deadline, [(r.status, r.tags) for r in instance.get_runs()]
            time.sleep(2)
        runs = instance.get_runs()
        assert not any(run.tags.get("dagster/partition") == "main.c0003" for run in runs)
    result = dormouse("lineage", str(project.store / _path(project)), "--json", cwd=root)
    assert json.loads(result.stdout)["complete"]
    assert all(not run.run_id for run in drive(project, 3)), "the loop finds everything the UI made"


def _path(project: Project) -> str:
    with project_instance(project) as instance:
        made = lineage.latest(instance, "rl_checkpoint", "main.c0002")
    assert made
    return made.artifact.path


def test_ctrl_c_takes_every_process_of_the_ui_down(root: Path, ui: Ui) -> None:
    ui.process.send_signal(signal.SIGINT)
    assert ui.process.wait(60) == 130 and "Traceback" not in ui.said().split("dormouse ui: http")[-1]
    deadline = time.monotonic() + 20  # Dagster's servers notice a parent that is gone at their next heartbeat
    while left := [p for p in Path("/proc").iterdir() if p.name.isdigit() and _mentions(p, str(root))]:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


def _mentions(process: Path, text: str) -> bool:
    try:
        return text in (process / "cmdline").read_text() or f"DAGSTER_HOME={text}" in (process / "environ").read_text()
    except OSError:
        return False
