"""The end of `dormouse loop`: what the line reached, what it cost, and where the result is. Read from the event log and the store."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from rich.table import Table

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.journal import StageJournal, stage_key
from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_pipeline import lineage
from dormouse_pipeline.cli.options import grid
from dormouse_pipeline.cli.scores import changes_table, compared
from dormouse_pipeline.driver import CycleRun
from dormouse_pipeline.instance import Project, project_instance
from dormouse_pipeline.jobs import BASE, CYCLE
from dormouse_pipeline.partitions import CycleKey
from dormouse_pipeline.resources import Crew

if TYPE_CHECKING:
    from dormouse_core.evaluation.holdout import HoldoutVerdict

OVERHEAD_LIMIT = 0.10
"""Dagster's own share of a cycle above which the table says so."""


@dataclass(frozen=True)
class Summary:
    """Everything `loop` prints."""

    line: str
    base: Artifact
    promoted: Artifact
    headline: "HoldoutVerdict | None"
    """SFT base against promoted checkpoint on the promoted one's fresh tasks; None when nothing was promoted."""
    verdicts: "tuple[HoldoutVerdict, ...]"
    classes: dict[str, int]
    seconds: dict[str, dict[str, float]]
    """Partition (`base` for the base) -> asset -> seconds inside its stage."""
    runs: tuple[CycleRun, ...]
    store: Store
    plot: Path | None
    project: Project

    def tables(self) -> list[Table]:
        """In the order a person reads them."""
        found = [changes_table(v) for v in self.verdicts]
        if self.headline is not None:
            found += compared(self.headline.reports["incumbent"], self.headline.reports["candidate"], ("SFT base", "promoted"))
            found.append(_costs(self.headline))
        found.append(grid("verdicts of all rollouts", ["class", "n"], [[name, n] for name, n in self.classes.items()]))
        found.append(self._seconds())
        if any(run.run_id for run in self.runs):
            found.append(self._overhead())
        return found

    def _seconds(self) -> Table:
        parts = list(self.seconds)
        rows = [[asset, *(f"{self.seconds[p][asset]:.1f}" if asset in self.seconds[p] else "-" for p in parts)]
                for asset in (*BASE, *CYCLE) if any(asset in self.seconds[p] for p in parts)]
        rows.append(["sum", *(f"{sum(self.seconds[p].values()):.1f}" for p in parts)])
        return grid("seconds inside each stage, in this call", ["asset", *parts], rows)

    def _overhead(self) -> Table:
        rows = [[run.partition or "base", f"{run.wall:.1f}", f"{sum(run.stages.values()):.1f}", f"{run.checks:.1f}", f"{run.overhead:.1f}",
                 f"{100 * run.overhead / run.wall:.1f}%" + (" (above 10%)" if run.overhead > OVERHEAD_LIMIT * run.wall else "")]
                for run in self.runs if run.run_id]
        return grid("this call: run, stages, checks, and Dagster's own cost in seconds",
                    ["run", "wall", "stages", "checks", "Dagster", "share"], rows)

    def closing(self) -> list[tuple[str, str]]:
        """Where things are, and the next command."""
        path = self.store.path(self.promoted)
        where = f" --store {self.project.store}" if self.project.store != Project.at().store else ""
        said = [("promoted", f"{path}" + ("" if self.headline else "  (the SFT base: nothing was promoted)")),
                ("base", str(self.store.path(self.base)))]
        if self.plot:
            said.append(("curve", str(self.plot)))
        return [*said, ("lineage", f"dormouse lineage {path}{where}"), ("ui", f"dormouse ui{where}")]

    def as_json(self) -> dict[str, Any]:
        return {
            "line": self.line, "base": {"identity": self.base.identity, "path": str(self.store.path(self.base))},
            "promoted": {"identity": self.promoted.identity, "path": str(self.store.path(self.promoted))},
            "headline": self.headline.model_dump(mode="json") if self.headline else None,
            "cycles": [{"cycle": v.cycle, "promote": v.promote, "reason": v.reason, "difference": v.mean.difference.model_dump(),
                        "incumbent": v.mean.incumbent, "candidate": v.mean.candidate} for v in self.verdicts],
            "verdict_classes": self.classes, "seconds": self.seconds, "plot": str(self.plot) if self.plot else None,
            "runs": [{"partition": r.partition, "run_id": r.run_id, "wall": r.wall, "stages": r.stages, "check_seconds": r.checks,
                      "dagster_seconds": r.overhead, "skipped": list(r.skipped)} for r in self.runs]}


