"""The holdout verdict: incumbent and candidate on the same fresh tasks with the same random numbers; promote or not, and why.

The rule is one number: the paired difference in sampled pass@1, mean of pools, must have a lower 95 % bound above 0. Fresh seeds
derive from the candidate's identity, so they did not exist while it was trained. A suite whose bounds do not hold (a policy that
knows nothing beats the guess bound, the oracle fails) promotes nobody. Every number the decision rests on is in the record.
Not here: what happens next (evolution.promotion, evolution.strategy_review).
"""

import numpy as np
import pyarrow as pa

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.evaluation.budget import correct_at
from dormouse_core.evaluation.evaluate import answer_tasks, borrowed, checkpoint_policy, score_answers
from dormouse_core.evaluation.policies import measure_bounds
from dormouse_core.evaluation.report import MEAN, SplitReport, split_report
from dormouse_core.evaluation.scores import GREEDY, Scores
from dormouse_core.evaluation.statistics import Interval, Ratio, mcnemar, resample
from dormouse_core.evaluation.suites import suite_tasks
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.task import Split

STAGE = "holdout_verdict"


class Change(Record):
    """Candidate minus incumbent on the same tasks: of a cell, a pool, or the mean of pools."""

    name: str
    pool: str
    tasks: int
    incumbent: float
    candidate: float
    """Sampled pass@1."""
    difference: Interval
    ratio: Ratio | None
    """candidate / incumbent; None where the incumbent solved nothing."""
    greedy: Interval
    """Difference of greedy pass@1."""
    at_budget: tuple[Interval, ...]
    """Difference of correct@budget, one a budget of the report."""


class HoldoutVerdict(Record):
    cycle: str
    promote: bool
    reason: str
    """The number that decided, in one sentence."""
    incumbent: Parent
    candidate: Parent
    suite: str
    root: str
    """Task seeds derive from this: the candidate's identity."""
    seed: int
    """Root of the sampling draws; both policies share them."""
    samples: int
    temperature: float
    mean: Change
    pools: tuple[Change, ...]
    cells: tuple[Change, ...]
    greedy_p: float
    """Exact McNemar p-value of the greedy answers."""
    reports: dict[str, SplitReport]
    """All numbers of `incumbent` and `candidate`."""
    left_out: int
    """Tasks without a counted answer of both policies."""
    table: Parent
    """Per-task rows of both."""


def changes(incumbent: Scores, candidate: Scores, budgets: tuple[int, ...], bootstrap: int,
            *names: str | int) -> tuple[Change, list[Change], list[Change]]:
    """(mean of pools, each pool, each cell). Both scores are of the same tasks in the same order, every one counted by both.

    Raises ValueError when the tasks differ.
    """
    if [t.id for t in incumbent.tasks] != [t.id for t in candidate.tasks]:
        raise ValueError("a paired difference needs both policies on the same tasks, in the same order")

    def of(rows: np.ndarray, name: str, pool: str) -> Change:
        before, after = incumbent.take(rows), candidate.take(rows)
        weights = resample(after.pool_M, bootstrap, *names, name)
        before_M, after_M = before.rate_M(), after.rate_M()
        greedy_M = after.passed_MS[:, GREEDY].astype(float) - before.passed_MS[:, GREEDY]
        return Change(
            name=name, pool=pool, tasks=len(before_M), incumbent=float(weights.point_M @ before_M),
            candidate=float(weights.point_M @ after_M), difference=weights.mean(after_M - before_M), ratio=weights.ratio(after_M, before_M),
            greedy=weights.mean(greedy_M),
            at_budget=tuple(weights.means(correct_at(after, budgets) - correct_at(before, budgets))))

    pool_M, cell_M = candidate.pool_M, candidate.cell_M
    pools = [of(pool_M == p, p, p) for p in dict.fromkeys(pool_M.tolist())]
    cells = [of(cell_M == c, c, str(pool_M[cell_M == c][0])) for c in dict.fromkeys(cell_M.tolist())]
    return of(np.ones(len(pool_M), dtype=bool), MEAN, MEAN), pools, cells


