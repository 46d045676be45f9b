"""What the claim came to: records of the seeds, the bounds they are held against, and docs/results.md.

    python -m benchmarks.results [--store store/claim] [--out docs/results.md]

reads STORE/seed-N.json and computes nothing anew, so the page is reprinted in a second.
Not here: how a seed is measured (claim.py), what the controls do (controls.py).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from benchmarks.controls import ControlRun
from benchmarks.timed_loop import LoopRun
from dormouse_core.artifacts.atomic import write_atomic
from dormouse_core.config.base import Record
from dormouse_core.evaluation.holdout import Change
from dormouse_core.evaluation.policies import Bound, BoundPolicy
from dormouse_core.evaluation.report import SplitReport
from dormouse_core.evaluation.statistics import Interval, Ratio
from dormouse_core.ledger import DormouseError

BASE, PROMOTED, MORE_SFT, OWN_PASSES = ROLES = ("base", "promoted", "more_sft", "own_passes")
TITLE = {BASE: "SFT base", PROMOTED: "promoted", MORE_SFT: "more SFT on the same rows", OWN_PASSES: "SFT on the base's own passes"}
VALID_BASE = (0.15, 0.40)
RATIO, GAIN, SEED_RATIO, WALL, DAGSTER, SEEDS = 2.0, 0.15, 1.5, 480.0, 0.10, 3
_ROUNDING = 1e-9
_Z = 1.959963984540054


class SeedResult(Record):
    """Everything that was measured for one seed."""

    seed: int
    preset: str
    suite: str
    code_version: str
    command: str
    """What measures this seed again, but for `--seeds`."""
    tasks_per_pool: int
    cores: int
    samples: int
    loop: LoopRun
    controls: dict[str, ControlRun]
    identities: dict[str, str]
    """Role -> checkpoint."""
    reports: dict[str, SplitReport]
    """Role -> its numbers on the promoted identity's fresh tasks."""
    gains: dict[str, tuple[Change, ...]]
    """Role -> promoted minus that role on the same tasks: each pool, then their mean."""
    greedy_ratio: Ratio | None
    """Greedy pass@1 of promoted over base; None where the base solved nothing."""
    left_out: int
    """Tasks without a counted answer of all four."""
    table: str
    """Identity of the per-task table."""

    def sampled(self, role: str) -> Interval:
        return self.reports[role].mean.sampled

    def gain(self, role: str) -> Change:
        return self.gains[role][-1]

    @property
    def invalid(self) -> tuple[str, ...]:
        """Why the seed says nothing about the claim; empty where it does."""
        value, (low, high) = self.sampled(BASE).value, VALID_BASE
        outside = () if low <= value <= high else (f"base pass@1 {value:.3f} is outside {low:.2f}-{high:.2f}",)
        return outside + self.reports[PROMOTED].broken


class Held(Record):
    """One bound of the claim, and whether it holds."""

    bound: str
    number: str
    holds: bool

    @property
    def word(self) -> str:
        return "HOLDS" if self.holds else "FALLS SHORT"


class Row(Record):
    """One line of docs/results.md."""

    claim: str
    number: str
    interval: str
    command: str
    identity: str


def mean_of(intervals: Sequence[Interval | Ratio]) -> Interval | Ratio | None:
    """Mean over seeds with the interval that the tasks of the seeds leave it: their standard errors (a quarter of a normal interval's
    width, near enough) add in squares. How much seeds differ is not in it; the seeds stand beside. None of nothing."""
    if not intervals:
        return None
    value = fmean(i.value for i in intervals)
    if any(i.high is None for i in intervals):
        return Ratio(value=value, low=0.0, high=None)
    errors = [((i.high or 0.0) - i.low) / (2 * _Z) for i in intervals]
    half = _Z * sum(e * e for e in errors) ** 0.5 / len(errors)
    return Interval(value=value, low=value - half, high=value + half)


