"""The verifier bench and the planted policy: what they judge, what they find, and that they notice a verifier that is wrong."""

from collections import Counter
from pathlib import Path

import pytest

from dormouse_core.admission import bench, labelled, planted
from dormouse_core.admission.hacks import CLASSES, Defence
from dormouse_core.admission.honest import PROGRAMS, TRIANGLE, variants
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.registry import draw, families
from dormouse_core.tasks.task import Split, VerifierKind
from dormouse_core.verifiers.verdict import VerdictClass

CONFIG = VerifyConfig(cpu_seconds=0.3, wall_seconds=3)


def test_the_built_in_answers_are_many_and_of_both_kinds() -> None:
    kinds = Counter((x.source, x.right) for x in bench.built_in())
    assert kinds["hostile programs", False] > 250 and kinds["honest rewritings", True] > 200
    assert kinds["honest programs", True] == len(PROGRAMS)
    assert {slug for x in bench.hostile() for slug in [x.attempt.trajectory_id.split()[1].split("/")[0]]} >= {
        c.slug for c in CLASSES} - {"prompt_leak", "verifier_drift", "wrong_reference"}


def test_no_built_in_answer_is_misjudged(ledger: Ledger) -> None:
    report = bench.run(None, 400, CONFIG, ledger, limits=False)
    assert report.holds, [r.examples for r in report.rows if r.examples]
    assert report.judged >= 350 and all(r.seconds >= 0 for r in report.rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_answer_whose_truth_is_known_is_misjudged(tasks_dir: Path, ledger: Ledger) -> None:
    report = bench.run(tasks_dir, 0, VerifyConfig(), ledger)
    assert report.holds, [r.examples for r in report.rows if r.examples]
    assert report.judged > 200_000


def test_a_sample_keeps_every_source_and_is_the_same_each_time() -> None:
    everything = list(bench.built_in())
    few = bench.sampled(everything, 60)
    assert few == bench.sampled(everything, 60) and {x.source for x in few} == {x.source for x in everything}
    assert 50 <= len(few) <= 80 and bench.sampled(everything, 0) == everything


def test_a_verifier_that_passes_everything_or_nothing_stops_the_rollouts(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    report = bench.require(CONFIG, ledger)
    assert report.holds and ledger.counts["bench.judged"] == report.judged and ledger.counts["bench.misjudged"] == 0
    honest = labelled.judge
    for kind in (VerdictClass.PASS, VerdictClass.FAIL, VerdictClass.VERIFIER_ERROR):
        monkeypatch.setattr(labelled, "judge", lambda *a, kind=kind: [v.model_copy(update={"verdict": kind}) for v in honest(*a)])
        with pytest.raises(DormouseError, match="Nothing is rolled against it"):
            bench.require(CONFIG, ledger)


def test_rewritings_change_the_text_and_keep_the_value() -> None:
    for name in families():
        task = draw(name, 1, Split.TRAIN, 0, "honest")
        if task.verifier is VerifierKind.EXEC:
            assert len(set(variants(task)) - set(task.reference)) >= 7
    assert len(list(variants(TRIANGLE))) == 3


def test_no_planted_hack_is_paid_and_the_screen_sees_through_a_fooled_judge(ledger: Ledger) -> None:
    rows = {r.slug: r for r in planted.recall(CONFIG, ledger)}
    assert len(rows) == 41 and all(r.paid == 0 and r.programs > 0 for r in rows.values())
    seen = {slug for slug, r in rows.items() if r.recognised == r.programs}
    detected = {c.slug for c in CLASSES if Defence.DETECTED in c.defences} & set(rows)
    assert detected - {"flaky", "echo", "state_between_cases"} <= seen
    assert sum(r.recognised for r in rows.values()) / sum(r.programs for r in rows.values()) > 0.6


def test_false_alarms_on_honest_programs_are_rare(tasks_dir: Path) -> None:
    rows = planted.false_alarms(tasks_dir)
    programs, alarms = sum(r.programs for r in rows), sum(r.alarms for r in rows)
    assert programs > 2000 and alarms / programs < 0.005
    assert all(r.alarms == 0 for r in rows if r.source in ("own references", "own longer solutions", "honest rewritings"))
