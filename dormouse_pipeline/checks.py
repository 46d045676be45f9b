"""Asset checks: what guards an edge of the loop.

In one run a failed blocking check stops everything downstream. In a later run that selects the downstream asset alone it would
not, so each blocking rule also stands in the code of the stage it protects, over the same counters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TYPE_CHECKING

import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import Ledger

if TYPE_CHECKING:
    from dormouse_core.artifacts.store import Store


@dataclass(frozen=True)
class Made:
    """What a stage has just made."""

    artifact: Artifact
    store: "Store"
    ledger: Ledger
    config: RunConfig

    def counter(self, name: str) -> int:
        """A counter of the artifact; 0 where the stage never counted it."""
        return self.artifact.provenance.counters.get(name, 0)


class Outcome(NamedTuple):
    """passed, one sentence for a person, and the numbers it rests on."""

    passed: bool
    sentence: str
    numbers: dict[str, Any]


@dataclass(frozen=True)
class Edge:
    """One rule at the edge of one asset."""

    name: str
    description: str
    judge: Callable[[Made], Outcome]
    blocking: bool = True

    def spec(self, asset: str) -> dg.AssetCheckSpec:
        return dg.AssetCheckSpec(name=self.name, asset=asset, blocking=self.blocking, description=self.description)

    def result(self, made: Made) -> dg.AssetCheckResult:
        outcome = self.judge(made)
        severity = dg.AssetCheckSeverity.ERROR if self.blocking else dg.AssetCheckSeverity.WARN
        return dg.AssetCheckResult(check_name=self.name, passed=outcome.passed, severity=severity,
                                   description=outcome.sentence, metadata=outcome.numbers)
