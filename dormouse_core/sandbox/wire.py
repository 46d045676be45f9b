"""The wire: the only thing that crosses from a candidate to its judge. Typed values as bytes, with size limits.

Two readers of one format. `decode` gives Python values and is for bytes a trusted side wrote (the arguments a candidate
is called with). `decode_tree` is for bytes a hostile side wrote: it gives a tagged tree of plain tuples, never a hashed
Python object, so a reply of colliding keys costs its length and no more. Sets, and dicts unless their order is asked
for, are written in the order of their encoded elements, so equal values of one type have equal bytes (-0.0 and NaN aside).
The candidate's process loads this file by path before it has any task; hence nothing but `struct` is imported here.
Not here: comparison (verifiers/exec.py), frames on the pipe (sandbox/child.py writes them, sandbox/runner.py reads).
"""

import struct

MAX_DEPTH = 64
MAX_NODES = 200_000
MAX_INT_BYTES = 8192
MAX_BYTES = 1 << 20

# One letter a type; the tree uses the same letters as tags.
NONE, TRUE, FALSE, INT, FLOAT, COMPLEX, STR, BYTES, TUPLE, LIST, DICT, SET = b"NTFifcsbtldS"
_name_of = type.__dict__["__name__"].__get__  # a class's own name, whatever its metaclass says
_U32, _F64, _C128 = struct.Struct("<I"), struct.Struct("<d"), struct.Struct("<dd")

Tree = tuple
"""(tag, payload): payload is None for N T F, int for i, float for f, (real, imag) for c, bytes for s and b (str as UTF-8
with surrogates passed), a tuple of trees for t l S, a tuple of (key, value) trees for d."""


class WireError(ValueError):
    """A value outside the format, or bytes that are not one."""


def encode(value: object, in_order: bool = False) -> bytes:
    """A value of the twelve types -> bytes. `in_order` keeps a dict's own order (for arguments: a function may look at it),
    else equal dicts have equal bytes. Subclasses are written as their base type, read with the base type's own
    methods, so an object's opinion of itself is never asked. Raises WireError for anything else or past a limit."""
    out = bytearray()
    _write(value, out, 0, [MAX_NODES], in_order)
    return bytes(out)


def _write(value, out: bytearray, depth: int, left: list[int], in_order: bool) -> None:  # type: ignore[no-untyped-def]
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH or len(out) > MAX_BYTES:
        raise WireError("too many nodes" if left[0] < 0 else "too deep" if depth > MAX_DEPTH else "too long")
    kind = type(value)
    if value is None or kind is bool:
        out.append(NONE if value is None else TRUE if value else FALSE)
    elif issubclass(kind, int):
        number = int.__index__(value)
        size = (int.bit_length(number) + 8) // 8
        if size > MAX_INT_BYTES:
            raise WireError("integer too long")
        _sized(out, INT, int.to_bytes(number, size, "little", signed=True))
    elif issubclass(kind, float):
        out.append(FLOAT)
        out += _F64.pack(float.__float__(value))
    elif issubclass(kind, complex):
        plain = complex.__pos__(value)
        out.append(COMPLEX)
        out += _C128.pack(plain.real, plain.imag)
    elif issubclass(kind, str):
        if str.__len__(value) > MAX_BYTES:
            raise WireError("too long")
        _sized(out, STR, str.encode(value, "utf-8", "surrogatepass"))
    elif issubclass(kind, bytes):
        if bytes.__len__(value) > MAX_BYTES:
            raise WireError("too long")
        _sized(out, BYTES, bytes.__getitem__(value, slice(None)))
    else:
        _write_container(value, kind, out, depth, left, in_order)


def _write_container(value, kind: type, out: bytearray, depth: int, left: list[int], in_order: bool) -> None:  # type: ignore[no-untyped-def]
    for tag, base in ((TUPLE, tuple), (LIST, list)):
        if issubclass(kind, base):
            out.append(tag)
            out += _U32.pack(base.__len__(value))
            for item in base.__iter__(value):
                _write(item, out, depth + 1, left, in_order)
            return
    parts: list[bytes] = []
    rows: list[tuple[object, ...]]
    if issubclass(kind, set):
        tag, rows = SET, [(item,) for item in set.__iter__(value)]
    elif issubclass(kind, dict):
        tag, rows = DICT, list(dict.items(value))
    else:
        raise WireError(f"no wire type for {_name_of(kind)[:60]}")
    size = len(out)
    for row in rows:
        part = bytearray()
        for item in row:
            _write(item, part, depth + 1, left, in_order)
        parts.append(bytes(part))
        size += len(part)
        if size > MAX_BYTES:
            raise WireError("too long")
    out.append(tag)
    out += _U32.pack(len(rows))
    out += b"".join(parts if in_order and tag == DICT else sorted(parts))


def _sized(out: bytearray, tag: int, payload: bytes) -> None:
    out.append(tag)
    out += _U32.pack(len(payload))
    out += payload


def decode(data: bytes) -> object:
    """Bytes of a trusted writer -> the Python value. Raises WireError on anything malformed."""
    return value_of(decode_tree(data))


def decode_tree(data: bytes) -> Tree:
    """Bytes of anyone -> tagged tree. Raises WireError on anything malformed, too deep, too many or too long."""
    if len(data) > MAX_BYTES + 64:
        raise WireError("too long")
    try:
        tree, end = _read(data, 0, 0, [MAX_NODES])
    except (struct.error, IndexError) as error:
        raise WireError("cut short") from error
    if end != len(data):
        raise WireError("bytes after the value")
    return tree


def _read(data: bytes, i: int, depth: int, left: list[int]) -> tuple[Tree, int]:
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        raise WireError("too many nodes" if left[0] < 0 else "too deep")
    tag = data[i]
    i += 1
    if tag in (NONE, TRUE, FALSE):
        return (tag, None), i
    if tag == FLOAT:
        return (tag, _F64.unpack_from(data, i)[0]), i + 8
    if tag == COMPLEX:
        return (tag, _C128.unpack_from(data, i)), i + 16
    (count,) = _U32.unpack_from(data, i)
    i += 4
    if tag in (INT, STR, BYTES):
        end = i + count
        if end > len(data) or (tag == INT and not 1 <= count <= MAX_INT_BYTES):
            raise WireError("length out of range")
        return (tag, int.from_bytes(data[i:end], "little", signed=True) if tag == INT else data[i:end]), end
    if tag not in (TUPLE, LIST, SET, DICT):
        raise WireError(f"unknown tag {tag}")
    if count > left[0] or count > len(data):
        raise WireError("count out of range")
    items: list[Tree] = []
    for _ in range(count * 2 if tag == DICT else count):
        item, i = _read(data, i, depth + 1, left)
        items.append(item)
    return (tag, tuple(zip(items[::2], items[1::2], strict=True)) if tag == DICT else tuple(items)), i


def value_of(tree: Tree) -> object:
    tag, payload = tree
    if tag in (NONE, TRUE, FALSE):
        return {NONE: None, TRUE: True, FALSE: False}[tag]
    if tag == COMPLEX:
        return complex(*payload)
    if tag == STR:
        return payload.decode("utf-8", "surrogatepass")
    if tag in (TUPLE, LIST, SET):
        return {TUPLE: tuple, LIST: list, SET: set}[tag](map(value_of, payload))
    if tag == DICT:
        return {value_of(k): value_of(v) for k, v in payload}
    return payload
