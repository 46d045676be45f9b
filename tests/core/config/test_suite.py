"""Suites pin what is trained on and what is only measured."""

from pathlib import Path

import pytest

from dormouse_core.config.suite import Suite, SuiteCell, load_suite, packaged_suites, parse_suite
from dormouse_core.ledger import DormouseError

TOML = b"""
[[cells]]
pool = "agent"
family = "walk"
difficulty = [1, 2]

[[cells]]
pool = "math"
family = "sum"
difficulty = 3
role = "beyond"
"""


def test_a_list_of_difficulties_is_a_cell_each() -> None:
    suite = parse_suite(TOML, "mine")
    assert [c.name for c in suite.cells] == ["walk/d1", "walk/d2", "sum/d3"]
    assert [c.name for c in suite.role("beyond")] == ["sum/d3"]
    assert list(suite.pools()) == ["agent"]


def test_a_suite_file_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(TOML)
    assert load_suite(tmp_path / "mine.toml") == parse_suite(TOML, "mine")


@pytest.mark.parametrize(("raw", "hint"), [
    (b"[[cells", "not readable TOML"),
    (b"\xff", "not readable TOML"),
    (b"", "at least 1 item"),
    (b"cells = [3]", "TOML tables"),
    (b'[[cells]]\npool = "poetry"\nfamily = "x"', "pool"),
    (b'[[cells]]\npool = "math"\nfamily = "x"\ncolour = 3', "colour"),
    (b'[[cells]]\npool = "math"\nfamily = "x"\ndifficulty = [1, 1]', "named twice: x/d1"),
    (b'[[cells]]\npool = "math"\nfamily = "x"\n[[cells]]\npool = "math"\nfamily = "x"\ndifficulty = 2\nrole = "unseen"',
     "both trained and"),
])
def test_a_bad_suite_is_refused_by_name(raw: bytes, hint: str) -> None:
    with pytest.raises(DormouseError, match=hint):
        parse_suite(raw, "bad")


@pytest.mark.parametrize("name", ["nothing", "nothing.toml"])
def test_an_unknown_suite_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(DormouseError, match="nothing"):
        load_suite(name)


@pytest.mark.parametrize("name", packaged_suites())
def test_every_packaged_suite_loads_and_trains_on_something(name: str) -> None:
    assert load_suite(name).role("train")


def test_a_cell_is_named_as_a_task_names_it() -> None:
    suite = Suite(name="s", cells=(SuiteCell(pool="code", family="f", difficulty=4),))
    assert suite.cells[0].name == "f/d4"
