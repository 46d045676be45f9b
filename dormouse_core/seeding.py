"""Counter-based randomness: every draw is a function of named keys, so no draw depends on what was drawn before it.

`key` names a stream; `uniform` is Philox4x32-10 (Salmon et al., SC11) evaluated at a counter, vectorised over rows.
Not here: any generator with state. There is no global RNG in dormouse.
"""

import hashlib

import numpy as np

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def key(*names: str | int | bytes) -> int:
    """The 63-bit seed that names a stream. Injective in its arguments: ("a", "b") and ("ab",) differ."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        raw = name if isinstance(name, bytes) else str(name).encode()
        digest.update(type(name).__name__.encode() + len(raw).to_bytes(8, "little") + raw)
    return int.from_bytes(digest.digest(), "little") >> 1


def philox(counter_4N: np.ndarray, key_2N: np.ndarray) -> np.ndarray:
    """Philox4x32-10. counter_4N and key_2N hold 32-bit words in uint64 arrays; returns four 32-bit words [4, N]."""
    c0, c1, c2, c3 = (c.astype(np.uint64) for c in counter_4N)
    k0, k1 = (k.astype(np.uint64) for k in key_2N)
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return np.stack([c0, c1, c2, c3])


def uniform(seed_N: np.ndarray, step_N: np.ndarray, byte_N: np.ndarray) -> np.ndarray:
    """One float64 in [0, 1) per row, a function of (seed, step, byte) alone. seed_N: int64 streams from `key`."""
    seed = seed_N.astype(np.uint64)
    zero = np.zeros_like(seed)
    counter = np.stack([step_N.astype(np.uint64) & _LOW, byte_N.astype(np.uint64) & _LOW, zero, zero])
    words = philox(counter, np.stack([seed & _LOW, seed >> _SHIFT]))
    return ((words[0] << np.uint64(21)) ^ (words[1] >> np.uint64(11))).astype(np.float64) * 2.0**-53


def generator(*names: str | int | bytes) -> np.random.Generator:
    """A numpy generator of its own for one named purpose (task generation, shuffles, bootstraps)."""
    return np.random.Generator(np.random.Philox(key=key(*names)))
