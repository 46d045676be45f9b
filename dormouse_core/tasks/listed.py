"""Tasks that stand in files instead of being drawn: public sets, and a folder of one's own.

A set that holds tasks to train on gives those alone, unless evaluation is asked for by name; the others are for evaluation only: they can
be rolled and judged, and whatever trains refuses them. Their order is drawn by a seed, so a few of many are a fair few.
Not here: what a line means (public.py, own.py), tasks of families (registry.py).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.seeding import generator
from dormouse_core.tasks.own import own_tasks
from dormouse_core.tasks.public import PUBLIC, load_public
from dormouse_core.tasks.task import Task, Use

ALIASES = {"repair": "humanevalfix_repair"}
"""Short names of public sets."""


def is_listed(name: str) -> bool:
    """Whether a name stands for a public set."""
    return name in PUBLIC or name in ALIASES


def public_tasks(name: str, tasks_dir: Path | None, use: Use | None, ledger: Ledger) -> list[Task]:
    """The tasks of a public set for one use. Raises DormouseError where no folder of task files is named, the set is not in it, or it has
    no tasks for that use."""
    if tasks_dir is None:
        raise DormouseError(f"{name} is a public task set, read from a folder of task files, and none is named: give --tasks-dir DIR or "
                            "set DORMOUSE_TASKS_DIR")
    if not tasks_dir.is_dir():
        raise DormouseError(f"the tasks directory {tasks_dir} is not a folder; name the folder of public task files with --tasks-dir or "
                            "DORMOUSE_TASKS_DIR")
    return _of_use(name, load_public(ALIASES.get(name, name), tasks_dir, ledger), use, ledger)


def folder_tasks(folder: str, use: Use | None, ledger: Ledger) -> list[Task]:
    """The tasks of every task file in a folder. Raises DormouseError where it holds none for that use."""
    if not Path(folder).is_dir():
        raise DormouseError(f"{folder} is no folder of task files; name one that holds .jsonl files, a task a line")
    return _of_use(folder, [t for _, tasks, _ in own_tasks(Path(folder), ledger) for t in tasks], use, ledger)


def shuffled(tasks: Sequence[Task], name: str, root: str) -> Iterator[Task]:
    """The distinct tasks in an order that is a function of (name, root) alone."""
    distinct = list({t.id: t for t in tasks}.values())
    return (distinct[i] for i in generator("listed tasks", name, root).permutation(len(distinct)))


def _of_use(name: str, tasks: list[Task], use: Use | None, ledger: Ledger) -> list[Task]:
    wanted = use or (Use.TRAIN if any(t.use is Use.TRAIN for t in tasks) else Use.EVALUATION)
    kept = [t for t in tasks if t.use is wanted]
    if not kept:
        raise DormouseError(f"{name} holds {len(tasks)} tasks and none for {wanted}; leave `use` out, or name another set")
    if wanted is Use.EVALUATION:
        ledger.loud(f"{name}: its tasks are for evaluation only; they can be rolled and judged, and training refuses them")
    else:
        ledger.loud(f"{name}: its tasks have not been before the admission gate, so some may be passed without being solved; "
                    "`dormouse tasks check DIR` says which, and why")
    return kept