def judge_claim(results: Sequence[SeedResult]) -> list[Held]:
    """Every bound, in the claim's order. INVALID seeds are counted in the first, and bear on no other bound about pass@1."""
    valid = [r for r in results if not r.invalid]
    held = [Held(bound=f"{SEEDS} seeds, every base valid (pass@1 {VALID_BASE[0]:.2f}-{VALID_BASE[1]:.2f}, suite bounds hold)",
                 number=f"{len(valid)} of {len(results)} seeds valid", holds=len(valid) == len(results) >= SEEDS)]
    ratios = [ratio.value if (ratio := r.gain(BASE).ratio) else 0.0 for r in valid]
    gains = [r.gain(BASE).difference.value for r in valid]
    held += [
        _at_least(f"promoted / base, mean of seeds, at least {RATIO:.1f}x", ratios, RATIO, fmean, lambda v: f"{v:.2f}x"),
        _at_least(f"promoted - base, mean of seeds, at least {100 * GAIN:.0f} points", gains, GAIN, fmean,
                  lambda v: f"{100 * v:+.1f} points"),
        _at_least(f"promoted / base, no seed below {SEED_RATIO:.1f}x", ratios, SEED_RATIO, min, lambda v: f"{v:.2f}x")]
    for role in (MORE_SFT, OWN_PASSES):
        apart = [r.gain(role).difference for r in valid]
        mean = mean_of(apart)
        held.append(Held(bound=f"promoted - {TITLE[role]}, mean of seeds, lower 95 % bound above 0",
                         number=_points(mean) if mean else "no valid seed", holds=mean is not None and mean.low > 0))
        lowest = min(apart, key=lambda i: i.low, default=None)
        held.append(Held(bound=f"promoted - {TITLE[role]}, every seed, lower 95 % bound above 0",
                         number=f"weakest seed {_points(lowest)}" if lowest else "no valid seed",
                         holds=lowest is not None and lowest.low > 0))
    slowest = max(r.loop.wall for r in results)
    held.append(Held(bound=f"one loop's wall, slowest seed, at most {WALL:.0f} s", number=f"{slowest:.0f} s", holds=slowest <= WALL))
    shares = [share for r in results for partition, share in r.loop.overhead.items() if partition != "base"]
    held.append(Held(bound=f"Dagster's own share of a cycle, largest, at most {100 * DAGSTER:.0f} %",
                     number=f"{100 * max(shares):.1f} %" if shares else "not recorded", holds=bool(shares) and max(shares) <= DAGSTER))
    return held


def _at_least(bound: str, values: Sequence[float], least: float, over: Callable[[Sequence[float]], float],
              show: Callable[[float], str]) -> Held:
    if not values:
        return Held(bound=bound, number="no valid seed", holds=False)
    value = over(values)
    return Held(bound=bound, number=show(value), holds=value >= least - _ROUNDING)


def result_rows(results: Sequence[SeedResult]) -> list[Row]:
    """Seeds first, INVALID ones with their reason, then the means: of the valid seeds, and of all where some are not."""
    rows = [row for r in results for row in _seed_rows(r)]
    valid = [r for r in results if not r.invalid]
    rows += _mean_rows(f"mean of {len(valid)} valid seeds", valid)
    if len(valid) < len(results):
        rows += _mean_rows(f"mean of all {len(results)} seeds, INVALID ones included", results)
    return rows


