"""`dormouse ui`: Dagster's webserver and daemon on this machine's loopback, over the project's own event log."""

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from dormouse_core.ledger import DormouseError
from dormouse_pipeline.cli.options import StorePath, resumable
from dormouse_pipeline.definitions import STORE_VARIABLE
from dormouse_pipeline.instance import Project, project_instance, write_instance_config
from dormouse_pipeline.partitions import CycleKey, cycles

HOST = "127.0.0.1"
START_SECONDS, STOP_SECONDS = 180.0, 20.0
_PR_SET_PDEATHSIG = 1


@resumable("The UI is down; `dormouse ui` starts it again.")
def ui(port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 3000, store: StorePath = None) -> None:
    """Serve the Dagster UI of this project until Ctrl-C.

    It shows what `dormouse loop` wrote and drives the same assets: materialise the job `base`, then `evolve_cycle` for
    `main.c0000`, and switch the sensor `start_next_cycle` on to let the line go on.
    """
    project = Project.at(store)
    say = Console(stderr=True, highlight=False, soft_wrap=True)
    with only_one(project, port):
        prepare(project)
        child = start(project, port)
        try:
            wait_until_up(child, port)
            say.print(f"dormouse ui: http://{HOST}:{port}  (store {project.store}; Ctrl-C stops it)", markup=False)
            code = child.wait()
        finally:
            stop(child)
    raise DormouseError(f"the UI ended by itself (exit code {code}). What it said is above; `dormouse ui --port {port + 1}` tries another "
                        "port.")


@contextmanager
def only_one(project: Project, port: int) -> Iterator[None]:
    """Refuse a second UI on one event log (two daemons would start every run twice) and a port in use."""
    project.home.mkdir(parents=True, exist_ok=True)
    with open(project.home / "ui.lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise DormouseError(f"a UI of this project is up already: {file.read().strip()}. Open that one, or stop it first.") from error
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise DormouseError(f"port {port} is in use; choose another with `dormouse ui --port {port + 1}`.") from error
        file.truncate(0)
        file.write(f"http://{HOST}:{port} (pid {os.getpid()})\n")
        file.flush()
        yield


def prepare(project: Project) -> None:
    """Instance file, workspace file, and a first cycle to materialise on a new project."""
    write_instance_config(project.home)
    module = {"module_name": "dormouse_pipeline.definitions", "location_name": "dormouse"}
    (project.home / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [{"python_module": module}]}))
    with project_instance(project) as instance:
        if not instance.get_dynamic_partitions(str(cycles.name)):
            instance.add_dynamic_partitions(str(cycles.name), [str(CycleKey("main", 0))])


def start(project: Project, port: int) -> "subprocess.Popen[bytes]":
    """`dagster dev` in its own process group. It stops when this process dies, however it dies."""
    environment = os.environ | {"DAGSTER_HOME": os.environ.get("DAGSTER_HOME", str(project.home)), STORE_VARIABLE: str(project.store)}
    command = [sys.executable, "-W", "ignore:Function `dev_command`", "-m", "dagster", "dev", "-h", HOST, "-p", str(port),
               "-w", str(project.home / "workspace.yaml"), "--log-level", "warning", "--code-server-log-level", "warning"]
    return subprocess.Popen(command, env=environment, cwd=Path.cwd(), start_new_session=True, preexec_fn=_own_signals)


def _own_signals() -> None:
    """In the child: default handlers (a shell's background job ignores SIGINT, and Dagster copies that), and die with the parent."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_until_up(child: "subprocess.Popen[bytes]", port: int) -> None:
    """Until the webserver answers. Raises DormouseError when it ends or does not answer in time."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise DormouseError(f"the UI ended while starting (exit code {child.returncode}); what it said is above.")
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/server_info", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    raise DormouseError(f"the UI did not answer on port {port} within {START_SECONDS:.0f} s; what it said is above.")


def stop(child: "subprocess.Popen[bytes]") -> None:
    """SIGINT, so Dagster takes its webserver, daemon and code server down; SIGKILL to the group when it does not."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
