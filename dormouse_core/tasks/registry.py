"""The families there are, by name, and the one way to draw a task of them.

Not here: how often a cell is drawn (evolution), public data sets (public).
"""

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from dormouse_core.config.base import Record
from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.family import MAX_DIFFICULTY, Family
from dormouse_core.tasks.splits import split_seed
from dormouse_core.tasks.task import Pool, Split, Task, Use

_MODULES = (
    "register_machine", "file_system", "state_prediction",
    "sum_of_terms", "modular_sum", "linear_equation", "largest", "ordering", "gcd", "complement", "carryless_sum", "reasoning_gym",
    "affine_function", "shift_function", "slice_function", "index_function", "pair_function",
)


@cache
def families() -> dict[str, Family]:
    """Every registered family, in the registry's order."""
    found: dict[str, Family] = {}
    for module in _MODULES:
        for each in import_module(f"dormouse_core.tasks.generators.{module}").FAMILIES:
            if each.name in found:
                raise ValueError(f"family {each.name} is registered twice")
            found[each.name] = each
    return found


def family(name: str) -> Family:
    """The family of a name. Raises DormouseError with near matches."""
    found = families().get(name)
    if found is None:
        near = get_close_matches(name, families(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"families: {', '.join(families())}"
        raise DormouseError(f"no task family {name!r}; {hint}")
    return found


def draw(name: str, difficulty: int, split: Split, index: int, root: str) -> Task:
    """Task number `index` of a cell in a split. A function of its arguments alone.

    root: the run's seed for TRAIN, the candidate's identity for FRESH, BEYOND and UNSEEN; ignored for FROZEN.
    """
    use = Use.TRAIN if split is Split.TRAIN else Use.EVALUATION
    return family(name).generate(difficulty, split_seed(split, name, difficulty, index, root), split, use)


def draw_distinct(name: str, difficulty: int, split: Split, n: int, root: str) -> list[Task]:
    """The first n tasks of a cell with distinct prompts, in index order; fewer where the cell is that small."""
    found: dict[bytes, Task] = {}
    for index in range(20 * n):
        task = draw(name, difficulty, split, index, root)
        found.setdefault(task.prompt, task)
        if len(found) == n:
            break
    return list(found.values())


class FamilyCard(Record):
    """What `tasks list` shows of one family."""

    name: str
    pool: Pool
    about: str
    difficulties: tuple[int, ...]
    environment: str
    verifier: str
    example: bytes
    """Prompt of the easiest frozen task."""
    reference: tuple[bytes, ...]
    licence: str
    source: str


def cards(pool: Pool | None = None, names: Sequence[str] = ()) -> list[FamilyCard]:
    """One card a family: all, those of a pool, or those named."""
    chosen = [family(n) for n in names] if names else list(families().values())
    return [_card(f) for f in chosen if pool is None or f.pool is pool]


def _card(f: Family) -> FamilyCard:
    shown = draw(f.name, 0, Split.FROZEN, 0, "")
    return FamilyCard(name=f.name, pool=f.pool, about=f.about, difficulties=tuple(range(MAX_DIFFICULTY + 1)), environment=shown.environment,
                      verifier=shown.verifier, example=shown.prompt, reference=shown.reference, licence=f.licence, source=f.source)
