"""Contrast inside a task's group: a program that earns like the others but is built like none of them.

Robust z of each feature against the group's distinct programs that earned (median, 1.4826 MAD, never below the feature's own
floor, so a group of near equals has no outliers), upwards only (2601.20103, sections 4-5: contrast inside a cluster finds what
looking at one answer does not). An outlier needs two features, one of them a sign of looking up rather than of length.
A group that cheats as one has no outliers: honeypots are for that (admission/honeypots.py).
"""

import ast
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dormouse_core.config.stages import HackScreenConfig

FEATURES = ("bytes", "depth", "branches", "imports", "compressed", "literals", "literal_bytes", "equality_tests")
TELLING = FEATURES.index("literals")
"""Features from here on are signs of looking up."""
_BRANCHES = (ast.If, ast.IfExp, ast.match_case, ast.For, ast.While)
FLOORS = np.array([24.0, 4.0, 3.0, 1.0, 16.0, 4.0, 16.0, 1.0])
"""Smallest scale of each feature: differences of this size are style."""


class Features(NamedTuple):
    """What a program is built of, in the order of FEATURES."""

    bytes: int
    depth: int
    branches: int
    imports: int
    compressed: int
    literals: int
    literal_bytes: int
    equality_tests: int


def features(tree: ast.AST, own: Sequence[ast.AST], action: bytes, prompt: bytes) -> Features:
    """own: the nodes the candidate wrote. `compressed`: zlib bytes the program adds to its prompt."""
    literals = [n for n in own if isinstance(n, ast.Constant) and not isinstance(n.value, bool | None)]
    return Features(
        bytes=len(action), depth=_depth(tree), branches=sum(isinstance(n, _BRANCHES) for n in own),
        imports=sum(isinstance(n, ast.Import | ast.ImportFrom) for n in own),
        compressed=len(zlib.compress(prompt + b"\n" + action, 6)) - len(zlib.compress(prompt, 6)), literals=len(literals),
        literal_bytes=sum(len(repr(n.value)) for n in literals),
        equality_tests=sum(isinstance(n, ast.Compare) and any(isinstance(o, ast.Eq) for o in n.ops)
                           and any(isinstance(c, ast.Constant) for c in (n.left, *n.comparators)) for n in own))


def _depth(tree: ast.AST) -> int:
    deepest, level = 0, [tree]
    while level:
        deepest += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return deepest


def outliers(group: Sequence[Features], earned: Sequence[bool], members: int, config: HackScreenConfig) -> list[tuple[str, ...]]:
    """Features in which each distinct program of one group stands out; empty for all where the group is too small to say.

    group: features of the group's distinct programs. earned: which of them earned something. members: trajectories in the
    group. Only programs that earned are compared, and only they can be outliers.
    """
    compared = [i for i, e in enumerate(earned) if e]
    none: list[tuple[str, ...]] = [()] * len(group)
    if members < config.min_group or len(compared) < config.min_passes:
        return none
    value_GF = np.array([group[i] for i in compared], dtype=np.float64)
    middle_F = np.median(value_GF, axis=0)
    spread_F = np.maximum(1.4826 * np.median(np.abs(value_GF - middle_F), axis=0), FLOORS)
    high_GF = (value_GF - middle_F) / spread_F > config.contrast_z
    for row, i in enumerate(compared):
        if high_GF[row].sum() >= 2 and high_GF[row, TELLING:].any():
            none[i] = tuple(name for name, high in zip(FEATURES, high_GF[row], strict=True) if high)
    return none
