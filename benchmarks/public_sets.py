"""What checkpoints solve of the public sets: pass@1, greedy and sampled, of evaluation tasks only. Outside the headline.

    python -m benchmarks.public_sets CHECKPOINT.bin ... [--tasks-dir DIR] [--set gsm8k ...] [--per-set 100]

Tasks of a set are spread evenly over its evaluation part. Every checkpoint answers the same tasks with the same random numbers, each
by the configuration in its own header. A policy of half a million parameters solves next to nothing here; the table says so.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.evaluation.evaluate import answer_tasks, checkpoint_policy, score_answers
from dormouse_core.evaluation.scores import GREEDY, Scores
from dormouse_core.evaluation.statistics import Interval, resample, wilson
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.public import PUBLIC, available, load_public
from dormouse_core.tasks.task import Task, Use
from dormouse_pipeline.cli.options import AsJson, chosen_store, emit, grid, opened, out, resumable
from dormouse_pipeline.cli.progress import Reporter

SAMPLES = 4
PURPOSE = "public sets"


def spread(tasks: list[Task], n: int) -> list[Task]:
    """n tasks at even distances, first and last part of the file alike; all of them where there are fewer."""
    return [tasks[i] for i in np.linspace(0, len(tasks) - 1, min(n, len(tasks))).astype(int)] if tasks else []


def score(store: Store, checkpoint: Artifact, tasks: list[Task], ledger: Ledger) -> Scores:
    """One checkpoint's judged answers."""
    held = store.read_checkpoint(checkpoint).config
    config: RunConfig = held.model_copy(update={"eval": held.eval.model_copy(update={"samples": SAMPLES})})
    policy = checkpoint_policy(store, checkpoint)
    with WorkerPool(config.roll.workers, config.runtime.threads) as pool:
        answers = answer_tasks(policy, PURPOSE, PURPOSE, tasks, config, pool, ledger)
    return score_answers(tasks, {"it": answers}, config, ledger)["it"]


def rates(scores: Scores, bootstrap: int = 2000) -> tuple[Interval, Interval]:
    """(greedy pass@1 with a Wilson interval, sampled pass@1 over a bootstrap of tasks)."""
    greedy = wilson(int(scores.passed_MS[:, GREEDY].sum()), int(scores.counted_MS[:, GREEDY].sum()))
    kept = scores.take(scores.sampled_counted_M > 0)
    return greedy, resample(["set"] * len(kept.tasks), bootstrap, PURPOSE).mean(kept.rate_M())


@resumable("Nothing is half-written; the same command starts again.")
def public_sets(
        checkpoints: Annotated[list[Path], typer.Argument(help="Checkpoint files (.bin), scored side by side.")],
        tasks_dir: Annotated[Path, typer.Option(envvar="DORMOUSE_TASKS_DIR", help="Folder of public task files.")],
        only: Annotated[list[str], typer.Option("--set", help="Only these sets.")] = [],  # noqa: B006 - Typer reads the default
        per_set: Annotated[int, typer.Option(help="Evaluation tasks of each set.", min=1)] = 100,
        json: AsJson = False) -> None:
    """Score checkpoints on the public sets that the tasks directory holds."""
    store = chosen_store(None)
    named = [opened(store, path, "checkpoint") for path in checkpoints]
    rows = []
    with Reporter(quiet=json) as reporter:
        ledger = reporter.ledger()
        for name in only or [name for name, held in available(tasks_dir).items() if held]:
            tasks = spread(load_public(name, tasks_dir, ledger, Use.EVALUATION), per_set)
            if not tasks:
                raise DormouseError(f"{name} has no evaluation task in {tasks_dir}; leave it out of --set")
            for path, checkpoint in zip(checkpoints, named, strict=True):
                greedy, sampled = rates(scores := score(store, checkpoint, tasks, ledger))
                rows.append({"set": name, "about": PUBLIC[name].about, "tasks": len(tasks), "checkpoint": path.name,
                             "identity": checkpoint.identity, "greedy": greedy.model_dump(), "sampled": sampled.model_dump(),
                             "classes": scores.classes(), "shown": (str(greedy), str(sampled))})
    emit(rows, json, lambda: out.print(grid(
        f"pass@1 on public sets, evaluation tasks only, 1 greedy and {SAMPLES} sampled answers a task",
        ["set", "tasks", "checkpoint", "greedy", "sampled"],
        [[r["set"], r["tasks"], f"{r['checkpoint'][:24]} {r['identity'][:12]}", *r["shown"]] for r in rows]), markup=False))


if __name__ == "__main__":
    typer.run(public_sets)
