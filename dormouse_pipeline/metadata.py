"""What a materialisation shows a person: the artifact, its parents with their runs, rates, counters, and what went otherwise.

Numbers are plain metadata, so Dagster plots them over the cycles; pictures are small inline SVG (events are stored whole).
"""

from typing import TYPE_CHECKING, Any

import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_pipeline import lineage
from dormouse_pipeline.checks import Made
from dormouse_pipeline.facts import Facts, table

if TYPE_CHECKING:
    from dormouse_core.artifacts.store import Store


def describe(made: Made, facts: Facts, seconds: float) -> dict[str, Any]:
    """Metadata of one materialisation, in the order a person reads it."""
    artifact = made.artifact
    shown: dict[str, Any] = dict(facts)
    shown[lineage.SECONDS] = round(seconds, 3)
    shown["path"] = dg.MetadataValue.path(str(made.store.path(artifact)))
    shown["identity"] = artifact.identity
    shown["file_sha256"] = artifact.file_sha256
    shown["config_sha256"] = made.config.sha256()
    if artifact.provenance.parents:
        shown["parents"] = parents_table(made.store, artifact)
    counters = artifact.provenance.counters
    if counters:
        shown["counters"] = table({"counter": name, "n": n} for name, n in counters.items())
    if made.ledger.arms():
        shown["arms"] = table({"arm": name, "ran/asked": ran} for name, ran in made.ledger.arms().items())
    if made.ledger.seconds:
        shown["seconds_by_part"] = table({"part": name, "seconds": round(n, 3)} for name, n in sorted(made.ledger.seconds.items()))
    if made.ledger.lines:
        shown["said"] = dg.MetadataValue.md("\n".join(f"- {line}" for line in made.ledger.lines))
    shown[lineage.ARTIFACT] = dg.MetadataValue.json(artifact.model_dump(mode="json"))
    return shown


def parents_table(store: "Store", artifact: Artifact) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """Every parent: role, kind, identity, file and the run that made it (`-` where the store no longer holds it)."""
    rows = []
    for parent in artifact.provenance.parents:
        found = store.find(parent.kind, parent.identity)
        rows.append({"role": parent.role, "kind": str(parent.kind), "identity": parent.identity[:16],
                     "file": found.path if found else "-", "run": (found.provenance.run_id if found else "") or "-"})
    return table(rows)
