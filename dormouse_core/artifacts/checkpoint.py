"""The checkpoint container: one `.bin` of safetensors bytes, with configuration, provenance and state in its header.

Tensors are named `model/...` and `optimizer/...`. Never pickle: loading runs no code. The header is one JSON value under one
metadata key, so equal checkpoints are equal files. Writing and reading take no memory beside the tensors themselves.
Not here: paths (store), the format of the bytes (tensorfile), what shapes a configuration asks for (policy; `check_tensors` takes
them).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BufferedIOBase, BytesIO
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from dormouse_core.artifacts.identity import canonical, config_content, decisive, identity, sha256
from dormouse_core.artifacts.provenance import Provenance
from dormouse_core.artifacts.tensorfile import (
    Incomplete,
    Table,
    file_chunks,
    layout,
    raw_chunks,
    read_table,
    read_tensor,
    stored_chunks,
)
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""name -> (shape, dtype), as a freshly built policy has them."""

_KEY = "dormouse"
_FORMAT = 1


@dataclass
class Checkpoint:
    """Everything needed to go on: a run, not only a model."""

    config: RunConfig
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    """Moments; empty in checkpoints that are only read from."""
    state: dict[str, Any] = field(default_factory=dict)
    """JSON values: step, data position, lfb_version, ... Deterministic ones only: it is part of the identity."""


def weights_identity(model: Mapping[str, Tensor]) -> str:
    """sha256 over sorted (name, dtype, shape, bytes): names the weights that sampled a trajectory, whatever file they are in."""
    digest = hashlib.sha256()
    for name in sorted(model):
        tensor = model[name]
        _feed(digest, name, tensor.dtype, tuple(tensor.shape), raw_chunks(tensor), tensor.numel() * tensor.element_size())
    return digest.hexdigest()


def check_tensors(model: Mapping[str, Tensor], expected: Shapes, where: str) -> None:
    """Refuse a model whose tensors are not exactly the expected names, shapes and dtypes. Raises DormouseError naming them."""
    wrong = [f"{name}: missing" for name in expected if name not in model]
    wrong += [f"{name}: unknown" for name in model if name not in expected]
    for name, tensor in model.items():
        if name in expected and (tuple(tensor.shape), tensor.dtype) != expected[name]:
            shape, dtype = expected[name]
            wrong.append(f"{name}: {list(tensor.shape)} {tensor.dtype} in the file, {list(shape)} {dtype} by its configuration")
    if wrong:
        shown = "\n  ".join(wrong[:8] + ([f"... and {len(wrong) - 8} more"] if len(wrong) > 8 else []))
        raise DormouseError(f"{where}: the tensors do not fit the configuration in the file's own header:\n  {shown}\n"
                            "The file was edited or written by another version; use the checkpoint it was made from, or train again.")


@dataclass(frozen=True, slots=True)
class Planned:
    """A checkpoint file about to be written: nothing of its tensors is copied."""

    identity: str
    size: int
    """Bytes of the file."""
    chunks: Iterable[bytes | memoryview]
    """Its bytes in order, once."""


def planned(checkpoint: Checkpoint, provenance: Provenance) -> Planned:
    """The file of a checkpoint. The tensors are read twice: now for the identity, and when the chunks are drawn."""
    tensors = _named(checkpoint)
    content = sha256(weights_identity(tensors).encode(), canonical(config_content(checkpoint.config)), canonical(checkpoint.state))
    header = {
        "format": _FORMAT, "identity": identity(content, provenance), "config": checkpoint.config.model_dump(mode="json"),
        "state": checkpoint.state, "provenance": provenance.model_dump(mode="json"),
    }
    header["sha256"] = sha256(canonical(header))
    head, order, size = layout(tensors, {_KEY: canonical(header).decode()})
    return Planned(str(header["identity"]), size, file_chunks(head, order, tensors))


def encode(checkpoint: Checkpoint, provenance: Provenance) -> tuple[bytes, str]:
    """Checkpoint -> (file bytes, identity), for what is small enough to hold twice."""
    plan = planned(checkpoint, provenance)
    return b"".join(plan.chunks), plan.identity


