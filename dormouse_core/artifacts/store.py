"""The store: immutable, content-addressed artifacts under one folder, each with its provenance inside.

    <root>/<kind>/<identity[:16]>.<json|parquet|bin>     artifacts
    <root>/resume/<stage key>/resume.bin                  loose resume files, with `.prev.bin`
    <root>/journal/<stage key>.jsonl                      owed and done units of a stage (journal.py)

A write is atomic; a reader verifies. Writing what is there already returns what is there.
Not here: what the content means, and who may write (lock.py).
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from dormouse_core.artifacts import checkpoint as container
from dormouse_core.artifacts.atomic import write_chunks
from dormouse_core.artifacts.checkpoint import Checkpoint, Shapes, corrupt
from dormouse_core.artifacts.identity import canonical, column_hashes, identity, sha256
from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.tensorfile import file_sha256, stored_chunks
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError, Ledger

R = TypeVar("R", bound=Record)
_TABLE_KEY = b"dormouse"


class Store:
    """Artifacts under one folder. Cheap to make; holds no open files."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._seen: dict[tuple[str, int, int], Artifact] = {}

    # ---- records ---------------------------------------------------------------------------------------------------

    def put_record(self, payload: Record, provenance: Provenance, volatile: Sequence[str] = ()) -> Artifact:
        """Write a record as JSON. `volatile` names top-level fields (timings, dates) left out of the identity."""
        body: dict[str, Any] = {"identity": "", "provenance": provenance.model_dump(mode="json"), "volatile": sorted(volatile),
                "payload": payload.model_dump(mode="json")}
        body["identity"] = identity(_record_content(body), provenance)
        body["sha256"] = sha256(canonical(body))
        data = json.dumps(body, indent=1, sort_keys=True, allow_nan=False).encode()
        return self._put([data], len(data), body["identity"], "json", provenance)

    def read_record(self, source: Artifact | Path, model: type[R]) -> R:
        """The record of an artifact. Raises DormouseError on a bad file or a payload that is not a `model`."""
        data, artifact = self._load(source)
        body, _ = _decode_record(data, artifact.path)
        try:
            return model.model_validate(body["payload"])
        except ValidationError as error:
            lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:4])
            raise DormouseError(f"{artifact.path} holds a {artifact.kind}, not a {model.__name__} this version reads ({lines}). "
                                "Run the stage that wrote it again.") from error

    # ---- tables ----------------------------------------------------------------------------------------------------

    def put_table(self, table: pa.Table, keys: Sequence[str], provenance: Provenance, volatile: Sequence[str] = ()) -> Artifact:
        """Write a table as parquet, rows in key order. `volatile` columns are kept but take no part in the identity.

        Raises ValueError when two rows share their keys (the order, and so the identity, would be undefined).
        """
        if keys:
            if table.group_by(list(keys)).aggregate([]).num_rows != table.num_rows:
                raise ValueError(f"rows share their keys {list(keys)}: they do not identify a row")
            table = table.sort_by([(key, "ascending") for key in keys])
        table = table.replace_schema_metadata(None)
        hashes = column_hashes(table)
        header: dict[str, Any] = {"provenance": provenance.model_dump(mode="json"), "keys": list(keys), "volatile": sorted(volatile)}
        header["identity"] = identity(_table_content(hashes, header), provenance)
        header["sha256"] = sha256(canonical([header, hashes]))
        sink = BytesIO()
        pq.write_table(table.replace_schema_metadata({_TABLE_KEY: canonical(header)}), sink, compression="zstd")
        return self._put([sink.getvalue()], sink.tell(), header["identity"], "parquet", provenance)

    def read_table(self, source: Artifact | Path) -> pa.Table:
        """The rows of an artifact, in key order. Raises DormouseError on a bad file."""
        data, artifact = self._load(source)
        return _read_parquet(data, artifact.path).replace_schema_metadata(None)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def put_checkpoint(self, checkpoint: Checkpoint, provenance: Provenance) -> Artifact:
        plan = container.planned(checkpoint, provenance)
        return self._put(plan.chunks, plan.size, plan.identity, "bin", provenance)

    def read_checkpoint(self, source: Artifact | Path, expected: Callable[[RunConfig], Shapes] | None = None) -> Checkpoint:
        """The checkpoint of an artifact or file. `expected` gives the tensors its own configuration asks for; a model with other
        names, shapes or dtypes is refused. Raises DormouseError on a bad file."""
        path = self.path(source) if isinstance(source, Artifact) else Path(source)
        with _opened(path) as file:
            if isinstance(source, Artifact) and file_sha256(file) != source.file_sha256:
                raise _not_as_written(path)
            checkpoint, _, _ = container.read(file, source.path if isinstance(source, Artifact) else str(path))
        if expected is not None:
            container.check_tensors(checkpoint.model, expected(checkpoint.config), str(path))
        return checkpoint

    # ---- handles ---------------------------------------------------------------------------------------------------

    def path(self, artifact: Artifact) -> Path:
        """Where an artifact's file is."""
        return self.root / artifact.path

    def open(self, path: Path) -> Artifact:
        """The handle of a file, from what stands inside it. Raises DormouseError on a missing, truncated, corrupt or foreign file."""
        path = Path(path)
        with _opened(path) as file:
            stat = os.fstat(file.fileno())
            seen = (str(path), stat.st_mtime_ns, stat.st_size)
            if seen in self._seen:
                return self._seen[seen]
            provenance, name = _verify(file, str(path))
            inside = path.resolve().is_relative_to(self.root.resolve())
            relative = path.resolve().relative_to(self.root.resolve()) if inside else path.resolve()
            self._seen[seen] = Artifact(kind=provenance.kind, identity=name, file_sha256=file_sha256(file), path=relative.as_posix(),
                                        provenance=provenance)
        return self._seen[seen]

    def find(self, kind: Kind, name: str) -> Artifact | None:
        """The stored artifact of this kind and identity, verified; None when the store has none."""
        for path in sorted((self.root / kind.value).glob(f"{name[:16]}.*")):
            artifact = self.open(path)
            if artifact.identity == name and artifact.kind is kind:
                return artifact
        return None

    def export(self, artifact: Artifact, out: Path) -> Path:
        """Copy an artifact to a path of the user's choice; what stood there stays as `<name>.prev<suffix>`. Returns `out`."""
        out, path = Path(out), self.path(artifact)
        with _opened(path) as file:
            if file_sha256(file) != artifact.file_sha256:
                raise _not_as_written(path)
            size = file.seek(0, 2)
            write_chunks(out, stored_chunks(file, 0, size), size, previous=previous_name(out))
        return out

    def adopt(self, path: Path) -> Artifact:
        """An artifact's file from anywhere, verified, inside the store from now on (stages name their parents by identity)."""
        artifact = self.open(path)
        held = self.find(artifact.kind, artifact.identity)
        if held is not None:
            return held
        with _opened(Path(path)) as file:
            first, size = file.read(4), file.seek(0, 2)
            extension = "parquet" if first == b"PAR1" else "json" if first[:1] == b"{" else "bin"
            return self._put(stored_chunks(file, 0, size), size, artifact.identity, extension, artifact.provenance)

    # ---- resume files ----------------------------------------------------------------------------------------------

    def save_resume(self, stage_key: str, checkpoint: Checkpoint, provenance: Provenance) -> None:
        """Write the resume file of a stage; the save before stays as `.prev.bin`."""
        plan, path = container.planned(checkpoint, provenance), self.resume_path(stage_key)
        write_chunks(path, plan.chunks, plan.size, previous=previous_name(path))

    def load_resume(self, stage_key: str, ledger: Ledger) -> Checkpoint | None:
        """The last good resume file of a stage, or None. A damaged one is said aloud and the save before it is used.

        Raises DormouseError when both are damaged.
        """
        path = self.resume_path(stage_key)
        if not path.exists():
            return None
        try:
            return self._resumed(path)
        except DormouseError as error:
            before = previous_name(path)
            if not before.exists():
                raise
            ledger.loud(f"resume: {error} Going on from {before.name}, the save before it.")
            ledger.count("resume_from_previous")
            return self._resumed(before)

    def drop_resume(self, stage_key: str) -> None:
        """Remove a finished stage's resume files."""
        for path in (self.resume_path(stage_key), previous_name(self.resume_path(stage_key))):
            path.unlink(missing_ok=True)

    def resume_path(self, stage_key: str) -> Path:
        """Where a stage's resume file stands, or would."""
        return self.root / "resume" / stage_key / "resume.bin"

    # ---- inside ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _resumed(path: Path) -> Checkpoint:
        with _opened(path) as file:
            return container.read(file, str(path))[0]

    def _put(self, chunks: Iterable[bytes | memoryview], size: int, name: str, extension: str, provenance: Provenance) -> Artifact:
        path = self.root / provenance.kind.value / f"{name[:16]}.{extension}"
        if path.exists():
            try:
                standing = self.open(path)
            except DormouseError:
                standing = None  # damaged: written again below
            if standing is not None and standing.identity == name:
                return standing
            if standing is not None:
                raise DormouseError(f"{path} already holds another identity that shares its first 16 digits; move it to another store.")
        written = write_chunks(path, chunks, size)
        return Artifact(kind=provenance.kind, identity=name, file_sha256=written, path=path.relative_to(self.root).as_posix(),
                        provenance=provenance)

    def _load(self, source: Artifact | Path) -> tuple[bytes, Artifact]:
        """The verified bytes of a handle (against its file hash) or of a path (against what stands inside)."""
        if not isinstance(source, Artifact):
            artifact = self.open(source)
            return _bytes_of(Path(source)), artifact
        data = _bytes_of(self.path(source))
        if _file_hash(data) != source.file_sha256:
            raise _not_as_written(self.path(source))
        return data, source


