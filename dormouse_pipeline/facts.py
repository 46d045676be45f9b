"""The few numbers, tables and charts of each kind of artifact that a person looks for first. Read from the artifact, never recomputed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from dormouse_core.artifacts.provenance import Kind
from dormouse_pipeline.charts import line_chart

if TYPE_CHECKING:
    from dormouse_core.evaluation.statistics import Interval
    from dormouse_core.tasks.plan import CellState
    from dormouse_pipeline.checks import Made

Facts = dict[str, Any]
CURVES = ("pass_rate", "entropy", "kl", "gradient_norm", "bytes_mean")
"""Columns of RL's table of rounds that get a chart."""


def facts_of(made: "Made", seconds: float) -> Facts:
    """Facts of one artifact, by its kind; for a checkpoint by the stage that wrote it."""
    artifact = made.artifact
    reader = CHECKPOINTS.get(artifact.provenance.stage) if artifact.kind is Kind.CHECKPOINT else READERS.get(artifact.kind)
    return reader(made, seconds) if reader else {}


def headline(facts: Facts, most: int = 7) -> str:
    """The first plain numbers and words of facts on one line, for a log."""
    plain = {name: value for name, value in facts.items() if "/" not in name and "sha256" not in name and (
        isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < 40))}
    return "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in list(plain.items())[:most])


