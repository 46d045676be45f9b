"""EnvSpec: which training tasks an ad-hoc rollout draws: pools, families, difficulties, and caps on steps and bytes.

A spec is a TOML file, or one name: a pool (`code`), pools (`code,math`), a family, a cell (`gcd/d2`) or a packaged suite.
Not here: the curriculum of a cycle (evolution), evaluation suites (config.suite).
"""

import tomllib
from itertools import zip_longest
from pathlib import Path

from pydantic import Field, ValidationError

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite, packaged_suites
from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.family import MAX_DIFFICULTY
from dormouse_core.tasks.registry import draw, families, family
from dormouse_core.tasks.store import KEYS, tasks_to_table
from dormouse_core.tasks.task import Pool, Split, Task

_REDRAWS = 50
"""Draws of every cell without a new task after which the spec counts as exhausted."""


class EnvSpec(Record):
    """What to draw: the cells named, and every family named at every difficulty of the range."""

    pools: tuple[Pool, ...] = ()
    """All families of these pools."""
    families: tuple[str, ...] = ()
    """These families, beside the pools'."""
    difficulty: tuple[int, int] = (0, MAX_DIFFICULTY)
    """First and last difficulty of pools and families, both drawn."""
    cells: tuple[str, ...] = ()
    """Single cells, e.g. `gcd/d2`."""
    max_steps: int | None = Field(None, ge=1)
    """Cap on a task's own step limit."""
    byte_budget: int | None = Field(None, ge=1)
    """Cap on a task's own byte budget."""
    seed: int | None = Field(None, ge=0)
    """Root of the draws; the run's seed where absent."""

    def chosen(self) -> list[tuple[str, int]]:
        """(family, difficulty), pools in turn, easy cells first. Raises DormouseError when there is none."""
        named = {family(name).name for name in self.families}
        families_ = [f for f in families().values() if f.name in named or f.pool in self.pools]
        levels = range(self.difficulty[0], self.difficulty[1] + 1)
        found = [(f.name, level) for level in levels for f in families_] + [_cell(name) for name in self.cells]
        by_pool = [[c for c in dict.fromkeys(found) if family(c[0]).pool is pool] for pool in Pool]
        turns = [cell for turn in zip_longest(*by_pool) for cell in turn if cell is not None]
        if not turns:
            raise DormouseError(f"the environment spec names no cell to draw from: give pools ({', '.join(Pool)}), families with a "
                                f"difficulty range inside 0 to {MAX_DIFFICULTY}, or cells such as gcd/d2")
        return turns


def load_spec(name: str) -> EnvSpec:
    """A spec file, or the spec a name stands for. Raises DormouseError naming what it could have been."""
    if name.endswith(".toml"):
        return _from_file(Path(name))
    parts = [part.strip() for part in name.split(",") if part.strip()]
    if parts and all(part in set(Pool) for part in parts):
        return EnvSpec(pools=tuple(Pool(part) for part in parts))
    if name in packaged_suites():
        return EnvSpec(cells=tuple(cell.name for cell in load_suite(name).role("train")))
    if name in families():
        return EnvSpec(families=(name,))
    if name.partition("/d")[0] in families():
        return EnvSpec(cells=(name,))
    raise DormouseError(f"no environment {name!r}; name a pool ({', '.join(Pool)}), a family ({', '.join(families())}), a cell such as "
                        f"gcd/d2, a packaged suite ({', '.join(packaged_suites())}) or a spec file ending in .toml")


def _cell(name: str) -> tuple[str, int]:
    head, mark, level = name.partition("/d")
    if not mark or not level.isdigit() or int(level) > MAX_DIFFICULTY:
        raise DormouseError(f"{name!r} is no cell: write family/dN with N from 0 to {MAX_DIFFICULTY}, e.g. gcd/d2")
    return family(head).name, int(level)


def spec_tasks(spec: EnvSpec, n: int, seed: int, max_steps: int | None = None, verifier: str | None = None) -> list[Task]:
    """n distinct training tasks, cell by cell in turn; only those of one verifier kind where one is named. A function of its
    arguments alone. Raises DormouseError when the cells hold fewer.
    """
    cells = [(name, level) for name, level in spec.chosen() if verifier in (None, draw(name, level, Split.TRAIN, 0, "kind").verifier)]
    if not cells:
        raise DormouseError(f"no cell of the environment spec is judged by the {verifier} verifier; leave --verifier out, or widen it")
    root = f"spec-{spec.seed if spec.seed is not None else seed}"
    found: dict[str, Task] = {}
    turn, new = 0, 0
    while len(found) < n and turn - new <= _REDRAWS * len(cells):
        name, level = cells[turn % len(cells)]
        task = _capped(draw(name, level, Split.TRAIN, turn // len(cells), root), _least(spec.max_steps, max_steps), spec.byte_budget)
        turn += 1
        if task.id not in found:
            found[task.id], new = task, turn
    if len(found) < n:
        raise DormouseError(f"the environment spec has only {len(found)} distinct tasks of the {n} asked for; lower --n or widen the spec")
    return list(found.values())


def task_set(spec: EnvSpec, n: int, config: RunConfig, *, store: Store, max_steps: int | None = None, verifier: str | None = None,
             run_id: str = "") -> Artifact:
    """The same as a TASKS artifact."""
    tasks = spec_tasks(spec, n, config.runtime.seed, max_steps, verifier)
    return store.put_table(tasks_to_table(tasks), KEYS, Provenance(
        kind=Kind.TASKS, stage="env_spec", config_sha256=config.sha256(), code_version=code_version(), seed=config.runtime.seed,
        run_id=run_id))


def _capped(task: Task, max_steps: int | None, byte_budget: int | None) -> Task:
    changes = {"max_steps": min(task.max_steps, max_steps or task.max_steps),
               "byte_budget": min(task.byte_budget, byte_budget or task.byte_budget)}
    return Task.model_validate(task.model_dump() | changes)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _from_file(path: Path) -> EnvSpec:
    try:
        return EnvSpec.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise DormouseError(f"cannot read the environment spec {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DormouseError(f"the environment spec {path} is not readable TOML: {error}") from error
    except ValidationError as error:
        rows = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:4])
        raise DormouseError(f"the environment spec {path} is refused: {rows}. Its keys are {', '.join(EnvSpec.model_fields)}") from error
