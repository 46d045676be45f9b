"""Shards: the append-only files of rollouts. Two parquet tables and one commit record, written last.

    <root>/rollouts/<cycle>/<key[:16]>.trajectories.parquet
    <root>/rollouts/<cycle>/<key[:16]>.steps.parquet
    <root>/rollouts/<cycle>/<key[:16]>.shard.json            identities, file hashes, counts

The slot names what is owed (weights, round, tasks, rows, settings), the key adds the code that rolls it, so a stage that died
finds what it finished and changed code starts afresh beside it. A shard without a whole commit record, or whose files are not
the ones it names, is owed again and never read; a finished one is never written again, timings and all.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from dormouse_core.artifacts.atomic import write_atomic
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.identity import canonical, column_hashes, sha256
from dormouse_core.artifacts.provenance import Kind
from dormouse_core.config.base import Record
from dormouse_core.ledger import DormouseError
from dormouse_core.rollouts.schema import VOLATILE, from_tables, to_tables
from dormouse_core.rollouts.trajectory import Trajectory

_HEADER = b"dormouse"


class TableFile(Record):
    """One parquet file of a shard."""

    file: str
    """Name beside the commit record."""
    sha256: str
    rows: int
    identity: str
    """Canonical hash of the rows without what varies from run to run."""


class ShardHead(Record):
    """What is known of a shard before it is rolled."""

    key: str
    slot: str
    cycle: str
    round: int
    policy: str
    """Identity of the weights that sample every trajectory of it."""
    lfb_version: int
    code_version: str
    tasks: tuple[str, ...]


class ShardRecord(ShardHead):
    """The commit record: this shard is whole."""

    trajectories: TableFile
    steps: TableFile
    counts: dict[str, int]
    """What was counted while it was rolled; a resumed stage adds it up again."""

    @property
    def identity(self) -> str:
        """Of the content: equal draws by equal weights give equal shards, whoever rolled them and how long it took."""
        return sha256(canonical([self.cycle, self.round, self.policy, self.lfb_version, self.trajectories.identity, self.steps.identity]))


def folder(root: Path, cycle: str) -> Path:
    """Where the shards of a cycle stand."""
    return Path(root) / Kind.ROLLOUTS.value / cycle


def commit_path(root: Path, cycle: str, key: str) -> Path:
    return folder(root, cycle) / f"{key[:16]}.shard.json"


def write_shard(root: Path, head: ShardHead, trajectories: Sequence[Trajectory], counts: dict[str, int]) -> ShardRecord:
    """Write the tables, then the commit record. Returns what stands if the shard is already whole. Raises DormouseError when the
    disk is full: the shard is then owed."""
    standing = find_shard(root, head.cycle, head.key)
    if standing is not None:
        return standing
    files = {name: _write_table(root, head, name, table) for name, table in to_tables(trajectories).items()}
    record = ShardRecord(**head.model_dump(), counts=dict(sorted(counts.items())), **files)
    body = record.model_dump(mode="json")
    write_atomic(commit_path(root, head.cycle, head.key), json.dumps(body | {"sha256": sha256(canonical(body))}, indent=1).encode())
    return record


def find_shard(root: Path, cycle: str, key: str) -> ShardRecord | None:
    """The commit record of a whole shard; None when it is owed (absent, torn, of another key, or with files that changed)."""
    record = _read_record(commit_path(root, cycle, key))
    if record is None or record.key != key:
        return None
    try:
        whole = all(_hash((folder(root, cycle) / f.file).read_bytes()) == f.sha256 for f in (record.trajectories, record.steps))
    except OSError:
        return None
    return record if whole else None


def committed(root: Path, cycle: str | None = None) -> list[ShardRecord]:
    """Commit records of every whole shard of a cycle (None: of all), in (cycle, round, key) order. Files are not hashed here.

    Where two versions of the code rolled the same slot, the present version's shard is given, else the one written last.
    """
    found: dict[tuple[str, str], tuple[bool, int, ShardRecord]] = {}
    for path in sorted((Path(root) / Kind.ROLLOUTS.value).glob(f"{cycle or '*'}/[!.]*.shard.json")):
        record = _read_record(path)
        if record is not None:
            ranked = (record.code_version == code_version(), path.stat().st_mtime_ns, record)
            place = (record.cycle, record.slot)
            found[place] = max(found.get(place, ranked), ranked, key=lambda r: r[:2])
    return sorted((record for _, _, record in found.values()), key=lambda r: (r.cycle, r.round, r.key))


def read_shards(root: Path, records: Iterable[ShardRecord]) -> list[Trajectory]:
    """Trajectories of the shards named, roots before forks within a task, in the order they were asked for.

    Raises DormouseError naming a file that is missing or not the one that was written.
    """
    out: list[Trajectory] = []
    for record in records:
        tables = [_read_table(folder(root, record.cycle) / f.file, f) for f in (record.trajectories, record.steps)]
        out += in_order(from_tables(*tables), record.tasks)
    return out


def in_order(trajectories: Iterable[Trajectory], tasks: Sequence[str]) -> list[Trajectory]:
    """Canonical order: tasks as asked for, rows ascending, a row before its forks."""
    place = {task: i for i, task in enumerate(tasks)}
    return sorted(trajectories, key=lambda t: (place[t.task_id], t.row, t.fork_step, t.id))


def _write_table(root: Path, head: ShardHead, name: str, table: pa.Table) -> TableFile:
    hashes = column_hashes(table)
    identity = sha256(canonical({n: h for n, h in hashes.items() if n not in VOLATILE}))
    sink = io.BytesIO()
    inside = canonical({**head.model_dump(mode="json"), "table": name, "identity": identity})
    pq.write_table(table.replace_schema_metadata({_HEADER: inside}), sink, compression="zstd", use_dictionary=False, write_statistics=False)
    path = folder(root, head.cycle) / f"{head.key[:16]}.{name}.parquet"
    write_atomic(path, sink.getvalue())
    return TableFile(file=path.name, sha256=_hash(sink.getvalue()), rows=table.num_rows, identity=identity)


def _read_table(path: Path, expected: TableFile) -> pa.Table:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DormouseError(f"cannot read the rollout shard {path}: {error.strerror}. Roll the cycle again: the stage redoes what is "
                            "missing and keeps the rest.") from error
    if _hash(data) != expected.sha256:
        raise DormouseError(f"the rollout shard {path} is not the file that was written ({len(data):,} bytes, sha256 {_hash(data)[:16]}, "
                            f"committed {expected.sha256[:16]}). Restore it, or delete it and roll the cycle again.")
    return pq.read_table(io.BytesIO(data))


def _read_record(path: Path) -> ShardRecord | None:
    """A commit record that is whole by its own hash, else None."""
    try:
        body = json.loads(path.read_bytes())
        claimed = body.pop("sha256")
        record = ShardRecord.model_validate(body)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, ValidationError):
        return None
    return record if claimed == sha256(canonical(record.model_dump(mode="json"))) else None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
