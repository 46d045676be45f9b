"""Running one stage function on files: the store's lock, a ledger with progress, an optional copy, and what to print of it."""

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.config.run import RunConfig
from dormouse_core.kernels.seen import report
from dormouse_core.ledger import Ledger
from dormouse_pipeline.cli.progress import Reporter
from dormouse_pipeline.locking import hold_store
from dormouse_pipeline.resources import Crew

if TYPE_CHECKING:
    from dormouse_core.artifacts.store import Store


@dataclass(frozen=True)
class Done:
    """A stage that ended, and where its artifact is."""

    artifact: Artifact
    store: "Store"
    ledger: Ledger
    seconds: float
    out: Path | None
    threads: int
    workers: int

    def as_json(self) -> dict[str, Any]:
        return {"kind": str(self.artifact.kind), "identity": self.artifact.identity, "path": str(self.store.path(self.artifact)),
                "out": str(self.out) if self.out else None, "seconds": round(self.seconds, 3), "threads": self.threads,
                "workers": self.workers,
                "counters": self.artifact.provenance.counters, "arms": self.ledger.arms(), "said": self.ledger.lines}

    def lines(self) -> list[str]:
        """What every stage ends with."""
        arms = [f"ran/asked   {name}: {ran}" for name, ran in self.ledger.arms().items() if _fell_short(ran)]
        copy = [f"copied to   {self.out}"] if self.out else []
        ran = f"ran on      {self.workers} worker(s) of {self.threads} thread(s)  (roll.workers, runtime.threads)"
        return [*arms, ran, f"wrote       {self.store.path(self.artifact)}  ({self.artifact.kind} {self.artifact.identity[:16]}, "
                       f"{self.seconds:.1f} s)", *copy]


def _fell_short(ran: str) -> bool:
    done, _, asked = ran.partition("/")
    return done != asked


def call(store: "Store", label: str, stage: Callable[..., Artifact], config: RunConfig, *inputs: Artifact, out: Path | None = None,
         quiet: bool = False, **keywords: Any) -> Done:
    """Call a stage function under the store's lock. One pool of workers serves it where it takes one."""
    with Reporter(quiet=quiet) as reporter, hold_store(store.root, f"dormouse {label}"), Crew() as crew:
        ledger = reporter.ledger()
        if "pool" in inspect.signature(stage).parameters:
            keywords["pool"] = crew.pool(config)
        started = time.perf_counter()
        artifact = stage(config, *inputs, store=store, ledger=ledger, **keywords)
        report(ledger)
        seconds = time.perf_counter() - started
        copied = store.export(artifact, out) if out else None
    return Done(artifact, store, ledger, seconds, copied, config.runtime.threads, config.roll.workers)
