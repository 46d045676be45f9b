"""`dormouse smoke`: code tasks only, and a table in which every verifier decision can be attributed. The first gate, before any RL."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse_core.ledger import DormouseError
from dormouse_pipeline.cli.options import AsJson, StorePath, chosen_store, emit, opened, out, resumable
from dormouse_pipeline.cli.progress import Reporter
from dormouse_pipeline.cli.verdicts import smoke_table

if TYPE_CHECKING:
    from dormouse_core.artifacts.provenance import Artifact
    from dormouse_core.artifacts.store import Store
    from dormouse_core.ledger import Ledger
    from dormouse_core.tasks.task import Task
    from dormouse_core.verifiers.attempt import Attempt
    from dormouse_core.verifiers.report import SmokeRow
    from dormouse_core.verifiers.verdict import Verdict


@resumable("Nothing was changed.")
def smoke(base: Annotated[Path | None, typer.Option("--base", help="Checkpoint whose answers are judged; without one, answers whose right "
                                                    "verdict is known.", show_default=False)] = None,
          n: Annotated[int, typer.Option("--n", help="Code tasks.", min=1)] = 20,
          temp: Annotated[float, typer.Option("--temp", help="Sampling temperature with --base; 0 is greedy.", min=0.0)] = 1.0,
          seed: Annotated[int, typer.Option("--seed", help="Root of the draws.", min=0)] = 1,
          store: StorePath = None, json: AsJson = False) -> None:
    """Judge answers to code tasks and print every decision: task, candidate, class, cases, layers, who decided and why.

    Without --base the candidates are the reference (must pass) and answers that know nothing (must not): exit code 1 when one of
    them is judged otherwise.
    """
    from dormouse_core.config.stages import VerifyConfig
    from dormouse_core.tasks.spec import EnvSpec, spec_tasks
    from dormouse_core.tasks.task import Pool
    from dormouse_core.verifiers.judge import judge
    from dormouse_core.verifiers.report import smoke_rows, summary

    tasks = spec_tasks(EnvSpec(pools=(Pool.CODE,)), n, seed)
    held = chosen_store(store)
    with Reporter(quiet=json) as reporter:
        ledger = reporter.ledger()
        checkpoint = opened(held, base, "checkpoint") if base else None
        attempts = _rolled(held, checkpoint, tasks, temp, seed, ledger) if checkpoint else _known(tasks)
        verdicts = judge(attempts, VerifyConfig(), ledger)
    rows = smoke_rows(attempts, verdicts)
    wrong = [] if checkpoint else [row for row, attempt, verdict in zip(rows, attempts, verdicts, strict=True)
                                   if (verdict.verdict.value == "pass") != attempt.trajectory_id.startswith("oracle:")]
    emit({"rows": [r.model_dump(mode="json") for r in rows], "summary": summary(verdicts).model_dump(mode="json"),
          "canary_failures": ledger.counters().get("exec.canary_failures", 0), "misjudged": len(wrong)}, json,
         lambda: _show(rows, verdicts))
    if wrong:
        raise DormouseError(f"{len(wrong)} of {len(rows)} decisions are wrong, first: {wrong[0].task} {wrong[0].candidate!r} is judged "
                            f"{wrong[0].verdict} by {wrong[0].decided_by}. Do not train against this verifier; `dormouse tasks check` says "
                            "more.")


def _known(tasks: "Sequence[Task]") -> "list[Attempt]":
    """The reference of every task, and what two policies that know nothing answer."""
    from dormouse_core.evaluation.policies import BoundPolicy, bound_attempts

    return [a for policy in (BoundPolicy.ORACLE, BoundPolicy.EMPTY, BoundPolicy.ECHO) for a in bound_attempts(policy, tasks)]


def _rolled(store: "Store", checkpoint: "Artifact", tasks: "Sequence[Task]", temp: float, seed: int, ledger: "Ledger") -> "list[Attempt]":
    from dormouse_core.policy.model import load_policy
    from dormouse_core.rollouts.engine import roll
    from dormouse_core.rollouts.request import Origin, group_requests
    from dormouse_core.rollouts.verify import attempt_of

    held = store.read_checkpoint(checkpoint)
    policy = load_policy(held, held.config.policy, checkpoint.path)
    origin = Origin(cycle="smoke", round=0, policy=checkpoint.identity, seed=seed)
    requests = [r for task in tasks for r in group_requests(task, origin, [0], temp)]
    played = {t.task_id: t for t in roll(policy, requests, held.config.roll, ledger)}
    return [attempt_of(played[task.id], task) for task in tasks]


def _show(rows: "Sequence[SmokeRow]", verdicts: "Sequence[Verdict]") -> None:
    out.print(smoke_table(rows), markup=False)
    layers = Counter(f"{row.isolation}: {', '.join(row.layers) or 'nothing was executed'}" for row in rows)
    out.print()
    for text, n in layers.most_common():
        out.print(f"{n} decisions under {text}", markup=False)
    counts = Counter(str(v.verdict) for v in verdicts)
    out.print("  ".join(f"{name} {n}" for name, n in counts.most_common()), markup=False)
