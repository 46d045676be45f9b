"""Fixtures every test may use."""

import os
import warnings
from pathlib import Path

import pytest

from dormouse_core.artifacts.store import Store
from dormouse_core.ledger import Ledger

_PROVIDED = "DORMOUSE_TASKS_DIR"


@pytest.fixture(scope="session")
def tasks_dir() -> Path:
    """The folder of public task files. Without it the test is skipped with one loud line; under CI=true it fails."""
    named = os.environ.get(_PROVIDED, "")
    if named and Path(named).is_dir():
        return Path(named)
    reason = f"{_PROVIDED} {'does not name a folder: ' + named if named else 'is not set'}: tests on public task files did not run"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason}, and CI must run them")
    warnings.warn(reason, stacklevel=1)
    pytest.skip(reason)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()
