"""What is kept of a failure, and what never is."""

import numpy as np
import pytest

from dormouse_core.envs.environment import StopReason
from dormouse_core.evolution.failure_memory import CAPACITY, SCHEMA, cell_weights, diagnosis_of, reason_class, remember
from dormouse_core.rollouts.trajectory import Start, Step, Trajectory
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split, Task
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

TASK, OTHER = (draw("sum_of_terms", 1, Split.TRAIN, i, "1") for i in range(2))
SECRET = b"7777777"


def episode(task: Task, name: str, start: Start = Start.ROOT) -> Trajectory:
    step = Step(
        0, SECRET, True, SECRET.decode(), b"", "o", f"state-{name}", "", True, np.zeros(8, np.float32), np.zeros(8, np.float32), 0.0
    )
    return Trajectory(
        name,
        "main.c0001",
        0,
        task.id,
        task.pool,
        task.cell,
        "g",
        0,
        start,
        "",
        -1,
        1,
        "p",
        0,
        1.0,
        task.prompt,
        (step,),
        StopReason.SUBMITTED,
    )


def verdict(name: str, task: Task, kind: VerdictClass, score: float = 0.0, reason: str = "a different number") -> Verdict:
    return Verdict(
        trajectory_id=name,
        task_id=task.id,
        kind=task.verifier,
        verdict=kind,
        score=score,
        decided_by="exact.number",
        reason=reason,
        verifier_sha256="v",
    )


def memory(*tried: tuple[Task, VerdictClass, float], previous: list[dict[str, object]] | None = None) -> list[dict[str, object]]:
    names = [str(i) for i in range(len(tried))]
    return remember(
        [TASK, OTHER],
        [episode(t, n) for n, (t, _, _) in zip(names, tried, strict=True)],
        {n: verdict(n, t, k, s) for n, (t, k, s) in zip(names, tried, strict=True)},
        "table",
        "main.c0001",
        previous or [],
    )


def test_a_failed_task_is_kept_with_diagnosis_pointer_and_where_its_best_try_ended() -> None:
    rows = memory((TASK, VerdictClass.FAIL, 0.0), (TASK, VerdictClass.FAIL, 0.5), (TASK, VerdictClass.TRUNCATED, 0.0))
    assert rows == [
        {
            "task_id": TASK.id,
            "tasks": "table",
            "pool": "math",
            "family": "sum_of_terms",
            "difficulty": 1,
            "cycle": "main.c0001",
            "answers": 3,
            "verdict": "fail",
            "decided_by": "exact.number",
            "reason_class": "",
            "share": pytest.approx(2 / 3),
            "best_score": 0.5,
            "step": 0,
            "state_digest": "state-1",
        }
    ]
    assert set(rows[0]) == set(SCHEMA.names)


def test_no_byte_of_the_failed_answer_is_kept() -> None:
    names = ["0"]
    rows = remember(
        [TASK],
        [episode(TASK, n) for n in names],
        {n: verdict(n, TASK, VerdictClass.FAIL, reason=f"got {SECRET.decode()} ValueErrorish") for n in names},
        "table",
        "main.c0001",
    )
    assert SECRET.decode() not in repr(rows)


def test_only_a_known_exception_class_survives_of_a_reason() -> None:
    assert reason_class("case 3: ZeroDivisionError: division by zero") == "ZeroDivisionError"
    assert reason_class("expected Secret, got Answer42") == ""


def test_a_task_with_one_pass_is_no_failure_and_one_without_a_verdict_neither() -> None:
    assert memory((TASK, VerdictClass.FAIL, 0.0), (TASK, VerdictClass.PASS, 1.0)) == []
    assert memory((TASK, VerdictClass.VERIFIER_ERROR, 0.0), (TASK, VerdictClass.HACK_SUSPECTED, 0.0)) == []


def test_forks_do_not_count_as_tries() -> None:
    assert remember([TASK], [episode(TASK, "0", Start.PREFIX)], {"0": verdict("0", TASK, VerdictClass.FAIL)}, "table", "main.c0001") == []


def test_a_solved_task_leaves_the_memory_and_an_untried_one_stays() -> None:
    old = memory((TASK, VerdictClass.FAIL, 0.0), (OTHER, VerdictClass.FAIL, 0.0))
    assert len(old) == 2
    now = memory((TASK, VerdictClass.PASS, 1.0), previous=old)
    assert [r["task_id"] for r in now] == [OTHER.id]


def test_the_memory_is_bounded_and_forgets_the_oldest_first() -> None:
    old = [{**memory((OTHER, VerdictClass.FAIL, 0.0))[0], "task_id": f"{i:04d}", "cycle": f"main.c{i % 2:04d}"} for i in range(CAPACITY)]
    now = memory((TASK, VerdictClass.FAIL, 0.0), previous=old)
    assert len(now) == CAPACITY
    assert TASK.id in {r["task_id"] for r in now}
    assert sum(r["cycle"] == "main.c0000" for r in now) == CAPACITY // 2 - 1


def test_near_misses_weigh_more_and_the_diagnosis_is_readable() -> None:
    rows = memory((TASK, VerdictClass.FAIL, 0.5), (OTHER, VerdictClass.TRUNCATED, 0.0))
    assert cell_weights(rows) == {"sum_of_terms/d1": 2.5}
    assert diagnosis_of(rows, "sum_of_terms/d1") == "2 unsolved tasks, 1 of them fail by exact.number"
