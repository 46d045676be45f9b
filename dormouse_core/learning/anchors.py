"""Anchors: what counting alone scores on the very bytes a model is scored on.

uniform is 8 bits. unigram and 5-gram count the whole training text (more than a short run trains on, so the anchor is no
straw man). The 5-gram interpolates down to uniform by Witten-Bell: with c(x) occurrences of a context and t(x) different bytes
seen after it,  P_n(b | x) = (c(x b) + t(x) P_{n-1}(b | x without its first byte)) / (c(x) + t(x)).
Only contexts that occur in the window are counted.
"""

import math
from dataclasses import dataclass

import numpy as np

ORDER = 5
_FILTER = 1 << 22


@dataclass(frozen=True)
class Anchors:
    """Bits per byte on one window."""

    uniform: float
    unigram: float
    five_gram: float


def score(train_N: np.ndarray, window_WL: np.ndarray) -> Anchors:
    """Anchors of the bytes 1..L-1 of each window row, each seen with the bytes before it in its row (at most 4).

    train_N: uint8 text counted. window_WL: bytes, the first of each row is context only, as it is for the model.
    """
    train_N = train_N.astype(np.uint64)
    target_X, context_X4, length_X = _positions(window_WL)
    p_X = np.full(len(target_X), 1 / 256)
    bits = {0: 8.0}
    for context_bytes in range(ORDER):
        reach_X = length_X >= context_bytes
        key_R = _keys(context_X4[reach_X], context_bytes)
        p_X[reach_X] = _interpolate(train_N, context_bytes, key_R, target_X[reach_X], p_X[reach_X])
        bits[context_bytes + 1] = float(-np.log2(p_X).mean())
    return Anchors(bits[0], bits[1], bits[ORDER])


def _positions(window_WL: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(target_X, context_X4 with the nearest byte last, length_X: how many of the four are real)."""
    rows, length = window_WL.shape
    padded = np.concatenate([np.zeros((rows, ORDER - 1), dtype=np.uint64), window_WL.astype(np.uint64)], axis=1)
    columns = np.arange(1, length)
    context = np.stack([padded[:, columns + shift] for shift in range(ORDER - 1)], axis=-1)
    return window_WL[:, 1:].reshape(-1).astype(np.uint64), context.reshape(-1, ORDER - 1), np.tile(np.minimum(columns, ORDER - 1), rows)


def _keys(context_X4: np.ndarray, size: int) -> np.ndarray:
    """The last `size` context bytes as one integer."""
    key_X = np.zeros(len(context_X4), dtype=np.uint64)
    for column in range(ORDER - 1 - size, ORDER - 1):
        key_X = (key_X << np.uint64(8)) | context_X4[:, column]
    return key_X


def _interpolate(train_N: np.ndarray, size: int, key_R: np.ndarray, target_R: np.ndarray, lower_R: np.ndarray) -> np.ndarray:
    """P_n of each (context, target), from training counts and the order below."""
    if len(key_R) == 0:
        return lower_R
    wanted = np.unique(key_R)
    positions = max(len(train_N) - size, 0)
    key_N = np.zeros(positions, dtype=np.uint64)
    for shift in range(size):
        key_N = (key_N << np.uint64(8)) | train_N[shift : shift + positions]
    sieve = np.zeros(_FILTER, dtype=bool)
    sieve[_slot(wanted)] = True
    kept_K = np.flatnonzero(sieve[_slot(key_N)])
    pair, count = np.unique((key_N[kept_K] << np.uint64(8)) | train_N[kept_K + size], return_counts=True)
    index_P = np.searchsorted(wanted, pair >> np.uint64(8))
    exact = (index_P < len(wanted)) & (wanted[np.minimum(index_P, len(wanted) - 1)] == pair >> np.uint64(8))
    pair, count, index_P = pair[exact], count[exact], index_P[exact]
    total_W = np.bincount(index_P, weights=count, minlength=len(wanted))
    types_W = np.bincount(index_P, minlength=len(wanted)).astype(float)
    row_R = np.searchsorted(wanted, key_R)
    asked_R = (key_R << np.uint64(8)) | target_R
    place_R = np.minimum(np.searchsorted(pair, asked_R), max(len(pair) - 1, 0))
    count_R = np.where(pair[place_R] == asked_R, count[place_R], 0) if len(pair) else np.zeros(len(key_R))
    mass_R = total_W[row_R] + types_W[row_R]
    return np.where(mass_R > 0, (count_R + types_W[row_R] * lower_R) / np.maximum(mass_R, 1), lower_R)


def _slot(key_X: np.ndarray) -> np.ndarray:
    """A cheap hash into the sieve; false hits are removed exactly afterwards."""
    return ((key_X * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - int(math.log2(_FILTER)))).astype(np.int64)