@dataclass(frozen=True, slots=True)
class Opened:
    """The verified head of a checkpoint file."""

    table: Table
    header: Mapping[str, Any]
    config: RunConfig
    provenance: Provenance
    where: str

    @property
    def identity(self) -> str:
        return str(self.header["identity"])


def open_head(file: BufferedIOBase, where: str) -> Opened:
    """What the head of a file says. Raises DormouseError on a truncated, corrupt or foreign file, and on a configuration this
    version does not know."""
    try:
        table = read_table(file)
        header = json.loads(table.metadata[_KEY])
        claimed = header.pop("sha256", None)
    except Incomplete as error:
        raise corrupt(where, str(error)) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _foreign(where) from error
    if header.get("format") != _FORMAT:
        raise DormouseError(f"{where}: checkpoint format {header.get('format')!r}; this version reads format {_FORMAT}. "
                            "Read it with the version that wrote it.")
    if claimed != sha256(canonical(header)):
        raise corrupt(where, "its header does not match the header's own hash")
    try:
        return Opened(table, header, RunConfig.model_validate(header["config"]), Provenance.model_validate(header["provenance"]), where)
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:4])
        raise DormouseError(f"{where}: its header holds settings this version does not know ({lines}). "
                            "Read it with the version that wrote it, or train again.") from error


def verify(file: BufferedIOBase, opened: Opened) -> None:
    """Hold the tensors against the identity in the header, a chunk at a time. Raises DormouseError where they do not match."""
    digest = hashlib.sha256()
    try:
        for name, entry in sorted(opened.table.entries.items()):
            _feed(digest, name, entry.dtype, entry.shape, stored_chunks(file, entry.start, entry.stop), entry.stop - entry.start)
    except Incomplete as error:
        raise corrupt(opened.where, str(error)) from error
    _compare(digest.hexdigest(), opened)


def read(file: BufferedIOBase, where: str) -> tuple[Checkpoint, Provenance, str]:
    """File -> (checkpoint, provenance, identity), all verified; takes no memory beside the tensors.

    Raises DormouseError as `open_head` and `verify` do.
    """
    opened = open_head(file, where)
    try:
        tensors = {name: read_tensor(file, entry) for name, entry in opened.table.entries.items()}
    except Incomplete as error:
        raise corrupt(where, str(error)) from error
    _compare(weights_identity(tensors), opened)
    checkpoint = Checkpoint(opened.config, _part(tensors, "model/"), _part(tensors, "optimizer/"), opened.header["state"])
    return checkpoint, opened.provenance, opened.identity


def decode(data: bytes, where: str) -> tuple[Checkpoint, Provenance, str]:
    """`read` of bytes in hand."""
    return read(BytesIO(data), where)


def _compare(weights: str, opened: Opened) -> None:
    header = opened.header
    content = sha256(weights.encode(), canonical(decisive(header["config"])), canonical(header["state"]))
    if identity(content, opened.provenance) != header["identity"]:
        raise corrupt(opened.where, "its tensors do not match the identity in its header")


def corrupt(where: str, what: str) -> DormouseError:
    """The error for a file whose bytes are not what its writer wrote."""
    return DormouseError(f"{where} is corrupt: {what}. Delete it and run the command that wrote it again, or restore it from a copy; "
                         "beside --out files and resume files a `.prev.bin` keeps the save before.")


def _foreign(where: str) -> DormouseError:
    return DormouseError(f"{where} is not a dormouse checkpoint (no header of ours in it). "
                         "Checkpoints are written by `dormouse train` and `dormouse post-train ...`.")


def _named(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All tensors under their file names."""
    return {f"model/{n}": t for n, t in checkpoint.model.items()} | {f"optimizer/{n}": t for n, t in checkpoint.optimizer.items()}


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _feed(digest: "hashlib._Hash", name: str, dtype: torch.dtype, shape: tuple[int, ...], chunks: Iterable[bytes | memoryview],
          size: int) -> None:
    """Add one tensor to a weights identity: its signature and its bytes, each behind its length (as `identity.sha256` does)."""
    signature = canonical([name, str(dtype), list(shape)])
    digest.update(len(signature).to_bytes(8, "little"))
    digest.update(signature)
    digest.update(size.to_bytes(8, "little"))
    for chunk in chunks:
        digest.update(chunk)
