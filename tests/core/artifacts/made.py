"""Small artifacts for the tests of this folder."""

import pyarrow as pa
import torch

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.config.base import Record
from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig


class Note(Record):
    text: str
    raw: bytes = b"\xff\x00"
    seconds: float = 0.0


def provenance(kind: Kind, *parents: Artifact, run_id: str = "", seed: int = 1, **counters: int) -> Provenance:
    links = tuple(Parent(role="made_from", kind=p.kind, identity=p.identity) for p in parents)
    return Provenance(kind=kind, stage="test", parents=links, config_sha256="c" * 64, code_version="v" * 64, seed=seed, counters=counters,
                      run_id=run_id)


def checkpoint(fill: float = 0.0, config: RunConfig | None = None, size: int = 4) -> Checkpoint:
    model = {"w": torch.full((size, 3), fill), "half": torch.ones(2, dtype=torch.bfloat16), "steps": torch.tensor(3)}
    model["none"] = torch.zeros(0, 2)
    return Checkpoint(config or resolve("tiny"), model, {"w.m": torch.full((size, 3), 0.5)}, {"step": 3, "curve": [[1, 2.5]]})


def table() -> pa.Table:
    return pa.table({
        "key": ["b", "a", "c"], "row": pa.array([1, 1, 0], pa.int16()), "raw": [b"x\x00", None, b""], "logs": [[0.5, -1.0], [], None],
        "ok": [True, None, False], "deep": [{"n": 1, "s": "u"}, {"n": None, "s": "v"}, None], "ms": [3.5, 1.25, float("nan")]})
