"""The checkpoint container: one `.bin` of safetensors bytes, with configuration, provenance and state in its header.

Tensors are named `model/...` and `optimizer/...`. Never pickle: loading runs no code. The header is one JSON value under one
metadata key, so equal checkpoints are equal files.
Not here: paths (store), and what shapes a configuration asks for (policy; `check_tensors` takes them).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor

from dormouse_core.artifacts.identity import canonical, config_content, decisive, identity, sha256
from dormouse_core.artifacts.provenance import Provenance
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
    return sha256(*[part for name in sorted(model) for part in (_signature(name, model[name]), _raw(model[name]))])


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


def encode(checkpoint: Checkpoint, provenance: Provenance) -> tuple[bytes, str]:
    """Checkpoint -> (file bytes, identity)."""
    tensors = _named(checkpoint)
    content = sha256(weights_identity(tensors).encode(), canonical(config_content(checkpoint.config)), canonical(checkpoint.state))
    header = {
        "format": _FORMAT, "identity": identity(content, provenance), "config": checkpoint.config.model_dump(mode="json"),
        "state": checkpoint.state, "provenance": provenance.model_dump(mode="json"),
    }
    header["sha256"] = sha256(canonical(header))
    return safetensors.torch.save(tensors, metadata={_KEY: canonical(header).decode()}), str(header["identity"])


def decode(data: bytes, where: str) -> tuple[Checkpoint, Provenance, str]:
    """File bytes -> (checkpoint, provenance, identity), all verified.

    Raises DormouseError on a truncated, corrupt or foreign file, and on a configuration this version does not know.
    """
    header = _header(data, where)
    claimed = header.pop("sha256", None)
    try:
        if header.get("format") != _FORMAT:
            raise DormouseError(f"{where}: checkpoint format {header.get('format')!r}; this version reads format {_FORMAT}. "
                                "Read it with the version that wrote it.")
        if claimed != sha256(canonical(header)):
            raise corrupt(where, "its header does not match the header's own hash")
        config, provenance = RunConfig.model_validate(header["config"]), Provenance.model_validate(header["provenance"])
        tensors = safetensors.torch.load(data)
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:4])
        raise DormouseError(f"{where}: its header holds settings this version does not know ({lines}). "
                            "Read it with the version that wrote it, or train again.") from error
    except safetensors.SafetensorError as error:
        raise corrupt(where, str(error)) from error
    checkpoint = Checkpoint(config, _part(tensors, "model/"), _part(tensors, "optimizer/"), header["state"])
    content = sha256(weights_identity(tensors).encode(), canonical(decisive(header["config"])), canonical(header["state"]))
    if identity(content, provenance) != header["identity"]:
        raise corrupt(where, "its tensors do not match the identity in its header")
    return checkpoint, provenance, header["identity"]


def corrupt(where: str, what: str) -> DormouseError:
    """The error for a file whose bytes are not what its writer wrote."""
    return DormouseError(f"{where} is corrupt: {what}. Delete it and run the command that wrote it again, or restore it from a copy; "
                         "beside --out files and resume files a `.prev.bin` keeps the save before.")


def _header(data: bytes, where: str) -> dict[str, Any]:
    """The dormouse header of safetensors bytes, with the file's length checked against its tensor table."""
    foreign = DormouseError(f"{where} is not a dormouse checkpoint (no header of ours in it). "
                            "Checkpoints are written by `dormouse train` and `dormouse post-train ...`.")
    length = int.from_bytes(data[:8], "little")
    if len(data) < 10 or data[8:9] != b"{":
        raise foreign
    if length > len(data) - 8:
        raise corrupt(where, f"truncated inside its header ({len(data):,} bytes of at least {length + 8:,})")
    try:
        table = json.loads(data[8 : 8 + length])
        header = json.loads(table["__metadata__"][_KEY])
        size = 8 + length + max((t["data_offsets"][1] for name, t in table.items() if name != "__metadata__"), default=0)
    except (ValueError, UnicodeDecodeError) as error:
        raise corrupt(where, f"its header is not readable ({error})") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise foreign from error
    if len(data) != size:
        raise corrupt(where, f"{'truncated' if len(data) < size else 'too long'} ({len(data):,} bytes of {size:,})")
    if not isinstance(header, dict):
        raise foreign
    return header


def _named(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All tensors under their file names, each owning its bytes (safetensors refuses shared storage)."""
    named = {f"model/{n}": t for n, t in checkpoint.model.items()} | {f"optimizer/{n}": t for n, t in checkpoint.optimizer.items()}
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in named.items()}


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _signature(name: str, tensor: Tensor) -> bytes:
    return canonical([name, str(tensor.dtype), list(tensor.shape)])


def _raw(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
