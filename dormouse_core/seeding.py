"""Counter-based randomness: every draw is a function of named keys, so no draw depends on what was drawn before it.

`key` names a stream; `uniform` is Philox4x32-10 (Salmon et al., SC11) evaluated at a counter, vectorised over rows.
Not here: any generator with state. There is no global RNG in dormouse.
"""

import hashlib

import numpy as np

_MULTIPLIER_21 = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL_21 = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_ROUND_R11 = np.arange(10, dtype=np.uint64).reshape(10, 1, 1)
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
    even_2N, odd_2N = _rounds(counter_4N[0::2].astype(np.uint64), counter_4N[1::2].astype(np.uint64), key_2N.astype(np.uint64))
    return np.stack([even_2N[0], odd_2N[0], even_2N[1], odd_2N[1]])


def _rounds(even_2N: np.ndarray, odd_2N: np.ndarray, key_2N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ten rounds on words (0, 2) and (1, 3), uint64."""
    for key_of_round_2N in (key_2N + _ROUND_R11 * _WEYL_21) & _LOW:
        product_2N = even_2N * _MULTIPLIER_21
        even_2N, odd_2N = (product_2N >> _SHIFT)[::-1] ^ odd_2N ^ key_of_round_2N, (product_2N & _LOW)[::-1]
    return even_2N, odd_2N


def uniform(seed_N: np.ndarray, step_N: np.ndarray, byte_N: np.ndarray) -> np.ndarray:
    """One float64 in [0, 1) per row, a function of (seed, step, byte) alone. seed_N: int64 streams from `key`."""
    even_2N, odd_2N, key_2N = np.zeros((3, 2, len(seed_N)), dtype=np.uint64)
    even_2N[0], odd_2N[0] = step_N, byte_N
    key_2N[:] = seed_N
    key_2N[1] >>= _SHIFT
    for words in (even_2N, odd_2N, key_2N):
        words &= _LOW
    even_2N, odd_2N = _rounds(even_2N, odd_2N, key_2N)
    return ((even_2N[0] << np.uint64(21)) ^ (odd_2N[0] >> np.uint64(11))).astype(np.float64) * 2.0**-53


def generator(*names: str | int | bytes) -> np.random.Generator:
    """A numpy generator of its own for one named purpose (task generation, shuffles, bootstraps)."""
    return np.random.Generator(np.random.Philox(key=key(*names)))
