"""Where a project keeps its artifacts and its Dagster event log, and the instance on it.

A store and its event log belong together. The project's own store is `store/`, its log `.dormouse/dagster` (the folder that
`dagster dev` finds through ./dagster.yaml); any other store carries its log inside itself. No environment variable is needed;
a DAGSTER_HOME that the user has set is respected, as every Dagster tool does.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.instance.ref import InstanceRef

_UNCAPTURED = {"compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}}
_PACKAGED = Path(__file__).resolve().parents[1] / "dagster.yaml"


@dataclass(frozen=True)
class Project:
    """The two folders of a project, absolute."""

    store: Path
    home: Path

    @classmethod
    def at(cls, store: Path | str | None = None, root: Path | str = ".") -> "Project":
        """The project of folder `root`, or of a store elsewhere."""
        base = Path(root).resolve()
        own = base / "store"
        chosen = own if store is None else (base / store).resolve()
        return cls(chosen, base / ".dormouse" / "dagster" if chosen == own else chosen / ".dormouse" / "dagster")


def instance_config(home: Path) -> dict[str, Any]:
    """The project's dagster.yaml with every folder made absolute under `home`."""
    config: dict[str, Any] = yaml.safe_load(_PACKAGED.read_text()) if _PACKAGED.exists() else {"telemetry": {"enabled": False}}
    config["storage"] = {"sqlite": {"base_dir": str(home)}}
    for section, folder in (("local_artifact_storage", home), ("compute_logs", home / "logs")):
        if section in config:
            config[section]["config"]["base_dir"] = str(folder)
    return config


def write_instance_config(home: Path) -> Path:
    """Make `home` a DAGSTER_HOME; written only when its content changes. Returns the file."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / "dagster.yaml"
    text = yaml.safe_dump(instance_config(home), sort_keys=True)
    if not path.exists() or path.read_text() != text:
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_text(text)
        scratch.replace(path)
    return path


def project_instance(project: Project, in_foreground: bool = False) -> dg.DagsterInstance:
    """The instance of this project: the one `dormouse ui` shows and `dormouse loop` writes. A context manager.

    A run in the foreground keeps the terminal: Dagster's capture of standard output would take it from every step, and its two
    helper processes a stream would answer Ctrl-C with traces of their own.
    """
    if os.environ.get("DAGSTER_HOME"):
        return dg.DagsterInstance.get()
    write_instance_config(project.home)
    return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(project.home), overrides=_UNCAPTURED if in_foreground else None))
