"""Every environment: a fork at any step replays to the same digests and results, and any bytes are an action."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dormouse_core.envs.environment import StepResult, StopReason
from dormouse_core.envs.registry import ENVIRONMENTS, environment, restore, start
from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.files import Files, next_command, parse, plan
from dormouse_core.tasks.register import LETTERS, MACHINES, best_actions, distances, successors
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split, Task
from tests.core.envs.made import repair_task

TASKS = {
    name: [draw(family, d, Split.TRAIN, i, "env") for family in families for d in (0, 2, 4, 5) for i in range(3)]
    for name, families in {
        "answer": ("modular_sum", "slice_function"), "register_machine": ("register_machine", "register_mix"),
        "file_system": ("file_system",), "state_prediction": ("state_prediction", "file_prediction"),
    }.items()
} | {"repair": [repair_task(steps=steps) for steps in (3, 12)]}
ODD = [b"", b"\0", b"a\0", b"\xff\xfe", b"a" * 1_000_000, b"\0" * 1_000_000, b" a ", b"A", b"wa3", b"wa0", b"mab", b"maa", b"rX",
       b"kX", b"kZ", b"la", b"l", b"cab", b"cXaYb", "ä".encode(), b"a\n", b"\x01\x02\x03\x04\x05\x10", b"rm -rf /"]
tasks = st.sampled_from([t for group in TASKS.values() for t in group])


def actions_for(task: Task) -> list[bytes]:
    """Odd bytes, then the reference: a run that passes through every kind of result."""
    return ODD[:4] + list(task.reference) + ODD[4:8]


def test_every_registered_environment_is_tested_here() -> None:
    assert set(TASKS) == set(ENVIRONMENTS)


@pytest.mark.parametrize("name", TASKS)
def test_a_fork_at_every_step_replays_to_the_same_digests_and_results(name: str) -> None:
    limits = (3, 6, 40) if TASKS[name][0].max_steps > 1 else (1,)  # episodes that the limit ends early, late and never
    for task in (t.model_copy(update={"max_steps": limit}) for t in TASKS[name] for limit in limits):
        actions = actions_for(task)
        trunk = start(task)
        blobs, digests, results = [trunk.snapshot()], [trunk.digest()], []
        for action in actions:
            results.append(trunk.step(action))
            blobs.append(trunk.snapshot())
            digests.append(trunk.digest())
        for k in range(len(actions) + 1):
            fork = restore(task, blobs[k])
            assert fork.digest() == digests[k] and fork.snapshot() == blobs[k]
            assert fork.observe() == (results[k - 1].observation if k else b"")
            for i in range(k, len(actions)):
                assert fork.step(actions[i]) == results[i]
                assert fork.digest() == digests[i + 1]


@pytest.mark.parametrize("name", TASKS)
def test_equal_paths_have_equal_digests_and_the_env_seed_changes_nothing(name: str) -> None:
    task = TASKS[name][0]
    one, two = environment(name).start(task, 1), environment(name).start(task, 2)
    for action in actions_for(task):
        assert one.digest() == two.digest()
        assert one.step(action) == two.step(action)


@given(task=tasks, actions=st.lists(st.one_of(st.binary(max_size=24), st.sampled_from(ODD)), max_size=6))
@example(task=TASKS["register_machine"][0], actions=[b"\xff" * 1_000_000])
@example(task=TASKS["file_system"][0], actions=[b"\0" * 1_000_000])
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_an_observation_and_never_an_exception(task: Task, actions: list[bytes]) -> None:
    state = start(task)
    earned = 0.0
    for action in actions:
        result = state.step(action)
        assert isinstance(result, StepResult)
        assert len(result.observation) <= (4096 if task.environment == "repair" else 16)
        assert result.tool_ok or result.reward == 0
        earned += result.reward
        assert restore(task, state.snapshot()).digest() == state.digest()
    assert earned <= 1 + 1e-9


@pytest.mark.parametrize("name", ["register_machine", "file_system"])
def test_the_reference_solves_with_all_milestones_and_a_stopped_episode_stays_as_it_is(name: str) -> None:
    for task in TASKS[name]:
        state = start(task)
        results = [state.step(a) for a in task.reference]
        assert results[-1].stop is StopReason.SOLVED and all(r.stop is None for r in results[:-1])
        assert sum(r.reward for r in results) == pytest.approx(1)
        assert all(r.tool and r.tool_ok and r.parsed for r in results)
        before = state.digest()
        after = state.step(b"b")
        assert (after.stop, after.reward, state.digest()) == (StopReason.SOLVED, 0.0, before)


def test_malformed_and_refused_actions_change_nothing_but_the_step_count() -> None:
    for name, refused in (("register_machine", None), ("file_system", b"rXd")):
        task = TASKS[name][0]
        state = start(task)
        facts = state.facts()
        for bad in (b"\xff", b"zz", *([refused] if refused else [])):
            result = state.step(bad)
            assert not result.tool_ok and state.facts() == facts
        assert result.observation == (b"!" if refused else b"?")


def test_leaving_the_range_is_refused_on_the_walk() -> None:
    task = draw("register_machine", 2, Split.TRAIN, 0, "edge")
    state = start(task.model_copy(update={"start": task.start | {"value": 99, "goal": 5}}))
    result = state.step(b"a")
    assert (result.observation, result.tool_ok, result.tool, state.facts()) == (b"!", False, "a", {"value": 99})


def test_step_limit_stops_an_episode() -> None:
    task = TASKS["register_machine"][0]
    state = start(task)
    stops = [state.step(b"?").stop for _ in range(task.max_steps)]
    assert stops == [None] * (task.max_steps - 1) + [StopReason.MAX_STEPS]


def test_an_answer_is_submitted_once_whatever_it_is() -> None:
    task = TASKS["answer"][0]
    for action, well_formed in ((b" 7 ", True), (b"", False), (b"\xff", False), (b"7\0", False)):
        state = start(task)
        result = state.step(action)
        assert (result.stop, result.tool_ok, result.tool) == (StopReason.SUBMITTED, well_formed, "")
        digest = state.digest()
        state.step(b"another")
        assert state.digest() == digest


def test_the_prediction_environment_shows_the_truth_only_after_the_answer() -> None:
    for task in TASKS["state_prediction"]:
        state = start(task)
        assert state.observe() == b""
        assert state.step(b"anything").observation.decode() == task.trusted["answer"]


def test_a_snapshot_of_another_task_or_format_is_refused() -> None:
    for name, group in TASKS.items():
        blob = start(group[0]).snapshot()
        other = next(t for t in group if t.id != group[0].id)
        with pytest.raises(ValueError, match="cannot be restored for task"):
            environment(name).restore(other, blob)
        for bad in (b"", b"\xff", b"[]", b"{}", blob[:-1]):
            with pytest.raises(ValueError):
                environment(name).restore(group[0], bad)


def test_an_unknown_environment_is_named_with_its_neighbours() -> None:
    with pytest.raises(DormouseError, match="did you mean file_system"):
        environment("file_sistem")


@pytest.mark.parametrize("machine", MACHINES)
def test_distances_fall_by_one_along_best_actions(machine: str) -> None:
    for goal in range(0, 100, 7):
        to_goal = distances(machine, goal)
        for value in range(100):
            here, after = to_goal[value], successors(machine, value)
            assert here is None or here == 0 or best_actions(machine, value, goal)
            for letter in best_actions(machine, value, goal):
                target = after[LETTERS.index(letter)]
                assert target is not None and to_goal[target] == (here or 0) - 1
            reached = [to_goal[t] for t in after if t is not None and to_goal[t] is not None]
            assert here is None or here == 0 or min(d for d in reached if d is not None) == here - 1


@given(text=st.text(alphabet="abcdXY123456789", max_size=12))
def test_a_listing_reads_back_or_is_refused(text: str) -> None:
    try:
        state = Files.read(text)
    except ValueError:
        return
    assert Files.read(state.listing()) == state


@given(text=st.text(max_size=6))
def test_only_commands_parse(text: str) -> None:
    parts = parse(text)
    assert parts is None or (parts[0] in "wmcrkl" and "".join(parts) == text)


def _shortest(first: Files, goal: Files, most: int) -> int:
    """Breadth-first over every command: the oracle for `plan`."""
    paths, folders = ["a", "b", "c", "d", "Xa", "Xb"], ["X"]
    commands = [f"w{p}{c}" for p in paths for c in "12"] + [f"{t}{p}{q}" for t in "mc" for p in paths for q in paths]
    commands += [f"r{p}" for p in paths + folders] + [f"k{f}" for f in folders]
    edge, seen, depth = [first], {first.listing()}, 0
    while goal.listing() not in seen and depth < most:
        depth += 1
        found = {}
        for state in edge:
            for command in commands:
                after, said = state.apply(command)
                if said is not None and after.listing() not in seen:
                    found[after.listing()] = after
        seen |= set(found)
        edge = list(found.values())
    return depth


@pytest.mark.parametrize(("first", "goal"), [
    ("a1b2", "a2b1"), ("a1", "b1"), ("a1b1", "c1d1"), ("a1", "Xa1"), ("a1Xb2", "b2X"), ("a1b2", "a1"), ("", "a1Xa2"), ("a1c2", "b2"),
    ("a1b2c1", "c2")])
def test_a_plan_is_as_short_as_breadth_first_search_finds(first: str, goal: str) -> None:
    commands = plan(Files.read(first), Files.read(goal))
    assert len(commands) == _shortest(Files.read(first), Files.read(goal), len(commands))
    assert next_command(Files.read(goal), Files.read(goal)) is None
