"""Suites: which (family, difficulty) cells of which pool are trained on, and which only measured.

A suite is a committed TOML file, so what a headline number was measured on is pinned by name:

    [[cells]]
    pool = "agent"
    family = "register_machine"
    difficulty = [1, 2, 3]
    role = "train"

Not here: what a family is (tasks) and how often a cell is drawn (evolution).
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from dormouse_core.config.base import Record
from dormouse_core.ledger import DormouseError

PoolName = Literal["agent", "math", "code"]
CellRole = Literal["train", "beyond", "unseen"]
_PACKAGED = files("dormouse_core.config") / "suites"


class SuiteCell(Record):
    """One (family, difficulty) of a pool."""

    pool: PoolName
    family: str
    difficulty: int = Field(ge=0)
    role: CellRole = "train"
    """`train`: trained on, and measured on fresh seeds. `beyond`: knobs past the training range. `unseen`: a family never trained."""

    @property
    def name(self) -> str:
        """`family/d3`, as `Task.cell`."""
        return f"{self.family}/d{self.difficulty}"


class Suite(Record):
    name: str
    cells: tuple[SuiteCell, ...] = Field(min_length=1)

    def role(self, role: CellRole) -> tuple[SuiteCell, ...]:
        return tuple(c for c in self.cells if c.role == role)

    def pools(self, role: CellRole = "train") -> dict[str, tuple[SuiteCell, ...]]:
        """Cells of one role by pool, in file order."""
        pools: dict[str, tuple[SuiteCell, ...]] = {}
        for cell in self.role(role):
            pools[cell.pool] = (*pools.get(cell.pool, ()), cell)
        return pools

    @model_validator(mode="after")
    def _sound(self) -> "Suite":
        names = [c.name for c in self.cells]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"cells named twice: {', '.join(twice)}")
        trained = {c.family for c in self.role("train")}
        leaked = sorted({c.family for c in self.role("unseen")} & trained)
        if leaked:
            raise ValueError(f"families both trained and `unseen`: {', '.join(leaked)}")
        return self


def packaged_suites() -> list[str]:
    """Names of the suites that come with dormouse."""
    return sorted(f.name.removesuffix(".toml") for f in _PACKAGED.iterdir() if f.name.endswith(".toml")) if _PACKAGED.is_dir() else []


def load_suite(name_or_path: str | Path) -> Suite:
    """The suite of a packaged name or of a TOML file.

    Raises DormouseError when there is no such suite, the file is not TOML, or a cell is not legal.
    """
    text = str(name_or_path)
    if text.endswith(".toml"):
        source, name = Path(text), Path(text).stem
        if not source.is_file():
            raise DormouseError(f"no suite file at {text}; give a TOML file or one of the packaged suites: {', '.join(packaged_suites())}")
        raw = source.read_bytes()
    else:
        name = text
        if name not in packaged_suites():
            near = get_close_matches(name, packaged_suites(), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"packaged suites: {', '.join(packaged_suites())}."
            raise DormouseError(f"no suite {name!r}; {hint} A file is named by its path, ending in .toml")
        raw = (_PACKAGED / f"{name}.toml").read_bytes()
    return parse_suite(raw, name)


def parse_suite(raw: bytes, name: str) -> Suite:
    """Suite TOML -> Suite; `difficulty` may be one number or a list. Raises DormouseError naming suite and cell."""
    try:
        table = tomllib.loads(raw.decode())
        cells = [cell for row in table.pop("cells", []) for cell in _expand(row)]
        return Suite.model_validate({"name": name, **table, "cells": cells})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DormouseError(f"suite {name} is not readable TOML: {error}") from error
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise DormouseError(f"suite {name} is refused: {lines}. A cell is pool, family, difficulty (number or list), role") from error


def _expand(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not isinstance(row, Mapping):
        raise DormouseError(f"a suite's cells are TOML tables ([[cells]]), not {row!r}")
    levels = row.get("difficulty", 0)
    return [{**row, "difficulty": level} for level in (levels if isinstance(levels, list) else [levels])]
