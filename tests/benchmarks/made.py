"""Result records written by hand, with the numbers a test is about."""

from benchmarks.controls import ControlRun
from benchmarks.results import BASE, MORE_SFT, OWN_PASSES, PROMOTED, ROLES, SeedResult
from benchmarks.timed_loop import LoopRun
from dormouse_core.evaluation.budget import BudgetCurve
from dormouse_core.evaluation.holdout import Change
from dormouse_core.evaluation.policies import Bound, BoundPolicy
from dormouse_core.evaluation.report import MEAN, PoolReport, SplitReport
from dormouse_core.evaluation.statistics import Interval, Ratio

HALF = 0.03


def around(value: float, half: float = HALF) -> Interval:
    return Interval(value=value, low=value - half, high=value + half)


def report(rate: float, oracle: float = 1.0) -> SplitReport:
    curve = BudgetCurve(budgets=(8, 16), correct=(around(rate / 2), around(rate)), area=None, bytes_per_solved=None,
                        median_correct_bytes=4.0)
    pools = tuple(PoolReport(pool=pool, tasks=200, answers=800, greedy=around(rate + 0.01), sampled=around(rate), pass_at={1: around(rate)},
                             budget=curve, classes={"pass": 1}, uncounted=0) for pool in ("math", MEAN))
    reached = ((BoundPolicy.EMPTY, 0.02, 0.1, True), (BoundPolicy.ECHO, 0.01, 0.1, True), (BoundPolicy.ORACLE, oracle, 1.0, oracle == 1.0))
    bounds = tuple(Bound(policy=p, pool="math", tasks=200, rate=rate, limit=limit, holds=holds, measured=True)
                   for p, rate, limit, holds in reached)
    return SplitReport(split="fresh", root="p", pools=pools, cells=(), bounds=bounds, left_out=0)


def change(before: float, after: float, half: float = HALF) -> tuple[Change, ...]:
    ratio = Ratio(value=after / before, low=after / before - 0.2, high=after / before + 0.2) if before else None
    return tuple(Change(name=name, pool=name, tasks=200, incumbent=before, candidate=after, difference=around(after - before, half),
                        ratio=ratio, greedy=around(after - before), at_budget=()) for name in ("math", MEAN))


def seed_result(seed: int = 1, base: float = 0.2, promoted: float = 0.5, control: float = 0.3, wall: float = 300.0, oracle: float = 1.0,
                overhead: float = 0.05, half: float = HALF) -> SeedResult:
    rates = {BASE: base, PROMOTED: promoted, MORE_SFT: control, OWN_PASSES: control}
    loop = LoopRun(command=f"dormouse loop --seed {seed}", config_sha256="c", base="b" * 64, promoted="p" * 64, wall=wall, cpu=500.0,
                   cpu_rl=400.0, cpu_by_asset={"rl_checkpoint": 400.0}, attempts=1, overhead={"base": 0.5, "main.c0000": overhead},
                   cycles=3, promotions=2)
    controls = {role: ControlRun(name=role, identity=f"{seed}{role}" * 9, budget=400.0, cpu=401.0, steps=100, rows=50)
                for role in (MORE_SFT, OWN_PASSES)}
    return SeedResult(
        seed=seed, preset="nano", suite="nano", code_version="v" * 64, command="python -m benchmarks.claim --preset nano",
        tasks_per_pool=200, cores=2, samples=4, loop=loop,
        controls=controls,
        identities={role: f"{seed}-{role}-" + "0" * 40 for role in ROLES},
        reports={role: report(rate, oracle) for role, rate in rates.items()},
        gains={role: change(rates[role], promoted, half) for role in (BASE, MORE_SFT, OWN_PASSES)},
        greedy_ratio=Ratio(value=2.0, low=1.8, high=2.2), left_out=0, table="t" * 64)
