"""The few numbers and tables of each kind of artifact that a person looks for first. Read from the artifact, never recomputed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dormouse_core.artifacts.provenance import Kind

if TYPE_CHECKING:
    from dormouse_pipeline.checks import Made

Facts = dict[str, Any]


def facts_of(made: "Made", seconds: float) -> Facts:
    """Facts of one artifact, by its kind."""
    reader = READERS.get(made.artifact.kind)
    return reader(made, seconds) if reader else {}


READERS: dict[Kind, Callable[["Made", float], Facts]] = {}
