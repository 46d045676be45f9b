"""The learning curve as a picture: pass rate a round, pool by pool, over all cycles of a line, and before and after with intervals.

Points are the training rounds' own pass rates: of the tasks the curriculum chose, so a curve may stay flat while the policy gets
better. What was learnt is the right panel: the same fresh tasks, before and after.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.artifacts.store import Store
from dormouse_core.evaluation.report import SplitReport
from dormouse_core.evaluation.statistics import Interval

COLOUR = {"agent": "#1b6ca8", "math": "#c8553d", "code": "#3d8361", "mean": "#333333"}
_SMOOTH = 5
_PREFIX = "pass_rate."


class CycleCurve(NamedTuple):
    """The rounds of one cycle, as its RL checkpoint keeps them."""

    cycle: str
    rounds: Sequence[Mapping[str, float]]
    """One row a round; `pass_rate.POOL` where the pool was drawn."""
    promoted: bool


def cycle_curve(store: Store, checkpoint: Artifact, promoted: bool) -> CycleCurve:
    """The curve of an RL checkpoint."""
    state = store.read_checkpoint(checkpoint).state
    return CycleCurve(str(state.get("cycle", "")), state.get("metrics", []), promoted)


def smooth(values_R: np.ndarray, window: int = _SMOOTH) -> np.ndarray:
    """Running mean over up to `window` rounds, ending at each; nan rounds are left out, nan where nothing is known."""
    known = ~np.isnan(values_R)
    out = np.full(len(values_R), np.nan)
    for i in range(len(values_R)):
        part = slice(max(0, i + 1 - window), i + 1)
        if known[part].any():
            out[i] = values_R[part][known[part]].mean()
    return out


def series(cycles: Sequence[CycleCurve]) -> dict[str, np.ndarray]:
    """Pool -> pass rate [R] of every round of all cycles in order; nan where the round drew none of the pool."""
    rows = [row for cycle in cycles for row in cycle.rounds]
    pools = list(dict.fromkeys(name.removeprefix(_PREFIX) for row in rows for name in row if name.startswith(_PREFIX)))
    return {pool: np.array([row.get(_PREFIX + pool, np.nan) for row in rows]) for pool in pools}


def learning_curve(cycles: Sequence[CycleCurve], out: Path, before: SplitReport | None = None, after: SplitReport | None = None,
                   title: str = "") -> Path:
    """Draw the picture; returns `out`. before, after: the SFT base and the promoted checkpoint on the same fresh tasks; without them the
    right panel is left out."""
    both = before is not None and after is not None
    figure = Figure(figsize=(11 if both else 7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2 if both else 1, width_ratios=[2, 1] if both else [1], squeeze=False)[0]
    _rounds(panels[0], cycles)
    if before is not None and after is not None:
        _bars(panels[1], before, after)
    if title:
        figure.suptitle(title, fontsize=11)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format="png", dpi=130, metadata={"Software": None})
    return out


def _rounds(axes: Any, cycles: Sequence[CycleCurve]) -> None:
    for pool, rate_R in series(cycles).items():
        axes.plot(rate_R, ".", color=COLOUR.get(pool), alpha=0.25, markersize=4)
        axes.plot(smooth(rate_R), color=COLOUR.get(pool), label=pool)
    start = 0
    for cycle in cycles:
        axes.axvline(start, color="#999999", linewidth=0.7, linestyle=":")
        axes.text(start, 1.01, f" {cycle.cycle.rpartition('.')[2]}{' promoted' if cycle.promoted else ''}", fontsize=8, color="#555555")
        start += len(cycle.rounds)
    axes.set(xlabel="round", ylabel="pass rate of the round's tasks", ylim=(0, 1), xlim=(0, max(start - 1, 1)))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="upper left", fontsize=9)


def _bars(axes: Any, before: SplitReport, after: SplitReport) -> None:
    names = [p.pool for p in after.pools]
    known = {p.pool: p for p in before.pools}
    for offset, label, reports, alpha in ((-0.2, "before", [known.get(n) for n in names], 0.45), (0.2, "after", list(after.pools), 1.0)):
        for i, report in enumerate(reports):
            if report is not None:
                _bar(axes, i + offset, report.sampled, COLOUR.get(report.pool, "#888888"), alpha, label if i == 0 else "")
    axes.set_xticks(range(len(names)), names)
    axes.set(ylim=(0, 1), ylabel="pass@1 on fresh tasks, sampled", title="pale: before, full: after; 95 % intervals")
    axes.title.set_fontsize(9)


def _bar(axes: Any, x: float, value: Interval, colour: str, alpha: float, label: str) -> None:
    span = [[max(value.value - value.low, 0.0)], [max(value.high - value.value, 0.0)]]
    axes.bar(x, value.value, 0.38, color=colour, alpha=alpha, label=label, yerr=span, capsize=3, error_kw={"elinewidth": 1})
