"""The headline, measured: base against promoted checkpoint and against two controls of the same CPU-seconds, over several seeds.

    make claim
    python -m benchmarks.claim [--seeds 1,2,3] [--preset nano] [--store store/claim] [--json]

A seed is: `dormouse loop` as a user calls it, timed; both controls from its SFT base; all four checkpoints on the promoted one's fresh
tasks. What is done is kept (STORE/seed-N.json, STORE/seed-N/), so the same command resumes. This is a measurement: it ends with 0
whether the bounds hold or not, and prints which do not.
Not here: the controls (controls.py), the bounds and the page (results.py).
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer

from benchmarks.controls import Bench, ControlRun, more_sft, own_passes
from benchmarks.results import BASE, MORE_SFT, OWN_PASSES, PROMOTED, ROLES, TITLE, SeedResult, judge_claim, load_results, mixtures
from benchmarks.timed_loop import LoopRun, run_loop
from dormouse_core.artifacts.atomic import write_atomic
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.evaluation.evaluate import answer_tasks, checkpoint_policy, score_answers
from dormouse_core.evaluation.holdout import changes
from dormouse_core.evaluation.policies import measure_bounds
from dormouse_core.evaluation.report import split_report
from dormouse_core.evaluation.scores import GREEDY
from dormouse_core.evaluation.statistics import resample
from dormouse_core.evaluation.suites import suite_tasks
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.task import Split
from dormouse_pipeline.cli.options import AsJson, Preset, Sets, emit, grid, out, resolved, resumable
from dormouse_pipeline.cli.progress import Reporter
from dormouse_pipeline.locking import hold_store

WAY_ON = "The same command goes on where it stopped."
TASKS_PER_POOL, SAMPLES = 200, 4
STAGE = "claim"


def measure_seed(preset: str, sets: Sequence[str], seed: int, store: Path, tasks_per_pool: int, reporter: Reporter) -> SeedResult:
    """One seed from nothing to its record; whatever stands already is read back."""
    record = store / f"seed-{seed}.json"
    config = resolved(preset, sets, seed)
    ledger = reporter.ledger(f"seed {seed}")
    root = store / f"seed-{seed}"
    loop = run_loop(preset, sets, seed, root, config.sha256(), ledger)  # refuses what another configuration left
    if record.exists():
        return _read_back(record, tasks_per_pool)
    held = Store(root)
    with hold_store(root, "benchmarks.claim"), WorkerPool(config.roll.workers, config.runtime.threads) as pool:
        bench = Bench(config, _checkpoint(held, loop.base), loop.cpu_rl, held, pool, ledger)
        controls = {MORE_SFT: more_sft(bench), OWN_PASSES: own_passes(bench)}
        command = shlex.join(["python", "-m", "benchmarks.claim", "--preset", preset, *(f"--set={s}" for s in sets),
                              *(["--tasks-per-pool", str(tasks_per_pool)] if tasks_per_pool != TASKS_PER_POOL else [])])
        result = evaluate(command, preset, config, loop, controls, held, tasks_per_pool, pool, ledger)
    write_atomic(record, result.model_dump_json(indent=1).encode())
    return result


def _read_back(record: Path, tasks_per_pool: int) -> SeedResult:
    result = SeedResult.model_validate_json(record.read_bytes())
    if result.tasks_per_pool != tasks_per_pool:
        raise DormouseError(f"{record} was measured on {result.tasks_per_pool} tasks a pool, not {tasks_per_pool}: remove the file to "
                            "measure its checkpoints again, or ask with the --tasks-per-pool it has.")
    return result


def evaluate(command: str, preset: str, config: RunConfig, loop: LoopRun, controls: dict[str, ControlRun], store: Store,
             tasks_per_pool: int, pool: WorkerPool, ledger: Ledger) -> SeedResult:
    """All four on the promoted identity's fresh tasks, with the same random numbers a task."""
    settings = config.eval.model_copy(update={"tasks_per_pool": tasks_per_pool, "samples": SAMPLES})
    config = config.model_copy(update={"eval": settings})
    seed, root = config.runtime.seed, loop.promoted
    identities = {BASE: loop.base, PROMOTED: loop.promoted, **{role: control.identity for role, control in controls.items()}}
    tasks = suite_tasks(load_suite(settings.suite), Split.FRESH, root, tasks_per_pool, ledger)
    answers = {}
    for number, role in enumerate(ROLES):
        ledger.progress(f"answers of {TITLE[role]}", number, len(ROLES), "checkpoints")
        policy = checkpoint_policy(store, _checkpoint(store, identities[role]))
        answers[role] = answer_tasks(policy, identities[role], f"claim:{root}", tasks, config, pool, ledger)
    scores = score_answers(tasks, answers, config, ledger)
    counted_M = np.all([(s.sampled_counted_M > 0) & s.counted_MS[:, GREEDY] for s in scores.values()], axis=0)
    if not counted_M.any():
        raise DormouseError("not one task has a counted answer of all four checkpoints; look at the verdict classes with `dormouse smoke`")
    kept = {role: s.take(counted_M) for role, s in scores.items()}
    bounds = measure_bounds(tasks, config.verify, ledger)
    gains = {}
    for role in (BASE, MORE_SFT, OWN_PASSES):
        mean, pools, _ = changes(kept[role], kept[PROMOTED], settings.budgets, settings.bootstrap, seed, root)
        gains[role] = (*pools, mean)
    greedy = {role: kept[role].passed_MS[:, GREEDY].astype(float) for role in (BASE, PROMOTED)}
    weights = resample(kept[BASE].pool_M, settings.bootstrap, seed, root, "greedy")
    table = store.put_table(
        pa.concat_tables([s.table(role) for role, s in scores.items()]), ("role", "task_id"),
        Provenance(kind=Kind.EVAL_TABLE, stage=STAGE, config_sha256=config.sha256(), code_version=code_version(), seed=seed,
                   parents=tuple(Parent(role=role, kind=Kind.CHECKPOINT, identity=name) for role, name in identities.items())))
    return SeedResult(
        seed=seed, preset=preset, suite=settings.suite, code_version=code_version(), command=command, tasks_per_pool=tasks_per_pool,
        cores=os.cpu_count() or 1, samples=settings.samples, loop=loop, controls=controls, identities=identities,
        reports={role: split_report(s, Split.FRESH, root, bounds, settings, seed, root) for role, s in kept.items()}, gains=gains,
        greedy_ratio=weights.ratio(greedy[PROMOTED], greedy[BASE]), left_out=int((~counted_M).sum()), table=table.identity)


