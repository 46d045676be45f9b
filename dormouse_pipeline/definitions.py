"""The code location: everything `dagster dev`, `dormouse ui` and `dormouse loop` load. Imports no torch."""

import os

import dagster as dg

import assets
from dormouse_pipeline.instance import Project
from dormouse_pipeline.io_manager import store_io_manager
from dormouse_pipeline.jobs import base_job, evolve_job
from dormouse_pipeline.resources import Crew, MakeLedger, Say, Settings, log_end, log_ledger, workshop
from dormouse_pipeline.sensors import start_next_cycle

STORE_VARIABLE = "DORMOUSE_STORE"
"""How `dormouse ui --store DIR` tells its own child processes; nothing a person has to set."""


def build_defs(project: Project, settings: Settings | None = None, make_ledger: MakeLedger = log_ledger, say: Say = log_end,
               crew: Crew | None = None) -> dg.Definitions:
    """The definitions over one project's store."""
    return dg.Definitions(
        assets=dg.load_assets_from_package_module(assets),
        jobs=[base_job, evolve_job],
        sensors=[start_next_cycle(project.store)],
        executor=dg.in_process_executor,
        resources={"settings": settings or Settings(), "workshop": workshop(project, make_ledger, say, crew), "store_io": store_io_manager})


defs = build_defs(Project.at(os.environ.get(STORE_VARIABLE)))
