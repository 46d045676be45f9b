"""The edge from one cycle to the next. Dagster allows no cycle across assets, so `cycle_plan` reads what the cycle before left from
the event log, refuses by name when it is not there, and records run, storage id and data version of each.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.config.drift import refuse_drift
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError
from dormouse_pipeline import lineage
from dormouse_pipeline.partitions import CycleKey

if TYPE_CHECKING:
    from dormouse_core.artifacts.store import Store
    from dormouse_core.tasks.plan import PlanInput

CARRIED = {"promotion": "promoted_checkpoint", "curriculum": "curriculum", "failure_memory": "failure_memory",
           "strategy_review": "strategy_review"}
"""Role in the plan -> asset of the cycle before."""


@dataclass(frozen=True)
class Carried:
    """What a cycle takes over from the one before; empty for a line's first cycle."""

    cycle: str = ""
    made: dict[str, lineage.Materialised] | None = None
    """Role -> materialisation."""
    plan: lineage.Materialised | None = None

    def artifact(self, role: str) -> Artifact | None:
        return self.made[role].artifact if self.made else None

    def config(self, fresh: RunConfig) -> RunConfig:
        """The configuration of the new cycle. Raises DormouseError when `fresh` drifted from the line's."""
        if self.plan is not None and self.plan.config is not None:
            refuse_drift(with_free_settings(RunConfig.model_validate(self.plan.config), fresh), fresh,
                         f"line {CycleKey.parse(self.cycle).line} ({self.plan.artifact.path})")
        return fresh

    def sft(self, store: "Store", own: Artifact) -> Artifact:
        """The line's SFT base: what its first plan started from, whatever base was made since. `own` for the first cycle."""
        from dormouse_core.evolution.plan import start_of

        return start_of(self.plan.artifact, store).sft if self.plan else own

    def origins(self) -> "list[PlanInput]":
        """Where the event log holds each, as the plan records it."""
        from dormouse_core.artifacts.provenance import Parent
        from dormouse_core.tasks.plan import PlanInput

        return [PlanInput(artifact=Parent(role=role, kind=m.artifact.kind, identity=m.artifact.identity), run_id=m.run_id,
                          storage_id=m.storage_id) for role, m in (self.made or {}).items()]

    def metadata(self) -> dict[str, Any]:
        """The carried edges as the UI shows them: links to asset and run, storage id, data version."""
        shown: dict[str, Any] = {"parent_cycle": self.cycle} if self.made else {}
        for role, m in (self.made or {}).items():
            shown |= {f"{role}_asset": dg.MetadataValue.asset(dg.AssetKey(m.asset)), f"{role}_run": dg.MetadataValue.dagster_run(m.run_id),
                      f"{role}_storage_id": m.storage_id, f"{role}_data_version": m.data_version}
        return shown


def carried_into(instance: dg.DagsterInstance, key: CycleKey) -> Carried:
    """What `key` takes over. Only runs that ended in SUCCESS count (see `lineage`). Raises DormouseError naming what is missing."""
    if key.previous is None:
        return Carried()
    before = str(key.previous)
    found = {role: lineage.latest(instance, asset, before) for role, asset in CARRIED.items()}
    plan = lineage.latest(instance, "cycle_plan", before)
    missing = [CARRIED[role] for role, made in found.items() if made is None] + ([] if plan else ["cycle_plan"])
    if missing:
        raise DormouseError(f"{key} starts from what {before} left, and {before} has no {', '.join(missing)} from a run that ended well: "
                            "run the cycles of a line in order")
    return Carried(before, {role: made for role, made in found.items() if made is not None}, plan)


def with_free_settings(stored: RunConfig, fresh: RunConfig) -> RunConfig:
    """`stored`, with the settings that never change a result (lanes, workers, number of cycles, ...) as in `fresh`."""
    from dormouse_core.artifacts.identity import NO_EFFECT

    tree, new = stored.model_dump(), fresh.model_dump()
    for name in NO_EFFECT - {"preset"}:
        section, leaf = name.split(".")
        tree[section][leaf] = new[section][leaf]
    return RunConfig.model_validate(tree)