def previous_name(path: Path) -> Path:
    """`sft.bin` -> `sft.prev.bin`."""
    return path.with_name(f"{path.stem}.prev{path.suffix}")


def _file_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DormouseError(f"cannot read {path}: {error.strerror}. Check the path, or run the stage that writes it.") from error


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; only the opening is a user's error
    except OSError as error:
        raise DormouseError(f"cannot read {path}: {error.strerror}. Check the path, or run the stage that writes it.") from error
    with file:
        yield file


def _not_as_written(path: Path) -> DormouseError:
    return corrupt(str(path), f"its bytes are not the {path.stat().st_size:,} that were written")


def _verify(file: BufferedIOBase, where: str) -> tuple[Provenance, str]:
    """Provenance and identity of any artifact file; which of the three formats it is, its first bytes say."""
    first = file.read(4)
    if not first:
        raise corrupt(where, "it is empty")
    if first != b"PAR1" and first[:1] != b"{":
        opened = container.open_head(file, where)
        container.verify(file, opened)
        return opened.provenance, opened.identity
    file.seek(0)
    data = file.read()
    if first == b"PAR1":
        header = _table_header(_read_parquet(data, where), where)
        return Provenance.model_validate(header["provenance"]), header["identity"]
    body, provenance = _decode_record(data, where)
    return provenance, body["identity"]


