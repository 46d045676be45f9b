"""`dormouse lineage FILE`: where an artifact came from, from the files alone; the run ids too where the event log has them."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dormouse_pipeline.cli.options import AsJson, StorePath, chosen_store, emit, resumable

if TYPE_CHECKING:
    from dormouse_core.artifacts.lineage import Lineage


@resumable("Nothing was changed.")
def lineage(file: Annotated[Path, typer.Argument(help="A checkpoint or any other artifact file.", show_default=False)],
            store: StorePath = None, json: AsJson = False) -> None:
    """Print checkpoint <- verifier run <- rollouts <- tasks <- parent, back to the pretrained base.

    Reads the files alone; where the project has a Dagster event log, the assets, cycles and runs that recorded each artifact
    follow. Exit code 1 when an ancestor is missing or damaged.
    """
    from dormouse_core.artifacts.lineage import render, walk

    held = chosen_store(store)
    tree = walk(held, held.open(file))
    recorded = _recorded(store, tree)
    emit(_as_json(tree, recorded), json, lambda: _show(render(tree), tree, recorded))
    if not tree.complete:
        raise typer.Exit(1)


def _recorded(store: Path | None, tree: "Lineage") -> dict[str, list[dict[str, str]]]:
    """Identity -> what the event log says of it: asset, cycle, run; oldest first. Empty without an event log."""
    from dormouse_pipeline.instance import Project, project_instance
    from dormouse_pipeline.jobs import BASE, CYCLE
    from dormouse_pipeline.lineage import counts, history

    project = Project.at(store)
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    if not (project.home / "history").exists():
        return found
    with project_instance(project) as instance:
        for asset in (*BASE, *CYCLE):
            for made, step in reversed(history(instance, asset, None)):
                if made.artifact.identity in tree.found and counts(instance, made.run_id, step):
                    found[made.artifact.identity].append(
                        {"asset": asset, "cycle": made.partition or "", "run_id": made.run_id, "storage_id": str(made.storage_id)})
    return found


def _as_json(tree: "Lineage", recorded: dict[str, list[dict[str, str]]]) -> dict[str, Any]:
    nodes = [{"identity": a.identity, "kind": str(a.kind), "path": a.path, "stage": a.provenance.stage, "seed": a.provenance.seed,
              "run_id": a.provenance.run_id, "parents": [p.model_dump(mode="json") for p in a.provenance.parents],
              "recorded": recorded.get(a.identity, [])} for a in tree.found.values()]
    return {"root": tree.root.identity, "complete": tree.complete, "problems": tree.problems, "artifacts": nodes}


def _show(text: str, tree: "Lineage", recorded: dict[str, list[dict[str, str]]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(text, markup=False)
    rows = [(identity, entry) for identity in tree.found for entry in recorded.get(identity, [])]
    if rows:
        console.print("\nrecorded by Dagster:")
    for identity, entry in rows:
        where = entry["asset"] + (f" of {entry['cycle']}" if entry["cycle"] else "")
        console.print(f"  {identity[:16]}  {where}  run {entry['run_id']}", markup=False)
    origins = ", ".join(f"{a.kind} {a.identity[:16]}" for a in tree.origins)
    console.print(f"\n{len(tree.found)} artifacts back to {origins}" if tree.complete
                  else f"\nINCOMPLETE: {len(tree.problems)} ancestors are missing or damaged", markup=False)