def _costs(headline: "HoldoutVerdict") -> Table:
    rows = [[name, str(mean.budget.bytes_per_solved or "-"), str(mean.budget.median_correct_bytes or "-")]
            for name, mean in (("SFT base", headline.reports["incumbent"].mean), ("promoted", headline.reports["candidate"].mean))]
    return grid("bytes written for each solved task", ["", "bytes per solved task", "median of right answers"], rows)


def summarise(project: Project, config: RunConfig, line: str, cycles: int, runs: Sequence[CycleRun], ledger: Ledger, crew: Crew,
              plot: Path) -> Summary:
    """Collect the line's results; compare SFT base and promoted checkpoint on fresh tasks of the promoted one."""
    from dormouse_core.evaluation.holdout import HoldoutVerdict
    from dormouse_core.evolution.plan import start_of
    from dormouse_core.evolution.promotion import Promotion

    store = Store(project.store)
    with project_instance(project) as instance:
        keys = [str(CycleKey(line, number)) for number in range(cycles)]
        made = {key: _made(instance, key) for key in keys}
        base_made = {asset: found for asset in BASE if (found := lineage.latest(instance, asset, None)) is not None}
    verdicts = tuple(store.read_record(made[key]["holdout_verdict"].artifact, HoldoutVerdict) for key in keys)
    base = start_of(made[keys[0]]["cycle_plan"].artifact, store).sft
    last = store.read_record(made[keys[-1]]["promoted_checkpoint"].artifact, Promotion).checkpoint
    promoted = store.find(last.kind, last.identity)
    if promoted is None:
        raise DormouseError(f"{keys[-1]} promoted checkpoint {last.identity[:16]}, which the store no longer holds: restore it.")
    headline = _headline(config, base, promoted, store, ledger, crew) if promoted.identity != base.identity else None
    seconds = {"base": {a: m.seconds for a, m in base_made.items()}} | {k: {a: m.seconds for a, m in made[k].items()} for k in keys}
    return Summary(line=line, base=base, promoted=promoted, headline=headline, verdicts=verdicts, classes=_classes(made.values()),
                   seconds=seconds, runs=tuple(runs), store=store, plot=_plot(store, line, made, headline, plot), project=project)


def _headline(config: RunConfig, base: Artifact, promoted: Artifact, store: Store, ledger: Ledger, crew: Crew) -> "HoldoutVerdict":
    """SFT base against promoted checkpoint on the promoted one's fresh tasks. Measured once a pair; a later call reads it back."""
    from dormouse_core.evaluation import holdout
    from dormouse_core.evaluation.holdout import HoldoutVerdict

    journal = StageJournal(store, stage_key("headline", base.identity, promoted.identity, config.sha256(), code_version()))
    if journal.done("verdict") is None:
        measured = holdout.run(config, base, promoted, store=store, ledger=ledger, pool=crew.pool(config))
        journal.commit("verdict", measured.model_dump(mode="json"))
    return store.read_record(Artifact.model_validate(journal.done("verdict")), HoldoutVerdict)


def _made(instance: dg.DagsterInstance, key: str) -> dict[str, lineage.Materialised]:
    found = {asset: lineage.latest(instance, asset, key) for asset in CYCLE}
    missing = [asset for asset, made in found.items() if made is None]
    if missing:
        raise DormouseError(f"{key} has no {', '.join(missing)}: run `dormouse loop` again, it makes what is missing.")
    return {asset: made for asset, made in found.items() if made is not None}


def _plot(store: Store, line: str, made: dict[str, dict[str, lineage.Materialised]], headline: "HoldoutVerdict | None", path: Path) -> Path:
    """The curve of the line's rounds, and base against promoted where something was promoted."""
    from dormouse_core.evaluation.plot import cycle_curve, learning_curve
    from dormouse_core.evolution.promotion import Promotion

    curves = [cycle_curve(store, assets["rl_checkpoint"].artifact,
                          store.read_record(assets["promoted_checkpoint"].artifact, Promotion).promoted) for assets in made.values()]
    before, after = (headline.reports["incumbent"], headline.reports["candidate"]) if headline else (None, None)
    return learning_curve(curves, path, before, after, title=f"line {line}")


def _classes(made: Any) -> dict[str, int]:
    """Verdict classes over all rollouts of the line: round 0 of each cycle and the rounds inside RL, commonest first."""
    counts: Counter[str] = Counter()
    for assets in made:
        for name in ("verified_trajectories", "rl_checkpoint"):
            for counter, n in assets[name].artifact.provenance.counters.items():
                if counter.startswith("verdicts."):
                    counts[counter.removeprefix("verdicts.")] += n
    return dict(counts.most_common())
