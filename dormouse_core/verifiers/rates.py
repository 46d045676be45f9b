"""The score interval of a rate (Wilson 1927), for rooms below evaluation."""

from math import sqrt

Z = 1.959963984540054
"""Two-sided 95 %."""


def wilson_bounds(passed: int, counted: int) -> tuple[float, float]:
    """95 % bounds of one rate; (0, 1) without trials. Keeps its width at 0 and at 1, where the near bound is exact."""
    if counted <= 0:
        return 0.0, 1.0
    p = passed / counted
    centre = (p + Z * Z / (2 * counted)) / (1 + Z * Z / counted)
    half = Z / (1 + Z * Z / counted) * sqrt(p * (1 - p) / counted + Z * Z / (4 * counted**2))
    return 0.0 if passed == 0 else max(0.0, centre - half), 1.0 if passed == counted else min(1.0, centre + half)
