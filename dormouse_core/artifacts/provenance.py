"""Provenance: what made an artifact, kept inside the artifact."""

from enum import StrEnum

from dormouse_core.config.base import Record


class Kind(StrEnum):
    """What an artifact is; also its folder in the store."""

    CHECKPOINT = "checkpoint"  # .bin
    INFERENCE = "inference"  # .safetensors: the weights of a checkpoint alone, for decoding and serving
    TASKS = "tasks"  # .parquet
    DEMONSTRATIONS = "demonstrations"  # .parquet
    ROLLOUTS = "rollouts"  # .json naming shards
    VERDICTS = "verdicts"  # .parquet
    CYCLE_PLAN = "cycle_plan"  # .json, as all below
    CURRICULUM = "curriculum"
    FAILURE_MEMORY = "failure_memory"  # .parquet
    COLLAPSE_REPORT = "collapse_report"
    HOLDOUT_VERDICT = "holdout_verdict"
    STRATEGY_REVIEW = "strategy_review"
    PROMOTION = "promotion"
    EVAL_REPORT = "eval_report"
    EVAL_TABLE = "eval_table"  # .parquet: per-task rows of a report or a holdout verdict


class Parent(Record):
    """An artifact this one was made from."""

    role: str
    """What it was to its child: `base`, `rollouts`, `tasks`, `verdicts`, `plan`, ..."""
    kind: Kind
    identity: str


class Provenance(Record):
    """Everything but `run_id` is part of what the artifact IS; run_id and timings vary from run to run."""

    kind: Kind
    stage: str
    """The loop node or command that wrote it, e.g. `rl_checkpoint`."""
    parents: tuple[Parent, ...] = ()
    config_sha256: str
    """sha256 of the resolved configuration's canonical JSON."""
    code_version: str
    """sha256 over the sources of dormouse_core."""
    seed: int
    counters: dict[str, int] = {}
    run_id: str = ""


class Artifact(Record):
    """A handle on a file in the store: what flows between stages."""

    kind: Kind
    identity: str
    """sha256 of the canonical content: same inputs, config and seed give the same identity."""
    file_sha256: str
    """sha256 of every byte of the file: integrity."""
    path: str
    """Relative to the store's root."""
    provenance: Provenance
