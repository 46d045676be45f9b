"""Options that several commands share, what they all do on the way in (paths, configuration) and on the way out (JSON, tables)."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError

if TYPE_CHECKING:
    from dormouse_core.artifacts.provenance import Artifact
    from dormouse_core.artifacts.store import Store

P = ParamSpec("P")
T = TypeVar("T")

Preset = Annotated[str, typer.Option("--preset", help="Packaged preset (tiny, nano, small, b1) or a TOML file.")]
Sets = Annotated[list[str], typer.Option("--set", help="Change a setting of the preset, e.g. rl.rounds=10. Repeatable.",
                                         show_default=False)]
Seed = Annotated[int | None, typer.Option("--seed", help="Root of every draw (runtime.seed).", show_default=False)]
StorePath = Annotated[Path | None, typer.Option("--store", help="Artifact store; its own event log goes with it. [default: store]",
                                                show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON value on standard output, and nothing else there.")]
Out = Annotated[Path | None, typer.Option("--out", help="Also copy the result here; what stood there is kept as .prev.",
                                          show_default=False)]

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d*[x%]?|-")
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 180)


def chosen_store(path: Path | None) -> "Store":
    """The store of a command: --store, or `store` in the current folder. Raises DormouseError where a file stands in its place."""
    from dormouse_core.artifacts.store import Store
    from dormouse_pipeline.instance import Project

    if path is not None and path.exists() and not path.is_dir():
        raise DormouseError(f"--store {path} is a file; name a folder, which is made where there is none")
    return Store(Project.at(path).store)


def with_seed(sets: Sequence[str], seed: int | None) -> list[str]:
    return [*sets, *([f"runtime.seed={seed}"] if seed is not None else [])]


def resolved(preset: str, sets: Sequence[str], seed: int | None = None, flags: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a command: preset, --set, then its typed flags (dotted key -> value, None where not given)."""
    from dormouse_core.config.resolve import resolve

    return resolve(preset, with_seed(sets, seed), flags or {})


def follow(base: "Artifact", store: "Store", preset: str | None, sets: Sequence[str], seed: int | None,
           flags: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a stage that goes on from `base`: the base's own unless --preset names another, with the changes on
    top. The policy section is always the base's: it is the shape of the weights."""
    from dormouse_core.config.resolve import resolve_from

    own = store.read_checkpoint(base).config
    start = own if preset is None else resolved(preset, []).model_copy(update={"policy": own.policy})
    return resolve_from(start, with_seed(sets, seed), flags or {})


def opened(store: "Store", path: Path, *kinds: str) -> "Artifact":
    """A file named on the command line, verified, inside the store from now on (stages name their parents by identity).

    Raises DormouseError when it is missing, damaged, or of another kind."""
    artifact = store.open(path)
    if kinds and artifact.kind.value not in kinds:
        raise DormouseError(f"{path} is of kind {artifact.kind}; this option takes {' or '.join(kinds)}.")
    return store.adopt(path)


def emit(value: Any, as_json: bool, show: Callable[[], None]) -> None:
    """The result of a command: JSON for a program, `show()` for a person."""
    if as_json:
        sys.stdout.write(json.dumps(value, indent=1, sort_keys=True, default=str) + "\n")
    else:
        show()


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A plain table: text left, numbers right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        numeric = bool(rows) and all(_NUMBER.fullmatch(_cell(row[index])) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def fail(message: str, code: int = 1) -> NoReturn:
    """One paragraph on standard error, and the exit code."""
    sys.stdout.flush()
    sys.stderr.write(f"dormouse: {message}\n")
    sys.stderr.flush()
    raise typer.Exit(code)


def resumable(way: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """On Ctrl-C a command ends with 130 and says how to go on; on a DormouseError, or a file or disk the system refuses, with 1 and
    its paragraph, never a trace."""

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except KeyboardInterrupt:
                fail(f"stopped. {way}", 130)
            except DormouseError as error:
                defect = getattr(error, "defect", "")
                if defect:
                    sys.stderr.write(f"{defect}\n")
                fail(str(error))
            except BrokenPipeError:
                raise
            except OSError as error:
                fail(f"the system refused a file: {error}. Check the path, its rights and the room on the disk. {way}")

        return run

    return wrap
