"""What a stage is handed: settings a person may change at launch, and the workshop (store, progress) a project fixes.

The store is no launch setting: it belongs to the event log it is recorded in.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from dormouse_core.config.resolve import resolve, resolve_from
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import Ledger
from dormouse_pipeline.instance import Project
from dormouse_pipeline.locking import hold_store

if TYPE_CHECKING:  # the store reads checkpoints and so imports torch, which loading the definitions must not
    from dormouse_core.artifacts.store import Store
    from dormouse_core.rollouts.workers import WorkerPool

DEFAULT_PRESET = "nano"
MakeLedger = Callable[[dg.AssetExecutionContext], Ledger]
Say = Callable[[dg.AssetExecutionContext, float, str], None]
"""(node, seconds, its numbers on one line): a stage has ended."""


class Settings(dg.ConfigurableResource):
    """Read by the base stages and by `cycle_plan`; every later stage of a cycle follows its plan."""

    preset: str = ""
    """Packaged preset or TOML file. Empty: as the line's cycle before, and `nano` where there is none."""
    sets: list[str] = []
    """Changes to it, e.g. `rl.rounds=10`."""

    def config(self, before: RunConfig | None = None) -> RunConfig:
        """The configuration; `before` is that of the line's cycle before. Raises DormouseError on an unknown preset or key."""
        if before is not None and not self.preset:
            return resolve_from(before, self.sets)
        return resolve(self.preset or DEFAULT_PRESET, self.sets)


class Crew:
    """The worker pool that the stages of a run share: started when the first stage asks, replaced when it was closed (a stage that
    fails closes it) or another size is asked for. A context manager."""

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None

    def pool(self, config: RunConfig) -> "WorkerPool":
        """A live pool of the size the configuration names."""
        from dormouse_core.rollouts.workers import WorkerPool

        size = (config.roll.workers, config.runtime.threads)
        if self._pool is None or self._pool.closed or (self._pool.workers, self._pool.threads) != size:
            self.close()
            self._pool = WorkerPool(*size)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Workshop:
    """The store, where a stage reports how far it is, and the workers it may use."""

    store: "Store"
    make_ledger: MakeLedger
    say: Say
    crew: Crew


def log_ledger(context: dg.AssetExecutionContext) -> Ledger:
    """Progress and loud lines as log lines of the run, at most one every five seconds."""
    from dormouse_pipeline.cli.progress import Throttled

    shown = Throttled(lambda line: context.log.info(line), every=5.0)
    return Ledger(progress=shown, on_line=lambda line: context.log.warning(line))


def log_end(context: dg.AssetExecutionContext, seconds: float, numbers: str) -> None:
    """The end of a stage as a log line of the run."""
    context.log.info(f"{context.asset_key.to_user_string()} took {seconds:.1f} s  {numbers}")


def workshop(project: Project, make_ledger: MakeLedger = log_ledger, say: Say = log_end, crew: Crew | None = None) -> dg.ResourceDefinition:
    """The workshop of a project. A run holds the store's lock while it lasts, so two runs never write at once. With `crew` the
    workers outlive the run; their owner closes them."""

    @dg.resource(description="The artifact store and the progress reporter; holds the store's lock during a run.")
    def opened(_: Any) -> Iterator[Workshop]:
        from dormouse_core.artifacts.store import Store

        with hold_store(project.store, "a Dagster run"), nullcontext(crew) if crew else Crew() as hired:
            yield Workshop(Store(project.store), make_ledger, say, hired)

    return opened