def _seed_rows(r: SeedResult) -> list[Row]:
    name = f"seed {r.seed}" + (" INVALID" if r.invalid else "")
    command = f"{r.command} --seeds {r.seed}"
    rows: list[Row] = []

    def add(claim: str, number: str, interval: str, *roles: str) -> None:
        rows.append(Row(claim=f"{name}: {claim}", number=number, interval=interval, command=command,
                        identity=" / ".join(f"{role} {r.identities[role][:16]}" for role in roles)))

    for reason in r.invalid:
        add(reason, "-", "-", BASE)
    for role in ROLES:
        mean = r.reports[role].mean
        add(f"pass@1 of {TITLE[role]}, sampled", f"{mean.sampled.value:.3f}", _ends(mean.sampled), role)
        add(f"pass@1 of {TITLE[role]}, greedy", f"{mean.greedy.value:.3f}", _ends(mean.greedy), role)
    for label, ratio in (("sampled", r.gain(BASE).ratio), ("greedy", r.greedy_ratio)):
        add(f"promoted / base, {label}", f"{ratio.value:.2f}x" if ratio else "-", _ends(ratio) if ratio else "-", PROMOTED, BASE)
    for role in (BASE, MORE_SFT, OWN_PASSES):
        gain = r.gain(role)
        for label, value in (("sampled", gain.difference), ("greedy", gain.greedy)):
            add(f"promoted - {TITLE[role]}, {label}, points", f"{100 * value.value:+.1f}", _ends(value, 100), PROMOTED, role)
    for change in r.gains[BASE][:-1]:
        add(f"{change.name} pool, sampled, base {change.incumbent:.3f} to promoted {change.candidate:.3f}, points",
            f"{100 * change.difference.value:+.1f}", _ends(change.difference, 100), PROMOTED, BASE)
    for role in (BASE, PROMOTED):
        curve = r.reports[role].mean.budget
        for budget, value in zip(curve.budgets, curve.correct, strict=True):
            add(f"correct within {budget} new bytes, {TITLE[role]}", f"{value.value:.3f}", _ends(value), role)
    bounds = r.reports[PROMOTED].bounds
    add("policies that know nothing, best rate (of a pool)", _best_null(bounds), "-", PROMOTED)
    add("oracle, worst rate (of a pool)", _worst_oracle(bounds), "-", PROMOTED)
    add("loop, wall seconds", f"{r.loop.wall:.0f}", "-", PROMOTED)
    add(f"loop, CPU-seconds (of them in RL, what each control may spend: {r.loop.cpu_rl:.0f})", f"{r.loop.cpu:.0f}", "-", PROMOTED)
    for role, control in r.controls.items():
        sampled = f"{control.rounds} rounds, {control.trajectories} trajectories, " if control.rounds else ""
        add(f"{TITLE[role]}: CPU-seconds spent ({sampled}{control.rows} rows, {control.steps} steps)", f"{control.cpu:.0f}", "-", role)
    for partition, share in r.loop.overhead.items():
        add(f"Dagster's own share of {partition}", f"{100 * share:.1f} %", "-", PROMOTED)
    return rows


def _mean_rows(name: str, results: Sequence[SeedResult]) -> list[Row]:
    if not results:
        return []
    seeds = ",".join(str(r.seed) for r in results)
    command = f"{results[0].command} --seeds {seeds}"
    identity = " / ".join(f"seed {r.seed} {r.identities[PROMOTED][:16]}" for r in results)
    rows: list[Row] = []

    def add(claim: str, values: Sequence[Interval | Ratio | None], show: Callable[[float], str], scale: float = 1.0) -> None:
        mean = mean_of([v for v in values if v is not None])
        if mean is not None:
            rows.append(Row(claim=f"{name}: {claim}", number=show(mean.value), interval=_ends(mean, scale), command=command,
                            identity=identity))

    for role in ROLES:
        add(f"pass@1 of {TITLE[role]}, sampled", [r.sampled(role) for r in results], lambda v: f"{v:.3f}")
        add(f"pass@1 of {TITLE[role]}, greedy", [r.reports[role].mean.greedy for r in results], lambda v: f"{v:.3f}")
    add("promoted / base, sampled", [r.gain(BASE).ratio for r in results], lambda v: f"{v:.2f}x")
    add("promoted / base, greedy", [r.greedy_ratio for r in results], lambda v: f"{v:.2f}x")
    for role in (BASE, MORE_SFT, OWN_PASSES):
        add(f"promoted - {TITLE[role]}, sampled, points", [r.gain(role).difference for r in results], lambda v: f"{100 * v:+.1f}", 100)
        add(f"promoted - {TITLE[role]}, greedy, points", [r.gain(role).greedy for r in results], lambda v: f"{100 * v:+.1f}", 100)
    return rows