def decide(mean: Change, broken: tuple[str, ...]) -> tuple[bool, str]:
    """(promote, the sentence that says why)."""
    d = mean.difference
    gain = f"paired gain in sampled pass@1, mean of pools: {100 * d.value:+.1f} points [{100 * d.low:+.1f}, {100 * d.high:+.1f}] " \
           f"({mean.incumbent:.3f} -> {mean.candidate:.3f}, {mean.tasks} tasks)"
    if broken:
        return False, f"INVALID, nobody is promoted: {broken[0]}; {gain}"
    if mean.difference.low > 0:
        return True, f"promoted: {gain}"
    return False, f"not promoted, the lower bound is not above 0: {gain}"


def run(config: RunConfig, incumbent: Artifact, candidate: Artifact, *, cycle: str = "", store: Store, ledger: Ledger, run_id: str = "",
        pool: WorkerPool | None = None) -> Artifact:
    """Roll both policies on the candidate's fresh tasks and decide. Returns the HOLDOUT_VERDICT; its per-task table is beside it.

    cycle: the partition it belongs to, "" outside the loop (a headline compares two checkpoints the same way).
    """
    suite = load_suite(config.eval.suite)
    tasks = suite_tasks(suite, Split.FRESH, candidate.identity, config.eval.tasks_per_pool, ledger)
    with borrowed(pool, config) as workers:
        answers = {role: answer_tasks(checkpoint_policy(store, artifact), artifact.identity, f"holdout:{candidate.identity}", tasks, config,
                                      workers, ledger)
                   for role, artifact in (("incumbent", incumbent), ("candidate", candidate))}
    scores = score_answers(tasks, answers, config, ledger)
    both_M = np.all([(s.sampled_counted_M > 0) & s.counted_MS[:, GREEDY] for s in scores.values()], axis=0)
    if not both_M.any():
        raise DormouseError("holdout verdict: not one task has a counted answer of both policies; the verifier or the machine failed, look "
                            "at the verdict classes with `dormouse smoke`")
    kept = {role: s.take(both_M) for role, s in scores.items()}
    seed = config.runtime.seed
    bounds = measure_bounds(tasks, config.verify, ledger)
    reports = {role: split_report(s, Split.FRESH, candidate.identity, bounds, config.eval, seed, candidate.identity)
               for role, s in kept.items()}
    mean, pools, cells = changes(kept["incumbent"], kept["candidate"], config.eval.budgets, config.eval.bootstrap, seed, candidate.identity)
    promote, reason = decide(mean, reports["candidate"].broken)
    ledger.loud(f"{'holdout' if cycle else 'comparison'}: {reason}")
    right = {role: s.passed_MS[:, GREEDY] for role, s in kept.items()}
    parents = tuple(Parent(role=role, kind=a.kind, identity=a.identity) for role, a in (("incumbent", incumbent), ("candidate", candidate)))
    made = {"stage": STAGE, "config_sha256": config.sha256(), "code_version": code_version(), "seed": seed, "run_id": run_id,
            "counters": ledger.counters()}
    table = store.put_table(pa.concat_tables([s.table(role) for role, s in scores.items()]), ("role", "task_id"),
                            Provenance(kind=Kind.EVAL_TABLE, parents=parents, **made))
    of_table = Parent(role="table", kind=Kind.EVAL_TABLE, identity=table.identity)
    verdict = HoldoutVerdict(
        cycle=cycle, promote=promote, reason=reason, incumbent=parents[0], candidate=parents[1], suite=suite.name, root=candidate.identity,
        seed=seed, samples=config.eval.samples, temperature=config.roll.temperature, mean=mean, pools=tuple(pools), cells=tuple(cells),
        reports=reports,
        greedy_p=mcnemar(int((right["incumbent"] & ~right["candidate"]).sum()), int((right["candidate"] & ~right["incumbent"]).sum())),
        left_out=int((~both_M).sum()), table=of_table)
    return store.put_record(verdict, Provenance(kind=Kind.HOLDOUT_VERDICT, parents=(*parents, of_table), **made))
