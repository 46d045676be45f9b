"""Environment specs: what a name or a file stands for, and the tasks drawn of it."""

from pathlib import Path

import pytest

from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.spec import EnvSpec, load_spec, spec_tasks
from dormouse_core.tasks.task import Pool, Use


@pytest.mark.parametrize(("name", "pools"), [("code", {"code"}), ("code,math", {"code", "math"}), ("gcd", {"math"}), ("gcd/d2", {"math"}),
                                             ("tiny", {"agent", "math", "code"})])
def test_a_name_stands_for_pools_family_cell_or_suite(name: str, pools: set[str]) -> None:
    tasks = spec_tasks(load_spec(name), 4, seed=1)
    assert {t.pool.value for t in tasks} == pools and len({t.id for t in tasks}) == 4
    assert all(t.use is Use.TRAIN for t in tasks)


def test_pools_take_turns_so_that_few_tasks_cover_all() -> None:
    assert [t.pool for t in spec_tasks(EnvSpec(pools=tuple(Pool)), 3, seed=1)] == list(Pool)


def test_draws_are_a_function_of_spec_and_seed_alone() -> None:
    spec = load_spec("math")
    assert [t.id for t in spec_tasks(spec, 6, 1)] == [t.id for t in spec_tasks(spec, 6, 1)]
    assert [t.id for t in spec_tasks(spec, 6, 1)] != [t.id for t in spec_tasks(spec, 6, 2)]
    own = spec.model_copy(update={"seed": 2})
    assert [t.id for t in spec_tasks(own, 6, 1)] == [t.id for t in spec_tasks(spec, 6, 2)]


def test_caps_lower_a_tasks_own_limits_and_never_raise_them() -> None:
    free = spec_tasks(EnvSpec(families=("register_machine",), difficulty=(3, 3)), 3, 1)
    low = spec_tasks(EnvSpec(families=("register_machine",), difficulty=(3, 3), max_steps=2, byte_budget=5), 3, 1)
    high = spec_tasks(EnvSpec(families=("register_machine",), difficulty=(3, 3), max_steps=999, byte_budget=9999), 3, 1)
    assert all(t.max_steps == 2 and t.byte_budget == 5 for t in low) and [t.id for t in high] == [t.id for t in free]
    assert {t.id for t in low}.isdisjoint(t.id for t in free), "another limit is another task"


def test_a_verifier_keeps_only_tasks_it_judges() -> None:
    assert {t.verifier for t in spec_tasks(EnvSpec(pools=tuple(Pool)), 6, 1, verifier="exec")} == {"exec"}


def test_a_file_is_read_and_an_unknown_key_named(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('pools = ["code"]\ncells = ["gcd/d2"]\ndifficulty = [1, 1]\nmax_steps = 1\n')
    assert {t.cell.rpartition("/")[2] for t in spec_tasks(load_spec(str(path)), 8, 1)} == {"d1", "d2"}
    path.write_text('pool = ["code"]\n')
    with pytest.raises(DormouseError, match=r"pool: .*Its keys are pools"):
        load_spec(str(path))


@pytest.mark.parametrize(("name", "said"), [("kode", "name a pool"), ("nowhere.toml", "cannot read"), ("gcd/d99", "no cell"),
                                            ("", "name a pool")])
def test_what_is_no_environment_is_refused_with_what_could_be(name: str, said: str) -> None:
    with pytest.raises(DormouseError, match=said):
        spec_tasks(load_spec(name), 1, 1)


def test_more_tasks_than_the_cells_hold_is_an_error_not_repeats() -> None:
    with pytest.raises(DormouseError, match="distinct tasks of the"):
        spec_tasks(EnvSpec(families=("affine_function",), difficulty=(0, 0)), 500, 1)