def _best_null(bounds: Sequence[Bound]) -> str:
    best = max((b for b in bounds if b.policy is not BoundPolicy.ORACLE), key=lambda b: b.rate)
    return f"{best.rate:.3f} ({best.policy}, {best.pool})"


def _worst_oracle(bounds: Sequence[Bound]) -> str:
    worst = min((b for b in bounds if b.policy is BoundPolicy.ORACLE), key=lambda b: b.rate)
    return f"{worst.rate:.3f} ({worst.pool})"


def _ends(value: Interval | Ratio, scale: float = 1.0) -> str:
    places = 1 if scale != 1.0 else 2 if isinstance(value, Ratio) else 3
    high = "unbounded" if value.high is None else f"{scale * value.high:.{places}f}"
    return f"[{scale * value.low:.{places}f}, {high}]"


def _points(value: Interval | Ratio) -> str:
    return f"{100 * value.value:+.1f} points {_ends(value, 100)}"


# --- the stored results, and the page made of them


def load_results(store: Path, seeds: Sequence[int] = ()) -> list[SeedResult]:
    """The results under a claim's store, by seed: all, or those named. Raises DormouseError when there is none."""
    found = [SeedResult.model_validate_json(path.read_bytes()) for path in store.glob("seed-*.json")]
    chosen = sorted((r for r in found if not seeds or r.seed in seeds), key=lambda r: r.seed)
    if not chosen:
        raise DormouseError(f"{store} holds no measured seed (seed-N.json): measure with `make claim`, or name another folder (--store).")
    return chosen


def mixtures(results: Sequence[SeedResult]) -> list[str]:
    """What the seeds do not share although a mean over them needs it to be the same."""
    names = ("code_version", "command", "suite", "samples", "tasks_per_pool")
    shared: Mapping[str, set[str]] = {name: {str(getattr(r, name)) for r in results} for name in names}
    return [f"the seeds do not share one {name}: {', '.join(sorted(values))}" for name, values in shared.items()
            if len(values) > 1]


def markdown(results: Sequence[SeedResult]) -> str:
    """The page."""
    first, tasks = results[0], {p.pool: p.tasks for p in results[0].reports[PROMOTED].pools[:-1]}
    sizes = ", ".join(f"{n} {pool}" for pool, n in tasks.items())
    lines = [
        "# Results", "", "Generated by `python -m benchmarks.results` from the records that `make claim` stored; not edited by hand.", "",
        f"Preset {first.preset}, suite {first.suite}, {first.cores} cores, code {first.code_version[:16]}. Base, promoted checkpoint and "
        f"controls answer the same fresh tasks (seeds derived from the promoted identity; {sizes} for seed {first.seed}) with the same "
        f"random numbers: one greedy answer and {first.samples} sampled ones, at each task's byte budget. Numbers are means of pools. "
        "Intervals are 95 %, tasks resampled inside their pool; a mean of seeds carries the tasks' error, not the spread of seeds. Each "
        "control had the CPU-seconds that the loop's sampling, judging and learning took, all cycles together.", ""]
    lines += [f"**{line}**\n" for line in mixtures(results)]
    held = [[h.bound, h.number, h.word] for h in judge_claim(results)]
    lines += ["## Bounds of the claim", "", *_table(["bound", "number", "verdict"], held)]
    rows = [[r.claim, r.number, r.interval, f"`{r.command}`", r.identity] for r in result_rows(results)]
    return "\n".join([*lines, "", "## Numbers", "", *_table(["claim", "number", "interval", "command", "identity"], rows)]) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def main(store: Annotated[Path, typer.Option(help="Folder the claim was measured into.")] = Path("store/claim"),
         out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/results.md")) -> None:
    """Write the page of results from the stored records of the seeds."""
    try:
        results = load_results(store)
        write_atomic(out, markdown(results).encode())
    except DormouseError as error:
        typer.echo(f"dormouse: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{out}: {len(results)} seeds")


if __name__ == "__main__":
    typer.run(main)
