"""Demonstrations: the budget and its shares, only right answers as targets, only train tasks, deterministic."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.admission.own_answers import solves
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import MixConfig, SftConfig
from dormouse_core.config.suite import Suite, load_suite, packaged_suites, parse_suite
from dormouse_core.encoding import Role, Span, parse, render
from dormouse_core.envs.environment import StopReason
from dormouse_core.envs.registry import start
from dormouse_core.learning.demonstrations import RowKind, SftRow, build_rows, shares
from dormouse_core.learning.experts import best_action, episode, passing_episode
from dormouse_core.ledger import DormouseError
from dormouse_core.seeding import generator
from dormouse_core.tasks.registry import draw, families, family
from dormouse_core.tasks.splits import admits
from dormouse_core.tasks.task import Pool, Split, Task

SUITE = parse_suite(b"""
[[cells]]
pool = "agent"
family = "register_machine"
difficulty = [1, 3]
[[cells]]
pool = "agent"
family = "file_system"
difficulty = 2
[[cells]]
pool = "agent"
family = "state_prediction"
difficulty = 1
[[cells]]
pool = "math"
family = "sum_of_terms"
difficulty = [1, 2]
[[cells]]
pool = "math"
family = "ordering"
difficulty = 1
[[cells]]
pool = "code"
family = "affine_function"
difficulty = [2, 4]
[[cells]]
pool = "code"
family = "slice_function"
difficulty = 1
[[cells]]
pool = "math"
family = "gcd"
difficulty = 5
role = "beyond"
""", "test")
N = 200
CONFIG = RunConfig(sft=SftConfig(rows_per_pool=N))


@pytest.fixture(scope="module")
def rows() -> list[SftRow]:
    return build_rows(CONFIG, SUITE, 7)


def said(row: SftRow, role: Role) -> list[bytes]:
    return [s.content for s in row.segments if s.role is role]


def task_of(row: SftRow, number: int) -> Task:
    """The task a row was made of, drawn again from what the row says."""
    name, level = row.cell.split("/d")
    levels = range(int(level) + 1) if row.kind is RowKind.SYNTHETIC else [int(level)]
    found = [draw(name, d, Split.TRAIN, number, f"sft-{row.kind.value}-7") for d in levels]
    return next(t for t in found if t.id == row.task_id)


def numbered(rows: list[SftRow]) -> list[tuple[SftRow, Task]]:
    seen: Counter[tuple[Pool, RowKind]] = Counter()
    out = []
    for row in rows:
        out.append((row, task_of(row, seen[row.pool, row.kind])))
        seen[row.pool, row.kind] += 1
    return out


def test_budget_and_shares_are_met_in_every_pool(rows: list[SftRow]) -> None:
    assert Counter(r.pool for r in rows) == dict.fromkeys(Pool, N)
    for pool in Pool:
        assert Counter(r.kind for r in rows if r.pool is pool) == {"expert": 70, "synthetic": 70, "repair": 30, "chat": 30}
    assert {r.cell for r in rows} == {c.name for c in SUITE.role("train")}


def test_rows_are_deterministic_and_another_seed_gives_others(rows: list[SftRow]) -> None:
    assert build_rows(CONFIG, SUITE, 7) == rows
    assert build_rows(CONFIG, SUITE, 8) != rows


def test_every_row_is_of_a_train_task(rows: list[SftRow]) -> None:
    for row, task in numbered(rows):
        assert task.split is Split.TRAIN
        assert admits(Split.TRAIN, task.family, task.params["canonical"])
        assert row.pool is task.pool


def test_a_fifth_of_math_and_code_rows_show_a_working_and_all_cells_do(rows: list[SftRow]) -> None:
    for pool in (Pool.MATH, Pool.CODE):
        long = [r for r in rows if r.pool is pool and r.long]
        assert len(long) == round(0.2 * N)
        assert {r.cell for r in long} == {r.cell for r in rows if r.pool is pool}
        assert RowKind.CHAT not in {r.kind for r in long}
    assert not [r for r in rows if r.pool is Pool.AGENT and r.long]
    none = build_rows(RunConfig(sft=SftConfig(rows_per_pool=40, long_share=0.0)), SUITE, 7)
    assert not any(r.long for r in none)


def test_single_turn_targets_are_right_answers_in_the_form_the_row_claims(rows: list[SftRow]) -> None:
    for row, task in numbered(rows):
        if row.kind is RowKind.CHAT or task.max_steps > 1:
            continue
        (target,) = said(row, Role.ASSISTANT)
        assert solves(task, (target,))
        assert target == (family(task.family).worked(task) if row.long else task.reference[0])
        assert row.segments[0] == Span(Role.PROMPT, task.prompt)


def test_agent_rows_replay_to_the_goal_and_show_what_the_environment_said(rows: list[SftRow]) -> None:
    for row, task in numbered(rows):
        if task.max_steps == 1 or row.kind not in (RowKind.EXPERT, RowKind.SYNTHETIC):
            continue
        state, stop = start(task), None
        shown = iter(said(row, Role.OBSERVATION))
        for action in said(row, Role.ASSISTANT):
            result = state.step(action)
            stop = result.stop
            assert stop is not None or next(shown) == result.observation
        assert stop is StopReason.SOLVED and next(shown, None) is None


def test_a_wrong_attempt_is_content_and_never_a_target(rows: list[SftRow]) -> None:
    repairs = [(r, t) for r, t in numbered(rows) if r.kind is RowKind.REPAIR]
    assert repairs
    for row, task in repairs:
        stream, mask_L = render(row.segments)
        targets = bytes(np.frombuffer(stream, dtype=np.uint8)[mask_L])
        if task.max_steps == 1:
            assert row.segments[1].role is Role.PROMPT and row.segments[1].content.startswith(b"!")
            assert not solves(task, (row.segments[1].content[1:],))
            assert targets == said(row, Role.ASSISTANT)[0] + b"\x05"
        else:
            assert row.segments[1].role is Role.OBSERVATION, "the detour is seen, not acted"
            assert row.segments[-1].role is Role.ASSISTANT
            assert len(said(row, Role.ASSISTANT)) < task.max_steps


def test_agent_chat_predicts_the_next_state(rows: list[SftRow]) -> None:
    for row, task in numbered(rows):
        if row.kind is not RowKind.CHAT or task.environment != "register_machine":
            continue
        state = start(task)
        for question, reply in zip(said(row, Role.PROMPT), said(row, Role.ASSISTANT), strict=True):
            assert state.step(question[-2:-1]).observation == reply


def test_stepwise_chat_adds_up(rows: list[SftRow]) -> None:
    for row, _ in numbered(rows):
        if row.kind is RowKind.CHAT and row.cell.startswith("sum_of_terms"):
            total = 0
            for question, reply in zip(said(row, Role.PROMPT), said(row, Role.ASSISTANT), strict=True):
                total = sum(map(int, question[:-1].split(b"+"))) if total == 0 else total + int(question[1:-1])
                assert int(reply) == total


def test_every_row_survives_the_encoding(rows: list[SftRow]) -> None:
    for row in rows:
        stream, mask_L = render(row.segments)
        assert tuple(parse(stream)) == row.segments
        assert mask_L.any() and not mask_L.all()


def test_experts_act_at_random_as_often_as_asked_and_noiseless_ones_take_the_shortest_way() -> None:
    rng = generator("test experts")
    off = total = 0
    for index in range(150):
        task = draw("register_machine", 3, Split.TRAIN, index, "noise").model_copy(update={"max_steps": 60})
        spans = passing_episode(task, 0.2, rng)
        state = start(task)
        for action in (s.content for s in spans if s.role is Role.ASSISTANT):
            good = {best_action(task, state, generator("g", k)) for k in range(12)}
            off, total = off + (action not in good), total + 1
            state.step(action)
        clean = passing_episode(task, 0.0, rng)
        assert sum(s.role is Role.ASSISTANT for s in clean) == task.reference_steps
    assert 0.05 < off / total < 0.2  # 20 % random, of which a part happens to be good


def test_a_failing_episode_is_no_row() -> None:
    task = draw("register_machine", 4, Split.TRAIN, 0, "fail").model_copy(update={"max_steps": 1})
    assert episode(task, 0.0, generator("e")) is None
    with pytest.raises(DormouseError, match="expert_noise"):
        passing_episode(task, 0.0, generator("e"))


@given(st.lists(st.floats(0, 10), min_size=4, max_size=4), st.integers(1, 5000))
@settings(max_examples=80)
def test_shares_sum_to_the_budget_and_stay_within_one_row(weights: list[float], n: int) -> None:
    mix = MixConfig(**dict(zip(("expert", "synthetic", "repair", "chat"), weights, strict=True)))
    if sum(weights) <= 0:
        with pytest.raises(DormouseError, match="share of 0"):
            shares(mix, n)
        return
    parts = shares(mix, n)
    assert sum(parts.values()) == n
    assert all(abs(parts[k] - n * w / sum(weights)) < 1 + 1e-6 for k, w in zip(parts, weights, strict=True))
    assert set(parts) == set(RowKind) - {RowKind.DATA}, "a user's own rows are not made"


@pytest.mark.parametrize("name", packaged_suites())
def test_packaged_suites_name_real_cells_in_their_own_pools(name: str) -> None:
    suite = load_suite(name)
    assert set(suite.pools("train")) == {p.value for p in Pool}
    for cell in suite.cells:
        assert families()[cell.family].pool.value == cell.pool
        task = draw(cell.family, cell.difficulty, Split.FRESH, 0, "suite")
        assert task.guess_bound <= 0.25, cell.name
        assert len(task.prompt) <= 40


def test_a_suite_without_training_cells_is_refused() -> None:
    with pytest.raises(DormouseError, match="no cell of role `train`"):
        build_rows(CONFIG, Suite(name="none", cells=SUITE.role("beyond")), 1)


def test_rows_need_no_files_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DORMOUSE_TASKS_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert len(build_rows(RunConfig(sft=SftConfig(rows_per_pool=8)), load_suite("tiny"), 1)) == 24