def _record_content(body: dict[str, Any]) -> str:
    return sha256(canonical({k: v for k, v in body["payload"].items() if k not in body["volatile"]}))


def _decode_record(data: bytes, where: str) -> tuple[dict[str, Any], Provenance]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise corrupt(where, f"not readable JSON ({error})") from error
    try:
        claimed = body.pop("sha256")
        provenance = Provenance.model_validate(body["provenance"])
        whole, content = sha256(canonical(body)), _record_content(body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DormouseError(f"{where} is not a dormouse record: it has no provenance of ours inside.") from error
    if claimed != whole or body.get("identity") != identity(content, provenance):
        raise corrupt(where, "its content does not match its own hash")
    return body, provenance


def _table_content(hashes: dict[str, str], header: dict[str, Any]) -> str:
    return sha256(canonical({n: h for n, h in hashes.items() if n not in header["volatile"]}), canonical(header["keys"]))


def _read_parquet(data: bytes, where: str) -> pa.Table:
    try:
        return pq.read_table(BytesIO(data))
    except (pa.ArrowInvalid, OSError) as error:
        raise corrupt(where, f"not readable parquet ({str(error).splitlines()[0]})") from error


def _table_header(table: pa.Table, where: str) -> dict[str, Any]:
    raw = (table.schema.metadata or {}).get(_TABLE_KEY)
    if raw is None:
        raise DormouseError(f"{where} is not a dormouse table: it has no provenance of ours inside.")
    try:
        header: dict[str, Any] = json.loads(raw)
        claimed = header.pop("sha256")
        provenance = Provenance.model_validate(header["provenance"])
        hashes = column_hashes(table)
        whole, name = sha256(canonical([header, hashes])), identity(_table_content(hashes, header), provenance)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise corrupt(where, "its header is not readable") from error
    if (claimed, header.get("identity")) != (whole, name):
        raise corrupt(where, "its rows do not match its own hash")
    return header
