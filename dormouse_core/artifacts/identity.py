"""What makes two artifacts the same one: a hash of content and ancestry, blind to what varies from run to run.

    identity = sha256(kind, seed, parents, content)

content is the canonical hash of a record, a table or a checkpoint (each room says which fields it covers). Run id, counters,
timings, code version and the settings that change speed but never a byte are left out, so the same inputs, configuration
and seed give the same identity.
"""

import copy
import hashlib
import json
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from dormouse_core.artifacts.first_settings import FIRST
from dormouse_core.artifacts.provenance import Provenance
from dormouse_core.config.run import RunConfig

NO_EFFECT = frozenset({
    "preset", "loop.cycles", "roll.lanes", "roll.workers", "verify.workers",
    "train.log_every", "train.ckpt_every", "rl.ckpt_every", "policy.recompute", "honeypots.halt_above",
})
"""Settings that never change what is computed: where a preset was read from, speed, how often something is saved or said, and the limit
at which somebody has to decide whether training goes on."""


def canonical(value: Any) -> bytes:
    """Canonical JSON bytes. Raises ValueError on NaN and infinities, which JSON cannot hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(*parts: bytes) -> str:
    """sha256 hex of length-prefixed parts, so that ("a", "b") and ("ab",) differ."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def identity(content: str, provenance: Provenance) -> str:
    """The identity of content (its canonical hash) that has this ancestry."""
    parents = sorted([p.role, p.kind.value, p.identity] for p in provenance.parents)
    return sha256(canonical({"kind": provenance.kind.value, "seed": provenance.seed, "parents": parents, "content": content}))


def config_content(config: RunConfig) -> dict[str, Any]:
    """The configuration as far as it decides results: everything but NO_EFFECT, and settings that came later at their default."""
    return decisive(config.model_dump(mode="json"))


def decisive(tree: dict[str, Any]) -> dict[str, Any]:
    """The same of a configuration as it was stored. A setting that did not exist yet is absent, and one that came later is left out
    while it says what was done before: so an older file keeps its identity, and so does a run that uses nothing new."""
    kept = copy.deepcopy(tree)
    for name in NO_EFFECT:
        *sections, leaf = name.split(".")
        node = kept
        for section in sections:
            node = node.get(section, {})
        node.pop(leaf, None)
    _leave_out(kept, _defaults(), "")
    return kept


@cache
def _defaults() -> dict[str, Any]:
    return RunConfig().model_dump(mode="json")


def _leave_out(node: dict[str, Any], default: Any, path: str) -> None:
    """Take settings at their default out of `node`, where FIRST does not name them."""
    for name in list(node):
        here = f"{path}{name}"
        known = default.get(name) if isinstance(default, dict) else None
        if here in FIRST:
            continue
        if not any(first.startswith(f"{here}.") for first in FIRST):
            if node[name] == known:
                del node[name]
        elif isinstance(node[name], dict):
            _leave_out(node[name], known, f"{here}.")


def column_hashes(table: pa.Table) -> dict[str, str]:
    """Canonical hash of each column: name, type and values, whatever the chunking or the buffers behind nulls."""
    return {name: _column_hash(name, table.column(name)) for name in table.column_names}


def _column_hash(name: str, column: pa.ChunkedArray) -> str:
    digest = hashlib.sha256(canonical([name, _type_name(column.type), len(column)]))
    _feed(digest, pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type))
    return digest.hexdigest()


def _type_name(kind: pa.DataType) -> str:
    """A type as text, without what a parquet round trip renames (the field inside a list) or unpacks (dictionaries)."""
    if pa.types.is_dictionary(kind):
        return _type_name(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{kind.field(i).name}: {_type_name(kind.field(i).type)}' for i in range(kind.num_fields))}>"
    return str(kind)


def _feed(digest: "hashlib._Hash", array: pa.Array) -> None:
    """Feed one array's validity and values. Lists and structs recurse; every leaf is numbers or bytes."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _feed(digest, array.dictionary_decode())
    digest.update(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_struct(kind):
        for child in array.flatten():
            _feed(digest, child)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        digest.update(lengths.astype("<i8").tobytes())
        _feed(digest, array.flatten())
    elif any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)):
        values = [v.encode() if isinstance(v, str) else v or b"" for v in array.to_pylist()]
        digest.update(np.array([len(v) for v in values], dtype="<i8").tobytes())
        digest.update(b"".join(values))
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = array.fill_null(False if pa.types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(numbers).astype(numbers.dtype.newbyteorder("<")).tobytes())
    elif not pa.types.is_null(kind):
        raise TypeError(f"column type {kind} has no canonical hash; use numbers, booleans, strings, bytes, lists and structs of them")
    return None
