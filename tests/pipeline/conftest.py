"""A project in a temporary folder, with the same instance `dormouse loop` would make there."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dormouse_pipeline.instance import Project, project_instance


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Project.at(root=tmp_path)


@pytest.fixture
def instance(project: Project) -> Iterator[dg.DagsterInstance]:
    with project_instance(project) as opened:
        yield opened
