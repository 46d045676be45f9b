"""EnvSpec: which tasks an ad-hoc rollout plays: pools, families, difficulties, public sets, folders, and caps on steps and bytes.

A spec is a TOML file, or names: a packaged suite, a folder of task files, or any of pools, families, cells (`gcd/d2`) and public sets
(`mbpp`, `repair`), joined by commas.
Not here: the curriculum of a cycle (evolution), evaluation suites (config.suite), what listed tasks are (listed.py).
"""

import tomllib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, zip_longest
from pathlib import Path

from pydantic import Field, ValidationError

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite, packaged_suites
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.family import MAX_DIFFICULTY
from dormouse_core.tasks.listed import ALIASES, folder_tasks, is_listed, public_tasks, shuffled
from dormouse_core.tasks.public import PUBLIC
from dormouse_core.tasks.registry import draw, families, family
from dormouse_core.tasks.store import KEYS, tasks_to_table
from dormouse_core.tasks.task import Pool, Split, Task, Use

_REDRAWS = 50
"""Draws of every cell without a new task after which the spec counts as exhausted."""


class EnvSpec(Record):
    """What to play: the cells named, every family named at every difficulty of the range, and what stands in files."""

    pools: tuple[Pool, ...] = ()
    """All families of these pools."""
    families: tuple[str, ...] = ()
    """These families, beside the pools'."""
    difficulty: tuple[int, int] = (0, MAX_DIFFICULTY)
    """First and last difficulty of pools and families, both drawn."""
    cells: tuple[str, ...] = ()
    """Single cells, e.g. `gcd/d2`."""
    public: tuple[str, ...] = ()
    """Public sets, read from the tasks directory, e.g. `mbpp`; `repair` is HumanEvalFix in several turns."""
    folders: tuple[str, ...] = ()
    """Folders of task files of one's own."""
    use: Use | None = None
    """Of public sets and folders: `train` or `evaluation` tasks. Absent: those to train on where there are any, else the others."""
    max_steps: int | None = Field(None, ge=1)
    """Cap on a task's own step limit."""
    byte_budget: int | None = Field(None, ge=1)
    """Cap on a task's own byte budget."""
    seed: int | None = Field(None, ge=0)
    """Root of the draws; the run's seed where absent."""

    def chosen(self) -> list[tuple[str, int]]:
        """(family, difficulty), pools in turn, easy cells first. Raises DormouseError when there is neither one nor a file."""
        named = {family(name).name for name in self.families}
        families_ = [f for f in families().values() if f.name in named or f.pool in self.pools]
        levels = range(self.difficulty[0], self.difficulty[1] + 1)
        found = [(f.name, level) for level in levels for f in families_] + [_cell(name) for name in self.cells]
        by_pool = [[c for c in dict.fromkeys(found) if family(c[0]).pool is pool] for pool in Pool]
        turns = [cell for turn in zip_longest(*by_pool) for cell in turn if cell is not None]
        if not turns and not (self.public or self.folders):
            raise DormouseError(f"the environment spec names no cell to draw from: give pools ({', '.join(Pool)}), families with a "
                                f"difficulty range inside 0 to {MAX_DIFFICULTY}, cells such as gcd/d2, public sets or folders")
        return turns


def load_spec(name: str) -> EnvSpec:
    """A spec file, or the spec its names stand for. Raises DormouseError naming what each could have been."""
    if name.endswith(".toml"):
        return _from_file(Path(name))
    if name in packaged_suites():
        return EnvSpec(cells=tuple(cell.name for cell in load_suite(name).role("train")))
    parts = [part.strip() for part in name.split(",") if part.strip()]
    found = EnvSpec()
    for part in parts or [name]:
        field, value = _means(part)
        found = found.model_copy(update={field: (*getattr(found, field), value)})
    return found


def _means(part: str) -> tuple[str, str]:
    """(field of the spec, value) of one name."""
    if part in set(Pool):
        return "pools", Pool(part)
    if is_listed(part):
        return "public", part
    if part in families():
        return "families", part
    if part.partition("/d")[0] in families():
        return "cells", part
    if part and Path(part).is_dir():
        return "folders", part
    raise DormouseError(f"no environment {part!r}; name a pool ({', '.join(Pool)}), a family ({', '.join(families())}), a cell such as "
                        f"gcd/d2, a public set ({', '.join([*ALIASES, *PUBLIC])}), a folder of task files, a packaged suite "
                        f"({', '.join(packaged_suites())}) or a spec file ending in .toml")


def _cell(name: str) -> tuple[str, int]:
    head, mark, level = name.partition("/d")
    if not mark or not level.isdigit() or int(level) > MAX_DIFFICULTY:
        raise DormouseError(f"{name!r} is no cell: write family/dN with N from 0 to {MAX_DIFFICULTY}, e.g. gcd/d2")
    return family(head).name, int(level)


def spec_tasks(spec: EnvSpec, n: int, seed: int, max_steps: int | None = None, verifier: str | None = None, tasks_dir: Path | None = None,
               ledger: Ledger | None = None) -> list[Task]:
    """n distinct tasks, cells, sets and folders in turn; only those of one verifier kind where one is named. A function of its arguments
    and of the files named alone. tasks_dir: where public sets are read from. Raises DormouseError when there are fewer.
    """
    root = f"spec-{spec.seed if spec.seed is not None else seed}"
    turns = deque(_streams(spec, root, verifier, tasks_dir, ledger or Ledger()))
    if not turns:
        raise DormouseError(f"no cell of the environment spec is judged by the {verifier} verifier; leave --verifier out, or widen it")
    found: dict[str, Task] = {}
    idle = 0
    while turns and len(found) < n and idle <= _REDRAWS * len(turns):
        stream = turns.popleft()
        task = next(stream, None)
        if task is None:
            continue
        turns.append(stream)
        task = _capped(task, _least(spec.max_steps, max_steps), spec.byte_budget)
        idle = 0 if task.id not in found else idle + 1
        found.setdefault(task.id, task)
    if len(found) < n:
        raise DormouseError(f"the environment spec has only {len(found)} distinct tasks of the {n} asked for; lower --n or widen the spec")
    return list(found.values())


def _streams(spec: EnvSpec, root: str, verifier: str | None, tasks_dir: Path | None, ledger: Ledger) -> Iterator[Iterator[Task]]:
    """The tasks of each cell without end, and of each set and folder until it is empty."""
    for name, level in spec.chosen():
        if verifier in (None, draw(name, level, Split.TRAIN, 0, "kind").verifier):
            yield map(partial(draw, name, level, Split.TRAIN, root=root), count())
    listed = [(name, public_tasks(name, tasks_dir, spec.use, ledger)) for name in spec.public]
    listed += [(folder, folder_tasks(folder, spec.use, ledger)) for folder in spec.folders]
    for name, tasks in listed:
        mine = [t for t in tasks if verifier in (None, t.verifier)]
        if mine:
            yield shuffled(mine, name, root)


def task_set(tasks: Sequence[Task], config: RunConfig, *, store: Store, run_id: str = "") -> Artifact:
    """Tasks as a TASKS artifact."""
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
