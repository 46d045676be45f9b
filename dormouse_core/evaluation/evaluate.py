"""Evaluate checkpoints: one greedy and n sampled answers a task at the task's own byte budget, judged, scored, stored.

The draws of an answer depend on (seed, purpose, task, row) and not on the weights, so two policies measured for one purpose
answer the same tasks with the same random numbers: their difference is paired twice. Answers that are byte for byte the same
to the same task are judged once.
Not here: which tasks (suites), intervals (report), who is promoted (holdout).
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import RolloutConfig, VerifyConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.encoding import escape
from dormouse_core.envs.environment import StopReason
from dormouse_core.evaluation.hacks import measure_hacks
from dormouse_core.evaluation.policies import measure_bounds
from dormouse_core.evaluation.report import EvalReport, split_report
from dormouse_core.evaluation.scores import Scores
from dormouse_core.evaluation.suites import suite_tasks
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy.model import Policy, load_policy
from dormouse_core.rollouts.engine import roll
from dormouse_core.rollouts.request import Origin, RolloutRequest, group_requests
from dormouse_core.rollouts.verify import attempt_of
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.splits import FROZEN_ROOT
from dormouse_core.tasks.task import Split, Task
from dormouse_core.verifiers import hack_screen
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict

STAGE = "evaluation"
SHOWN = 32
"""Answers of a worker between two progress reports."""


class Answer(NamedTuple):
    """One played episode, as little of it as a verdict and a score need."""

    id: str
    actions: tuple[bytes, ...]
    stop: StopReason
    tokens: int


class Action(NamedTuple):
    """One action, as the hack screen reads it."""

    action_bytes: bytes
    ended: bool = True


class Read(NamedTuple):
    """One distinct answer, as the hack screen reads it."""

    id: str
    task_id: str
    group: str
    steps: tuple[Action, ...]


class Share(NamedTuple):
    """One worker's part of the episodes."""

    requests: tuple[RolloutRequest, ...]
    config: RolloutConfig


@contextmanager
def borrowed(pool: WorkerPool | None, config: RunConfig) -> Iterator[WorkerPool]:
    """The caller's worker processes, left open; without any, own ones, closed at the end."""
    if pool is not None:
        yield pool
    else:
        with WorkerPool(config.roll.workers, config.runtime.threads) as own:
            yield own


def checkpoint_policy(store: Store, artifact: Artifact) -> Policy:
    """The policy of a checkpoint, by the configuration in its own header."""
    checkpoint = store.read_checkpoint(artifact)
    return load_policy(checkpoint, checkpoint.config.policy, artifact.path)


def play_share(policy: Policy, share: Share) -> Generator[int, None, list[Answer]]:
    """Play one share, in this process, and say now and then how many answers have come. Module-level: worker processes are sent it."""
    tasks, answers = {r.task.id: r.task for r in share.requests}, list[Answer]()
    for t in roll(policy, share.requests, share.config, Ledger()):
        answers.append(Answer(t.id, attempt_of(t, tasks[t.task_id]).actions, t.stop, t.tokens))
        if len(answers) % SHOWN == 0:
            yield SHOWN
    return answers


def evaluation_requests(tasks: Sequence[Task], origin: Origin, config: RunConfig) -> list[list[RolloutRequest]]:
    """[M][1 + samples]: the greedy request of each task, then its sampled ones."""
    rows = range(1, 1 + config.eval.samples)
    return [[*group_requests(t, origin, [0], 0.0), *group_requests(t, origin, rows, config.roll.temperature)] for t in tasks]


def answer_tasks(policy: Policy, identity: str, purpose: str, tasks: Sequence[Task], config: RunConfig, workers: WorkerPool,
                 ledger: Ledger) -> list[list[Answer]]:
    """[M][1 + samples] answers of one policy. purpose: what the measurement is for; policies that share it share their draws."""
    origin = Origin(cycle=purpose, round=0, policy=identity, seed=config.runtime.seed, lfb_version=policy.lfb_version)
    requests = evaluation_requests(tasks, origin, config)
    shares = [Share(tuple(r for group in requests[i :: config.roll.workers] for r in group), config.roll)
              for i in range(config.roll.workers)]
    workers.set_weights(policy)
    total, done = sum(map(len, requests)), 0

    def more(_: int, arrived: int) -> None:
        nonlocal done
        done += arrived
        ledger.progress(STAGE, done, total, "answers", policy=identity[:12])

    played = {a.id: a for part in workers.map(play_share, [s for s in shares if s.requests], on_part=more) for a in part}
    ledger.count("evaluation_answers", len(played))
    return [[played[r.id] for r in group] for group in requests]