def _checkpoint(store: Store, identity: str) -> Artifact:
    found = store.find(Kind.CHECKPOINT, identity)
    if found is None:
        raise DormouseError(f"{store.root} no longer holds checkpoint {identity[:16]}, which its loop made: remove the folder and measure "
                            "the seed again, or restore the file.")
    return found


def parse_seeds(text: str) -> list[int]:
    """`1,2,3` -> [1, 2, 3]. Raises DormouseError on anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts) or len(set(parts)) != len(parts):
        raise DormouseError(f"--seeds {text!r} is not a list of different whole numbers; write it as --seeds 1,2,3")
    return [int(part) for part in parts]


def show(results: Sequence[SeedResult]) -> None:
    """Seeds, gains, costs and bounds as tables."""
    score_rows, gain_rows, cost_rows = [], [], []
    for r in results:
        for label in ("sampled", "greedy"):
            values = {role: getattr(r.reports[role].mean, label).value for role in ROLES}
            ratio = r.gain(BASE).ratio if label == "sampled" else r.greedy_ratio
            score_rows.append([r.seed, label, *(f"{values[role]:.3f}" for role in ROLES), str(ratio or "-"),
                               "; ".join(f"INVALID: {reason}" for reason in r.invalid) or "valid"])
        for role in (BASE, MORE_SFT, OWN_PASSES):
            for change in r.gains[role]:
                d = change.difference
                gain_rows.append([r.seed, f"promoted - {TITLE[role]}", change.name, change.tasks,
                                  f"{100 * d.value:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"])
        cost_rows.append([r.seed, f"{r.loop.wall:.0f}", f"{r.loop.cpu:.0f}", f"{r.loop.cpu_rl:.0f}", r.loop.attempts,
                          f"{r.loop.promotions}/{r.loop.cycles}",
                          *(f"{c.cpu:.0f} ({c.rounds} rounds, {c.rows} rows, {c.steps} steps)" for c in r.controls.values())])
    tables = [
        grid("pass@1 on the promoted checkpoint's fresh tasks, mean of pools",
             ["seed", "answers", *(TITLE[role] for role in ROLES), "promoted / base", "seed is"], score_rows),
        grid("paired differences in sampled pass@1, points", ["seed", "difference", "pool", "tasks", "points [95 %]"], gain_rows),
        grid("seconds", ["seed", "loop wall", "loop CPU", "of it RL", "attempts", "promoted", *(TITLE[c] for c in (MORE_SFT, OWN_PASSES))],
             cost_rows),
        grid("bounds of the claim", ["bound", "number", "verdict"], [[h.bound, h.number, h.word] for h in judge_claim(results)])]
    for table in tables:
        out.print()
        out.print(table, markup=False)


def as_json(results: Sequence[SeedResult]) -> dict[str, object]:
    return {"seeds": [r.model_dump(mode="json") | {"invalid": list(r.invalid)} for r in results],
            "bounds": [h.model_dump() | {"verdict": h.word} for h in judge_claim(results)]}


@resumable(WAY_ON)
def claim(seeds: Annotated[str, typer.Option(help="Seeds, each a loop of its own, in this order.")] = "1,2,3", preset: Preset = "nano",
          sets: Sets = [],  # noqa: B006 - Typer reads the default
          store: Annotated[Path, typer.Option(help="Folder of the results and of one store a seed.")] = Path("store/claim"),
          tasks_per_pool: Annotated[int, typer.Option(help="Fresh tasks of each pool, where there are as many.", min=2)] = TASKS_PER_POOL,
          json: AsJson = False) -> None:
    """Measure the headline over several seeds, with both controls, and say which of its bounds hold."""
    os.environ.pop("DAGSTER_HOME", None)  # each seed's event log goes with its store
    wanted = parse_seeds(seeds)
    with Reporter(quiet=json) as reporter:
        for seed in wanted:
            result = measure_seed(preset, sets, seed, store, tasks_per_pool, reporter)
            reporter.say(f"seed {seed}: base {result.sampled(BASE).value:.3f}, promoted {result.sampled(PROMOTED).value:.3f}, "
                         + "".join(f"INVALID: {reason}; " for reason in result.invalid) + f"loop {result.loop.wall:.0f} s")
        results = load_results(store, wanted)
        for line in mixtures(results):
            reporter.loud(line)
    emit(as_json(results), json, lambda: show(results))


if __name__ == "__main__":
    typer.run(claim)
