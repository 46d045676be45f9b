"""Trajectories as two flat tables, `trajectories` and `steps`, and back without loss.

Flat, because nested lists made a group-by eight times slower. Per-byte arrays are float32 blobs (little-endian), bytes are
binary columns; everything else is a plain column a query can filter on. Not here: files (shards).
"""

import json
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dormouse_core.envs.environment import StopReason
from dormouse_core.rollouts.trajectory import Start, Step, Trajectory

TRAJECTORIES = pa.schema([
    ("id", pa.string()), ("cycle", pa.string()), ("round", pa.int32()), ("task_id", pa.string()), ("pool", pa.string()),
    ("cell", pa.string()), ("verifier_kind", pa.string()), ("group", pa.string()), ("row", pa.int32()), ("start", pa.string()),
    ("parent_id", pa.string()), ("fork_step", pa.int32()), ("seed", pa.int64()), ("policy", pa.string()), ("lfb_version", pa.int32()),
    ("temperature", pa.float64()), ("prompt", pa.binary()), ("stop", pa.string()), ("probe", pa.bool_()), ("n_steps", pa.int32()),
    ("tokens", pa.int32()), ("own_tokens", pa.int32()), ("tool_calls", pa.int32()), ("verifier_calls", pa.int32()),
    ("fork_count", pa.int32()), ("div_gate_fired", pa.int32()), ("extra", pa.string()),
])
STEPS = pa.schema([
    ("trajectory_id", pa.string()), ("cycle", pa.string()), ("round", pa.int32()), ("step", pa.int32()), ("replayed", pa.bool_()),
    ("action_bytes", pa.binary()), ("ended", pa.bool_()), ("parsed", pa.string()), ("observation", pa.binary()),
    ("obs_digest", pa.string()), ("state_digest", pa.string()), ("tool", pa.string()), ("tool_ok", pa.bool_()), ("tokens", pa.int32()),
    ("verifier_calls", pa.int32()), ("log_probs", pa.binary()), ("entropies", pa.binary()), ("log_prob", pa.float64()),
    ("entropy", pa.float64()), ("reward", pa.float64()), ("policy_ms", pa.float64()), ("env_ms", pa.float64()),
])
KEYS = {"trajectories": ("id",), "steps": ("trajectory_id", "step")}
VOLATILE = frozenset({"policy_ms", "env_ms"})
"""Columns that vary from run to run: stored, never part of an identity."""


def to_tables(trajectories: Sequence[Trajectory]) -> dict[str, pa.Table]:
    """{"trajectories": ..., "steps": ...}, rows in key order."""
    ordered = sorted(trajectories, key=lambda t: t.id)
    rows = [(t, s) for t in ordered for s in t.steps]
    return {
        "trajectories": _table(TRAJECTORIES, {
            **{name: [getattr(t, name) for t in ordered] for name in _PLAIN_TRAJECTORY},
            "n_steps": [len(t.steps) for t in ordered],
            "own_tokens": [sum(s.tokens for s in t.sampled_steps) for t in ordered],
            "extra": [json.dumps(t.extra, sort_keys=True, separators=(",", ":"), allow_nan=False) for t in ordered],
        }),
        "steps": _table(STEPS, {
            **{name: [getattr(s, name) for _, s in rows] for name in _PLAIN_STEP},
            **{name: [getattr(t, name) for t, _ in rows] for name in ("cycle", "round")},
            "trajectory_id": [t.id for t, _ in rows],
            "replayed": [s.step < t.fork_step for t, s in rows],
            "verifier_calls": [0] * len(rows),
            "log_probs": [_blob(s.log_probs) for _, s in rows],
            "entropies": [_blob(s.entropies) for _, s in rows],
            "log_prob": [float(s.log_probs.sum(dtype=np.float64)) for _, s in rows],
            "entropy": [float(s.entropies.sum(dtype=np.float64)) for _, s in rows],
        }),
    }


def from_tables(trajectories: pa.Table, steps: pa.Table) -> list[Trajectory]:
    """Inverse of `to_tables`, in table order. Raises ValueError where the tables do not belong together."""
    of: dict[str, list[Step]] = defaultdict(list)
    columns = steps.select([*_PLAIN_STEP_STORED, "trajectory_id", "log_probs", "entropies"]).to_pylist()
    for row in sorted(columns, key=lambda r: (r["trajectory_id"], r["step"])):
        owner, log_probs, entropies = row.pop("trajectory_id"), row.pop("log_probs"), row.pop("entropies")
        of[owner].append(Step(**row, log_probs=_array(log_probs), entropies=_array(entropies)))
    out = []
    for row in trajectories.to_pylist():
        own = tuple(of.pop(row["id"], ()))
        if len(own) != row["n_steps"]:
            raise ValueError(f"trajectory {row['id'][:16]} has {len(own)} step rows, not {row['n_steps']}")
        out.append(Trajectory(**{name: row[name] for name in _PLAIN_TRAJECTORY_STORED} | {
            "start": Start(row["start"]), "stop": StopReason(row["stop"]), "extra": json.loads(row["extra"]), "steps": own}))
    if of:
        raise ValueError(f"{len(of)} trajectories have steps and no row of their own, {next(iter(of))[:16]} among them")
    return out


_DERIVED_TRAJECTORY = frozenset({"n_steps", "own_tokens", "extra"})
_DERIVED_STEP = frozenset({
    "trajectory_id", "cycle", "round", "replayed", "verifier_calls", "log_probs", "entropies", "log_prob", "entropy",
})
_PLAIN_TRAJECTORY = [n for n in TRAJECTORIES.names if n not in _DERIVED_TRAJECTORY]
_PLAIN_TRAJECTORY_STORED = [n for n in _PLAIN_TRAJECTORY if n not in ("tokens", "tool_calls", "start", "stop")]
_PLAIN_STEP = [n for n in STEPS.names if n not in _DERIVED_STEP]
_PLAIN_STEP_STORED = [n for n in _PLAIN_STEP if n != "tokens"]


def _table(schema: pa.Schema, columns: dict[str, list[object]]) -> pa.Table:
    arrays = [pa.array([str(v) for v in columns[f.name]] if pa.types.is_string(f.type) else columns[f.name], f.type) for f in schema]
    return pa.table(arrays, schema=schema)


def _blob(values: np.ndarray) -> bytes:
    return values.astype("<f4", copy=False).tobytes()


def _array(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, dtype="<f4").astype(np.float32)
