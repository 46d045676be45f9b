"""`dormouse loop`: from nothing to a promoted checkpoint, cycle by cycle, through the assets the UI shows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse_pipeline.cli.options import AsJson, Preset, Seed, Sets, StorePath, emit, out, resumable, with_seed
from dormouse_pipeline.cli.progress import Reporter

if TYPE_CHECKING:
    from dormouse_pipeline.cli.summary import Summary

WAY_ON = "The same command goes on where it stopped: finished assets are skipped, the one that was running goes on from its journal."


@resumable(WAY_ON)
def loop(cycles: Annotated[int | None, typer.Option("--cycles", help="Cycles the line has in all. [default: the preset's]", min=1,
                                                    show_default=False)] = None,
         preset: Preset = "nano", sets: Sets = [],  # noqa: B006 - Typer reads the default
         line: Annotated[str | None, typer.Option("--line", help="Evolution line; another name starts anew from the base. [default: main]",
                                                  show_default=False)] = None,
         seed: Seed = None, store: StorePath = None,
         plot: Annotated[Path | None, typer.Option("--plot", help="Where the curve goes. [default: STORE/curve-LINE.png]",
                                                   show_default=False)] = None,
         json: AsJson = False) -> None:
    """Pretrain, SFT, then evolve cycle by cycle: roll, verify, learn, evaluate on fresh tasks, promote if it is proven better.

    Done work is skipped, so the same command resumes, and a higher --cycles goes on.
    """
    from dormouse_core.config.resolve import resolve
    from dormouse_pipeline.cli.summary import summarise
    from dormouse_pipeline.driver import Driver
    from dormouse_pipeline.instance import Project
    from dormouse_pipeline.locking import hold_store
    from dormouse_pipeline.resources import Crew, Settings

    changes = [*with_seed(sets, seed), *([f"loop.line={line}"] if line else [])]
    config = resolve(preset, changes)
    project = Project.at(store)
    with Reporter(quiet=json) as reporter, hold_store(project.store, "dormouse loop"), Crew() as crew:
        driver = Driver(project, Settings(preset=preset, sets=changes), config.loop.line, cycles or config.loop.cycles, reporter.say,
                        reporter.ledger, crew)
        runs = driver.run()
        result = summarise(project, config, driver.line, driver.cycles, runs, reporter.ledger("headline"), crew,
                           plot or project.store / f"curve-{driver.line}.png")
    emit(result.as_json(), json, lambda: _show(result))


def _show(result: "Summary") -> None:
    for table in result.tables():
        out.print()
        out.print(table, markup=False)
    out.print()
    for name, value in result.closing():
        out.print(f"{name:<12}{value}", markup=False)


