"""The safetensors format, a few megabytes at a time: writing needs no copy of the tensors, checking none of the file.

    8 bytes n | n bytes of JSON: {"__metadata__": {..}, name: {"dtype", "shape", "data_offsets"}} | the tensors' bytes

Tensors lie in the order the safetensors library gives them (wide types first, then by name), without holes.
Not here: what the metadata means (checkpoint.py).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any

import torch
from torch import Tensor

CHUNK = 16 << 20
"""Bytes in hand at once."""
MAX_HEADER = 100 << 20
"""As in the safetensors library: a longer header is not one."""
_TYPES = {
    "I64": torch.int64, "F64": torch.float64, "F32": torch.float32, "I32": torch.int32, "BF16": torch.bfloat16, "F16": torch.float16,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""By name, in the order the library writes them."""
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class Malformed(ValueError):
    """Bytes that are not a safetensors file."""


class Incomplete(Malformed):
    """A safetensors file that is cut off, or has something behind its end."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies: its type, shape, and first and last byte in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Table:
    """What the head of a file says of its tensors, and its metadata."""

    metadata: Mapping[str, str]
    entries: Mapping[str, Entry]
    size: int
    """Bytes of the whole file."""


def raw_chunks(tensor: Tensor) -> Iterator[memoryview]:
    """A tensor's bytes in order, without a copy of it where it lies contiguously in this machine's memory."""
    flat = tensor.detach().contiguous().reshape(-1)
    step = max(1, CHUNK // max(1, flat.element_size()))
    for part in flat.split(step) if flat.numel() else ():
        yield part.cpu().view(torch.uint8).numpy().data


def layout(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[bytes, list[str], int]:
    """(head of the file, names in file order, bytes of the whole file). Raises ValueError for a type the format has no name for."""
    unknown = sorted({str(t.dtype) for t in tensors.values() if t.dtype not in _NAMES})
    if unknown:
        raise ValueError(f"safetensors has no name for {', '.join(unknown)}")
    rank = {dtype: i for i, dtype in enumerate(_NAMES)}
    order = sorted(tensors, key=lambda name: (rank[tensors[name].dtype], name))
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name in order:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        table[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head, order, 8 + len(head) + at


def file_chunks(head: bytes, order: Iterable[str], tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The whole file, in chunks."""
    yield head
    for name in order:
        yield from raw_chunks(tensors[name])


def read_table(file: BufferedIOBase) -> Table:
    """The head of a file, checked: types and shapes fit the bytes they claim, and those fill the file without holes.

    Raises Malformed, and its Incomplete where only the file's length is wrong."""
    size = file.seek(0, 2)
    file.seek(0)
    start = file.read(9)
    length = int.from_bytes(start[:8], "little")
    if size < 10 or start[8:9] != b"{" or length > MAX_HEADER:
        raise Malformed("no safetensors header")
    if length > size - 8:
        raise Incomplete(f"truncated inside its header ({size:,} bytes of at least {length + 8:,})")
    file.seek(8)
    try:
        raw = json.loads(file.read(length))
    except (ValueError, UnicodeDecodeError) as error:
        raise Incomplete(f"its header is not readable ({error})") from error
    try:
        metadata = raw.pop("__metadata__", {})
        entries = {str(name): _entry(value, 8 + length) for name, value in raw.items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Malformed("its header is no table of tensors") from error
    end = 8 + length
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.stop)):
        if entry.start != end:
            raise Malformed("its tensors overlap or leave holes")
        end = entry.stop
    if end != size:
        raise Incomplete(f"{'truncated' if size < end else 'too long'} ({size:,} bytes of {end:,})")
    return Table(metadata, entries, size)


def _entry(value: Mapping[str, Any], base: int) -> Entry:
    dtype, shape, (start, stop) = _TYPES[value["dtype"]], tuple(value["shape"]), value["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)) or math.prod(shape) * dtype.itemsize != stop - start:
        raise ValueError("a shape that does not fit its bytes")
    return Entry(dtype, shape, base + start, base + stop)


def read_tensor(file: BufferedIOBase, entry: Entry) -> Tensor:
    """One tensor, read straight into its own memory. Raises Incomplete where the file ends before it."""
    flat = torch.empty(math.prod(entry.shape), dtype=entry.dtype)
    if flat.numel():
        view = flat.view(torch.uint8).numpy().data
        file.seek(entry.start)
        at = 0
        while at < len(view):
            got = file.readinto(view[at : at + CHUNK])
            if not got:
                raise Incomplete("it became shorter while it was read")
            at += got
    return flat.view(entry.shape)


def stored_chunks(file: BufferedIOBase, start: int, stop: int) -> Iterator[bytes]:
    """The bytes of a file from `start` to `stop`. Raises Incomplete where it ends before."""
    file.seek(start)
    while start < stop:
        data = file.read(min(CHUNK, stop - start))
        if not data:
            raise Incomplete("it became shorter while it was read")
        start += len(data)
        yield data


def file_sha256(file: BufferedIOBase) -> str:
    """sha256 of every byte of a file."""
    digest, size = hashlib.sha256(), file.seek(0, 2)
    for data in stored_chunks(file, 0, size):
        digest.update(data)
    return digest.hexdigest()
