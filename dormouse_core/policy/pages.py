"""Keep memory that tensors gave back: a step that takes the same buffers again need not have the kernel clear their pages again."""

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt(3)."""
_KEPT = 1 << 29
"""Bytes of freed memory the process keeps at most."""
OWN_MAPPING = 1 << 25
"""Bytes from which a tensor is a mapping of its own, which is given back when it is freed (the most glibc takes)."""


@cache
def keep_freed_pages() -> bool:
    """Once a process; False where the C library is not glibc or refuses. A training step of nano spends a fifth of its time in
    page faults without it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_TRIM_THRESHOLD, _KEPT) == 1 and mallopt(_MMAP_THRESHOLD, OWN_MAPPING) == 1
