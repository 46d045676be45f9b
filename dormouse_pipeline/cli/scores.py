"""Tables of evaluations: what `post-train eval` and `loop` print of a report and of a holdout verdict."""

from typing import TYPE_CHECKING

from rich.table import Table

from dormouse_pipeline.cli.options import grid

if TYPE_CHECKING:
    from dormouse_core.admission.honeypots import HackRate
    from dormouse_core.evaluation.holdout import HoldoutVerdict
    from dormouse_core.evaluation.report import EvalReport, SplitReport
    from dormouse_core.evaluation.statistics import Interval


def interval(value: "Interval") -> str:
    """`0.412 [0.370, 0.455]`."""
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def signed(value: "Interval") -> str:
    return f"{value.value:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"


def split_tables(report: "EvalReport") -> list[Table]:
    """Three tables a split (scores, budgets, bounds), then the hack rate where it was measured."""
    tables = [table for split in report.splits for table in (_split(split), _budget(split), _bounds(split))]
    return tables + ([hack_table(report.hacks.rate)] if report.hacks else [])


def hack_table(rate: "HackRate") -> Table:
    """Baits by trap, and the proven rate with its interval."""
    from dormouse_core.rollouts.honeypots import describe

    return grid(f"honeypots: {describe(rate).partition(' (')[0]}", ["trap", "episodes", "taken"], [
        [trap, t.episodes, t.proven] for trap, t in rate.by_trap.items()])


def _split(split: "SplitReport") -> Table:
    shown = [k for k in split.mean.pass_at if k > 1]
    rows = [[p.pool, p.tasks, interval(p.greedy), interval(p.sampled), *(interval(p.pass_at[k]) if k in p.pass_at else "-" for k in shown),
             p.uncounted] for p in split.pools]
    ks = [f"pass@{k}" for k in shown]
    return grid(f"{split.split}: pass@1 and pass@k", ["pool", "tasks", "greedy", "sampled", *ks, "uncounted"], rows)


def _budget(split: "SplitReport") -> Table:
    curve = split.mean.budget
    rows = [[budget, interval(value)] for budget, value in zip(curve.budgets, curve.correct, strict=True)]
    return grid(f"{split.split}: correct@budget, mean of pools", ["new bytes", "correct"], rows)


def _bounds(split: "SplitReport") -> Table:
    rows = [[b.policy, b.pool, f"{b.rate:.3f}", f"{'at least' if b.policy == 'oracle' else 'at most'} {b.limit:.3f}",
             "yes" if b.holds else "NO"] for b in split.bounds]
    return grid(f"{split.split}: policies that bound the suite", ["policy", "pool", "rate", "allowed", "holds"], rows)


def compared(before: "SplitReport", after: "SplitReport", names: tuple[str, str] = ("before", "after")) -> list[Table]:
    """Two checkpoints on the same tasks: pass@1 by pool, and correct@budget of the mean."""
    rows = [[b.pool, b.tasks, interval(b.sampled), interval(a.sampled), _ratio(b.sampled.value, a.sampled.value), interval(b.greedy),
             interval(a.greedy)] for b, a in zip(before.pools, after.pools, strict=True)]
    head = ["pool", "tasks", f"sampled {names[0]}", f"sampled {names[1]}", "ratio", f"greedy {names[0]}", f"greedy {names[1]}"]
    scores = grid("pass@1 on fresh tasks", head, rows)
    b, a = before.mean.budget, after.mean.budget
    budget_rows = [[budget, interval(x), interval(y)] for budget, x, y in zip(b.budgets, b.correct, a.correct, strict=True)]
    budgets = grid("correct@budget on fresh tasks, mean of pools", ["new bytes", names[0], names[1]], budget_rows)
    return [scores, budgets]


def _ratio(before: float, after: float) -> str:
    return f"{after / before:.2f}x" if before else "-"


def changes_table(verdict: "HoldoutVerdict") -> Table:
    """The paired differences a promotion rests on."""
    rows = [[c.name, c.tasks, f"{c.incumbent:.3f}", f"{c.candidate:.3f}", signed(c.difference)] for c in (*verdict.pools, verdict.mean)]
    return grid(f"{verdict.cycle}: {verdict.reason}", ["pool", "tasks", "incumbent", "candidate", "paired difference"], rows)
