"""A store with a tiny SFT base, and ways to put what a cycle leaves behind into it."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.evolution import failure_memory
from dormouse_core.policy.model import build_policy
from dormouse_core.tasks.store import KEYS, tasks_to_table
from dormouse_core.tasks.task import Task

SUITE = """
[[cells]]
pool = "math"
family = "sum_of_terms"
difficulty = [0, 1, 2]
[[cells]]
pool = "code"
family = "affine_function"
difficulty = [1, 2]
"""


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """The tiny preset on a suite with several cells a pool."""
    suite = tmp_path / "cells.toml"
    suite.write_text(SUITE)
    return resolve("tiny", [f"loop.suite={suite}", f"eval.suite={suite}", "roll.prompts=10"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def made(kind: Kind) -> Provenance:
    return Provenance(kind=kind, stage="test", config_sha256="0", code_version="0", seed=1)


@pytest.fixture
def checkpoint(config: RunConfig, store: Store) -> Callable[..., Artifact]:
    """Put a checkpoint of fresh weights into the store; keyword arguments are its state."""

    def put(seed: int = 1, **state: object) -> Artifact:
        tensors = {k: v.clone() for k, v in build_policy(config.policy, seed).state_dict().items()}
        moments = {"moment": tensors["embedding"] * 0}
        return store.put_checkpoint(Checkpoint(config, tensors, moments, {"lfb_version": 0, **state}), made(Kind.CHECKPOINT))

    return put


@pytest.fixture
def record(store: Store) -> Callable[[Record, Kind], Artifact]:
    return lambda payload, kind: store.put_record(payload, made(kind))


@pytest.fixture
def memory(store: Store) -> Callable[[list[Task]], Artifact]:
    """A failure memory of tasks nobody solved."""

    def put(tasks: list[Task]) -> Artifact:
        table = store.put_table(tasks_to_table(tasks), KEYS, made(Kind.TASKS))
        rows = [{"task_id": t.id, "tasks": table.identity, "pool": t.pool.value, "family": t.family, "difficulty": t.difficulty,
                 "cycle": "main.c0000", "answers": 4, "verdict": "fail", "decided_by": "exact.number", "reason_class": "", "share": 1.0,
                 "best_score": 0.0, "step": 0, "state_digest": "d"} for t in tasks]
        return store.put_table(pa.Table.from_pylist(rows, schema=failure_memory.SCHEMA), ("task_id",), made(Kind.FAILURE_MEMORY))

    return put


def parent(artifact: Artifact, role: str) -> Parent:
    return Parent(role=role, kind=artifact.kind, identity=artifact.identity)
