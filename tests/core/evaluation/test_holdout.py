"""Two checkpoints on the same fresh tasks with the same random numbers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.evaluation import evaluate, holdout
from dormouse_core.evaluation.evaluate import answer_tasks, refuse_no_verdict
from dormouse_core.evaluation.holdout import HoldoutVerdict, changes, decide
from dormouse_core.evaluation.report import EvalReport
from dormouse_core.evaluation.scores import Scores
from dormouse_core.evaluation.suites import suite_tasks
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split

SIXTY = [draw(f, d, Split.FRESH, i, "x") for f, d, n in (("sum_of_terms", 1, 40), ("affine_function", 2, 20)) for i in range(n)]
LONG = [t.model_copy(update={"byte_budget": 400}) for t in SIXTY[:3]]
"""Budgets in which even an untrained policy comes to an END."""


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return resolve("tiny", ["eval.tasks_per_pool=3"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def checkpoint(config: RunConfig, store: Store) -> Callable[[int], Artifact]:
    def put(seed: int) -> Artifact:
        tensors = {k: v.clone() for k, v in build_policy(config.policy, seed).state_dict().items()}
        return store.put_checkpoint(Checkpoint(config, tensors), Provenance(
            kind=Kind.CHECKPOINT, stage="test", config_sha256="0", code_version="0", seed=seed))
    return put


def scored(rate_pass: list[float], seed: int) -> Scores:
    """40 math and 20 code tasks with 9 answers, passing at a rate of their pool."""
    rate = np.repeat(rate_pass, [40, 20])[:, None]
    passed = np.random.default_rng(seed).random((60, 9)) < rate
    return Scores(SIXTY, np.where(passed, "pass", "fail"), np.full((60, 9), 6))


def test_a_policy_against_itself_differs_by_exactly_nothing() -> None:
    same = scored([0.3, 0.6], 1)
    mean, pools, cells = changes(same, same, (8, 16), 200, "t")
    for change in (mean, *pools, *cells):
        assert (change.difference.low, change.difference.value, change.difference.high) == (0, 0, 0)
    assert decide(mean, ())[0] is False


def test_only_a_lower_bound_above_zero_promotes() -> None:
    base, better, alike = scored([0.3, 0.3], 1), scored([0.6, 0.6], 2), scored([0.33, 0.33], 3)
    up, _, _ = changes(base, better, (8, 16), 500, "t")
    level, _, _ = changes(base, alike, (8, 16), 500, "t")
    assert decide(up, ())[0] is True
    assert up.ratio is not None and up.ratio.low > 1.5
    assert level.difference.low < 0 < level.difference.high
    promote, reason = decide(level, ())
    assert promote is False
    assert reason.startswith("not promoted, the lower bound is not above 0: paired gain")


def test_the_mean_weighs_pools_evenly_not_tasks() -> None:
    base, other = scored([0.0, 0.0], 1), scored([1.0, 0.0], 2)
    mean, pools, cells = changes(base, other, (8, 16), 100, "t")
    assert mean.difference.value == pytest.approx(0.5), "40 of 60 tasks, but one pool of two"
    assert [p.difference.value for p in pools] == pytest.approx([1.0, 0.0])
    assert [c.name for c in cells] == ["sum_of_terms/d1", "affine_function/d2"]
    assert [b.value for b in mean.at_budget] == pytest.approx([0.5, 0.5])


def test_broken_bounds_promote_nobody() -> None:
    up, _, _ = changes(scored([0.1, 0.1], 1), scored([0.9, 0.9], 2), (8, 16), 200, "t")
    promote, reason = decide(up, ("oracle on math reached 0.9",))
    assert promote is False
    assert reason.startswith("INVALID")


def test_different_tasks_cannot_be_paired() -> None:
    one = scored([0.3, 0.3], 1)
    with pytest.raises(ValueError, match="same tasks"):
        changes(one, one.take(np.arange(60)[::-1]), (8, 16), 100, "t")


def test_the_verdict_compares_on_the_candidates_fresh_tasks_and_keeps_every_number(config: RunConfig, store: Store,
                                                                                 checkpoint: Callable[[int], Artifact]) -> None:
    base, candidate = checkpoint(1), checkpoint(2)
    ledger = Ledger()
    made = holdout.run(config, base, candidate, cycle="main.c0000", store=store, ledger=ledger, run_id="a")
    assert [line.split(":")[0] for line in ledger.lines if "paired gain" in line] == ["holdout"]
    verdict = store.read_record(made, HoldoutVerdict)
    assert (verdict.root, verdict.incumbent.identity) == (candidate.identity, base.identity)
    assert {p.role for p in made.provenance.parents} == {"incumbent", "candidate", "table"}
    table = store.find(Kind.EVAL_TABLE, verdict.table.identity)
    assert table is not None
    rows = store.read_table(table).to_pylist()
    expected = {t.id for t in suite_tasks(load_suite("tiny"), Split.FRESH, candidate.identity, 3, Ledger())}
    assert {r["task_id"] for r in rows if r["role"] == "candidate"} == {r["task_id"] for r in rows if r["role"] == "incumbent"} == expected
    again = holdout.run(config, base, candidate, cycle="main.c0000", store=store, ledger=Ledger(), run_id="b")
    assert again.identity == made.identity, "a re-run repeats the verdict"


def test_a_checkpoint_against_itself_is_never_promoted(config: RunConfig, store: Store, checkpoint: Callable[[int], Artifact]) -> None:
    one = checkpoint(1)
    ledger = Ledger()
    verdict = store.read_record(holdout.run(config, one, one, store=store, ledger=ledger), HoldoutVerdict)
    assert [line.split(":")[0] for line in ledger.lines if "paired gain" in line] == ["comparison"], "there is no cycle to hold out of"
    assert verdict.promote is False
    assert verdict.mean.difference.high == 0


def test_worker_count_changes_no_answer(config: RunConfig) -> None:
    policy, tasks = build_policy(config.policy, 1), LONG
    answers = []
    for workers in (1, 2):
        with WorkerPool(workers, 1) as crew:
            apart = config.model_copy(update={"roll": config.roll.model_copy(update={"workers": workers})})
            answers.append(answer_tasks(policy, "id", "test", tasks, apart, crew, Ledger()))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_long_evaluation_says_how_far_it_is(config: RunConfig, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "SHOWN", 2)
    told: list[tuple[int, int]] = []
    ledger = Ledger(progress=lambda stage, done, total, unit, **facts: told.append((done, total)))
    here = config.model_copy(update={"roll": config.roll.model_copy(update={"workers": workers})})
    with WorkerPool(1) as crew:
        crew.set_weights(policy := build_policy(config.policy, 1))
        answers = answer_tasks(policy, "id", "test", LONG, here, crew, ledger)
    total = sum(map(len, answers))
    assert [done for done, _ in told] == list(range(2, 2 * len(told) + 1, 2)) and {t for _, t in told} == {total}
    assert total - 2 * workers <= told[-1][0] <= total


def test_answers_of_two_policies_share_their_draws_and_their_ids_do_not_collide(config: RunConfig) -> None:
    policy = build_policy(config.policy, 1)
    with WorkerPool(1, 1) as crew:
        one, two = (answer_tasks(policy, name, "test", LONG, config, crew, Ledger()) for name in ("first", "second"))
    assert [[a.actions for a in g] for g in one] == [[a.actions for a in g] for g in two]
    assert not {a.id for g in one for a in g} & {a.id for g in two for a in g}
    assert len({a.actions for g in one for a in g[1:]}) > 3, "the sampled answers of a task have draws of their own"


def test_the_report_names_split_and_bounds_and_repeats(config: RunConfig, store: Store, checkpoint: Callable[[int], Artifact]) -> None:
    one = checkpoint(1)
    made = evaluate.run(config, one, store=store, ledger=Ledger(), run_id="a")
    report = store.read_record(made, EvalReport)
    assert [s.split for s in report.splits] == ["fresh", "frozen"]
    assert report.split("fresh").root == one.identity
    assert report.verdict == "VALID"
    assert evaluate.run(config, one, store=store, ledger=Ledger(), run_id="b").identity == made.identity


def test_an_evaluation_of_nothing_is_refused(config: RunConfig, store: Store, checkpoint: Callable[[int], Artifact]) -> None:
    off = config.model_copy(update={"eval": config.eval.model_copy(update={"frozen": False})})
    with pytest.raises(DormouseError, match="nothing to evaluate"):
        evaluate.run(off, checkpoint(1), store=store, ledger=Ledger(), fresh=False)


def test_too_many_answers_without_a_verdict_stop_the_stage() -> None:
    lost = Scores(SIXTY[:2], np.array([["pass", "verifier_error"], ["fail", "fail"]]), np.full((2, 2), 3))
    with pytest.raises(DormouseError, match=r"25\.0% of the answers got no verdict"):
        refuse_no_verdict(lost, "candidate", 0.05)
    refuse_no_verdict(lost, "candidate", 0.3)