def score_answers(tasks: Sequence[Task], answers: Mapping[str, list[list[Answer]]], config: RunConfig, ledger: Ledger) -> dict[str, Scores]:
    """Judge the answers of several policies to the same tasks, equal ones once; one `Scores` a policy. Where the hack screen is on it
    reads them too, so that what may not be learnt from is not promoted for either.

    Raises DormouseError when more answers than `rl.no_verdict_limit` got no verdict: such a score would be of a sample the
    verifier chose.
    """
    unique: dict[tuple[str, tuple[bytes, ...], StopReason], Attempt] = {}
    for of_policy in answers.values():
        for task, group in zip(tasks, of_policy, strict=True):
            for a in group:
                unique.setdefault((task.id, a.actions, a.stop), Attempt(a.id, task, a.actions, a.stop))
    verdicts = dict(zip(unique, _screened(list(unique.values()), config.verify, ledger), strict=True))
    ledger.ask("evaluation answers judged (the rest are repeats)", ran=True, n=len(unique))
    scores = {}
    for name, of_policy in answers.items():
        judged = [[verdicts[t.id, a.actions, a.stop].verdict.value for a in group] for t, group in zip(tasks, of_policy, strict=True)]
        scores[name] = Scores(tasks, np.array(judged), np.array([[a.tokens for a in group] for group in of_policy], dtype=np.int64))
        refuse_no_verdict(scores[name], name, config.rl.no_verdict_limit)
    return scores


def _screened(attempts: Sequence[Attempt], config: VerifyConfig, ledger: Ledger) -> list[Verdict]:
    """Verdicts of distinct answers, behind the screen where it is on. The answers to one task are compared with each other."""
    verdicts = judge(attempts, config, ledger)
    if not config.hack_screen.enabled:
        return verdicts
    read = [Read(a.trajectory_id, a.task.id, a.task.id, tuple(Action(escape(action)) for action in a.actions)) for a in attempts]
    return hack_screen.screen(read, verdicts, {a.task.id: a.task for a in attempts}, config, ledger)


def refuse_no_verdict(scores: Scores, name: str, limit: float) -> None:
    """Raises DormouseError when too many answers got no verdict: the score would be of a sample the verifier chose."""
    share = scores.no_verdict_share()
    if share > limit:
        raise DormouseError(f"evaluation of {name}: {share:.1%} of the answers got no verdict ({scores.classes()}), more than the "
                            f"{limit:.0%} that rl.no_verdict_limit allows. The verifier or the machine failed, not the policy: look at "
                            "the reasons with `dormouse smoke`, then run the stage again")


def run(config: RunConfig, checkpoint: Artifact, *, store: Store, ledger: Ledger, run_id: str = "", pool: WorkerPool | None = None,
        fresh: bool = True) -> Artifact:
    """`post-train eval`: one checkpoint on the suite's fresh split (seeds from its own identity), and on the frozen one where
    `eval.frozen` is on; with `eval.profile = full` its hack rate beside them. Returns the EVAL_REPORT; its per-task table is stored
    beside it."""
    suite = load_suite(config.eval.suite)
    policy = checkpoint_policy(store, checkpoint)
    splits = [(Split.FRESH, checkpoint.identity)] * fresh + [(Split.FROZEN, FROZEN_ROOT)] * config.eval.frozen
    if not splits:
        raise DormouseError("nothing to evaluate: fresh seeds are off and eval.frozen is false; switch one of them on")
    if not fresh:
        ledger.loud("eval: fresh seeds off; only the frozen split is scored, which says nothing about promotion")
    full = config.eval.profile == "full"
    if not full:
        ledger.loud("eval: profile quick: no baits are laid, so how often this policy hacks is not measured (--profile full)")
    reports, tables, measured_on = [], [], list[Task]()
    with borrowed(pool, config) as workers:
        for split, root in splits:
            tasks = suite_tasks(suite, split, root, config.eval.tasks_per_pool, ledger)
            measured_on = measured_on or tasks
            answers = answer_tasks(policy, checkpoint.identity, f"eval:{split}", tasks, config, workers, ledger)
            scores = score_answers(tasks, {split.value: answers}, config, ledger)[split.value]
            bounds = measure_bounds(tasks, config.verify, ledger)
            reports.append(split_report(scores, split, root, bounds, config.eval, config.runtime.seed, split))
            tables.append(scores.table(split))
        hacks = measure_hacks(config, policy, checkpoint, measured_on, store=store, ledger=ledger, pool=workers,
                              run_id=run_id) if full else None
    parents = (Parent(role="checkpoint", kind=Kind.CHECKPOINT, identity=checkpoint.identity),)
    made = {"stage": STAGE, "config_sha256": config.sha256(), "code_version": code_version(), "seed": config.runtime.seed, "run_id": run_id,
            "counters": ledger.counters()}
    table = store.put_table(pa.concat_tables(tables), ("role", "task_id"), Provenance(kind=Kind.EVAL_TABLE, parents=parents, **made))
    of_table = Parent(role="table", kind=Kind.EVAL_TABLE, identity=table.identity)
    broken = [reason for r in reports for reason in r.broken]
    for reason in broken:
        ledger.loud(f"evaluation INVALID: {reason}")
    report = EvalReport(checkpoint=parents[0], suite=suite.name, samples=config.eval.samples, temperature=config.roll.temperature,
                        splits=tuple(reports), table=of_table, verdict="VALID" if not broken else "INVALID: " + "; ".join(broken),
                        hacks=hacks)
    return store.put_record(report, Provenance(
        kind=Kind.EVAL_REPORT, parents=(*parents, of_table, *([hacks.episodes] if hacks else [])), **made))