def table(rows: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """Rows as a metadata table (Dagster refuses an empty one)."""
    records = [dg.TableRecord({name: _plain(value) for name, value in row.items()}) for row in rows]
    return dg.MetadataValue.table(records) if records else dg.MetadataValue.text("none")


def _plain(value: Any) -> Any:
    """Dagster stores plain values only; an enum or a numpy number is a subclass of one."""
    if isinstance(value, bool):
        return value
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def _chart(title: str, x_N: list[float], series: Mapping[str, list[float | None]]) -> Facts:
    text = line_chart(title, x_N, series)
    return {title.replace(" ", "_"): dg.MetadataValue.md(text)} if text else {}


def _pretrained(made: "Made", seconds: float) -> Facts:
    state = made.store.read_checkpoint(made.artifact).state
    bits = {f"bits_per_byte_{name}": float(value) for name, value in state["bits_per_byte"].items()}
    return bits | {"train_bytes_per_second": made.counter("train_bytes") / max(seconds, 1e-9)}


def _sft(made: "Made", seconds: float) -> Facts:
    state = made.store.read_checkpoint(made.artifact).state
    curve = state["curve"]
    chart = _chart("loss in nats a byte over steps", [p["step"] for p in curve],
                   {"held-out": [p["heldout"] for p in curve], "train": [p.get("train") for p in curve]})
    return {"best_loss": float(state["best_loss"]), "best_step": int(state["best_step"]), "steps": int(state["step"]),
            "ended": state["ended"], "rows": int(state["rows"]), "steps_per_second": state["step"] / max(seconds, 1e-9)} | chart


def _rl(made: "Made", seconds: float) -> Facts:
    state = made.store.read_checkpoint(made.artifact).state
    rows: list[dict[str, float]] = state["metrics"]
    ends = {f"{name}_{where}": float(row[name]) for where, row in (("first", rows[0]), ("last", rows[-1]))
            for name in ("pass_rate", "entropy", "kl") if name in row} if rows else {}
    charts: Facts = {}
    for name, columns in [(c, (c,)) for c in CURVES] + [("hack_rate", ("hack_rate", "hack_rate_low", "hack_rate_high"))]:
        charts |= _chart(f"{name} over rounds", [row["round"] for row in rows], {c: [row.get(c) for row in rows] for c in columns})
    shown = [{name: round(value, 4) for name, value in row.items()} for row in rows]
    seen = dict.fromkeys(name for row in shown for name in row)
    consolidation = {f"consolidation_{name}": value for name, value in state["consolidation"].items()}
    return {"rounds": int(state["rounds"]), "ended": state["ended"], "interleave": float(state["interleave"])} | ends | _hacks(
        state.get("hack_rate")) | consolidation | {
        "groups_live": made.counter("rl.groups_live"), "groups_dead": made.counter("rl.groups_dead"), "forks": made.counter("rl.forks"),
        "new_bytes": made.counter("rl.bytes"), "new_bytes_per_second": made.counter("rl.bytes") / max(seconds, 1e-9)} | charts | {
        "rounds_table": table({name: row.get(name, "") for name in seen} for row in shown)}


def _hacks(rate: dict[str, Any] | None) -> Facts:
    """The proven hack rate over all rounds, with its interval; nothing where no bait was laid."""
    if not rate:
        return {}
    return {"hack_rate": rate["rate"], "hack_rate_low": rate["low"], "hack_rate_high": rate["high"], "baits_taken": rate["proven"],
            "baits": rate["episodes"], "baits_by_trap": table({"trap": trap} | n for trap, n in rate["by_trap"].items())}


def _rollouts(made: "Made", seconds: float) -> Facts:
    from dormouse_core.rollouts import stage
    from dormouse_core.verifiers.report import shown

    rolled = made.store.read_record(made.artifact, stage.RolloutSet)
    sample = stage.load(made.store, made.artifact)[:12]
    rows = [{"cell": t.cell, "prompt": shown(t.prompt), "actions": " | ".join(shown(s.action_bytes) for s in t.steps), "stop": str(t.stop),
             "bytes": t.tokens, "fork_of": t.parent_id[:8]} for t in sample]
    return {"trajectories": rolled.trajectories, "forks": rolled.forks, "new_bytes": rolled.bytes,
            "trajectories_per_second": rolled.trajectories / max(seconds, 1e-9), "new_bytes_per_second": rolled.bytes / max(seconds, 1e-9),
            "shards": len(rolled.shards), "dagster/row_count": rolled.trajectories, "sample": table(rows)}


def _verdicts(made: "Made", seconds: float) -> Facts:
    from dormouse_core.verifiers.report import summary, verdicts_from_table

    verdicts = verdicts_from_table(made.store.read_table(made.artifact))
    counted = summary(verdicts)
    decided = Counter((v.kind.value, v.verdict.value, v.decided_by) for v in verdicts)
    layers = sorted({layer for v in verdicts for layer in v.layers})
    rate = counted.verdicts / max(seconds, 1e-9)
    return {"verdicts": counted.verdicts, "pass_share": counted.pass_share, "no_verdict_share": counted.no_verdict_share,
            "verdicts_per_second": rate, "dagster/row_count": counted.verdicts,
            "classes": table({"class": name, "n": n} for name, n in counted.by_class.items()),
            "decisions": table({"verifier": kind, "class": name, "decided by": by, "n": n}
                               for (kind, name, by), n in decided.most_common()),
            "isolation": ", ".join(f"{name} {n}" for name, n in counted.by_isolation.items()), "layers": " ".join(layers) or "none",
            "verifier_sha256": verdicts[0].verifier_sha256 if verdicts else ""}


def _cells(cells: "Iterable[CellState]") -> dg.TableMetadataValue | dg.TextMetadataValue:
    return table({"cell": c.name, "pool": c.pool, "band": str(c.band), "rate": c.rate, "low": c.rate_low,
                  "high": c.rate_high, "tried": c.tried, "share": round(c.weight, 4), "factor": c.factor} for c in cells)


def _plan(made: "Made", seconds: float) -> Facts:
    from dormouse_core.evolution.plan import start_of

    start = start_of(made.artifact, made.store)
    causes = "\n".join(f"- {line}" for line in start.plan.causes) or "nothing moved this plan"
    return {"cells": len(start.plan.cells), "starts_from": start.base.path, "suite": start.plan.suite, "seed": start.plan.seed,
            "shares": _cells(start.plan.cells), "causes": dg.MetadataValue.md(causes)}


def _curriculum(made: "Made", seconds: float) -> Facts:
    from dormouse_core.evolution.curriculum import Curriculum

    record = made.store.read_record(made.artifact, Curriculum)
    return {f"band_{name}": n for name, n in record.bands.items()} | {"cells": _cells(record.cells)}


def _failures(made: "Made", seconds: float) -> Facts:
    rows = made.store.read_table(made.artifact).to_pylist()
    causes = Counter((f"{r['family']}/d{r['difficulty']}", r["verdict"], r["decided_by"]) for r in rows)
    return {"unsolved_tasks": len(rows), "new": made.counter("failure_memory.new"), "dagster/row_count": len(rows),
            "diagnoses": table({"cell": cell, "class": verdict, "decided by": by, "tasks": n}
                               for (cell, verdict, by), n in causes.most_common(40))}


def _collapse(made: "Made", seconds: float) -> Facts:
    from dormouse_core.monitors.collapse import CollapseReport

    report = made.store.read_record(made.artifact, CollapseReport)
    rows = [{"pool": p.pool, "regime": str(p.regime), "gap_base": p.base.dependence.gap, "gap": p.candidate.dependence.gap,
             "entropy_base": p.base.entropy, "entropy": p.candidate.entropy, "distinct": p.candidate.distinct, "reason": p.reason}
            for p in report.pools]
    return {"regime": str(report.regime), "reason": report.reason, "pools": table(rows),
            "skipped": "; ".join(report.skipped) or "none"} | {f"mi_gap_{p.pool}": p.candidate.dependence.gap for p in report.pools}


def _points(interval: "Interval") -> str:
    return f"{100 * interval.value:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def _holdout(made: "Made", seconds: float) -> Facts:
    from dormouse_core.evaluation.holdout import HoldoutVerdict

    verdict = made.store.read_record(made.artifact, HoldoutVerdict)
    rows = [{"name": c.name, "tasks": c.tasks, "incumbent": round(c.incumbent, 4), "candidate": round(c.candidate, 4),
             "points": _points(c.difference)} for c in (*verdict.pools, verdict.mean, *verdict.cells)]
    curves = {name: [i.value for i in report.mean.budget.correct] for name, report in verdict.reports.items()}
    budgets = [float(b) for b in verdict.reports["candidate"].mean.budget.budgets]
    return {"promote": verdict.promote, "reason": verdict.reason, "incumbent_pass_at_1": verdict.mean.incumbent,
            "candidate_pass_at_1": verdict.mean.candidate, "difference": verdict.mean.difference.value,
            "difference_low": verdict.mean.difference.low, "difference_high": verdict.mean.difference.high, "greedy_p": verdict.greedy_p,
            "changes": table(rows), **_chart("correct within new bytes", budgets, {name: list(row) for name, row in curves.items()})}


def _review(made: "Made", seconds: float) -> Facts:
    from dormouse_core.evolution.strategy_review import StrategyReview

    review = made.store.read_record(made.artifact, StrategyReview)
    return {"lost": review.lost, "finding": review.finding, "weakest_pool": review.weakest or "none",
            "moves": table({"cell": m.cell, "factor": m.factor, "cause": m.cause} for m in review.moves)}


def _promotion(made: "Made", seconds: float) -> Facts:
    from dormouse_core.evolution.promotion import Promotion

    record = made.store.read_record(made.artifact, Promotion)
    checkpoint = made.store.find(record.checkpoint.kind, record.checkpoint.identity)
    path = str(made.store.path(checkpoint)) if checkpoint else "missing"
    return {"promoted": record.promoted, "reason": record.reason, "checkpoint": record.checkpoint.identity,
            "checkpoint_path": dg.MetadataValue.path(path), "lineage": f"dormouse lineage {path}"}


READERS: dict[Kind, Callable[["Made", float], Facts]] = {
    Kind.ROLLOUTS: _rollouts, Kind.VERDICTS: _verdicts, Kind.CYCLE_PLAN: _plan, Kind.CURRICULUM: _curriculum,
    Kind.FAILURE_MEMORY: _failures, Kind.COLLAPSE_REPORT: _collapse, Kind.HOLDOUT_VERDICT: _holdout,
    Kind.STRATEGY_REVIEW: _review, Kind.PROMOTION: _promotion}
CHECKPOINTS: dict[str, Callable[["Made", float], Facts]] = {
    "pretrained_checkpoint": _pretrained, "sft_checkpoint": _sft, "rl_checkpoint": _rl}
