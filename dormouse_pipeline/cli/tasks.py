"""`dormouse tasks list|show|check`: the task families, one of their tasks, and whether references pass and wrong answers fail."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dormouse_core.ledger import DormouseError
from dormouse_pipeline.cli.options import AsJson, emit, grid, out, resumable
from dormouse_pipeline.cli.progress import Reporter

if TYPE_CHECKING:
    from dormouse_core.admission.own import FolderReport
    from dormouse_core.ledger import Ledger
    from dormouse_core.tasks.task import Task

group = typer.Typer(name="tasks", no_args_is_help=True, help="Look at the tasks: families, single tasks, and their self-check.")
TasksDir = Annotated[Path | None, typer.Option("--tasks-dir", envvar="DORMOUSE_TASKS_DIR", help="Folder of public task files.",
                                               show_default=False)]


def shown(raw: bytes) -> str:
    """Bytes as a person reads them: printable text as it is, the rest escaped."""
    return raw.decode("utf-8", "backslashreplace").replace("\n", "\\n").replace("\r", "\\r")


@group.command("list")
@resumable("Nothing was changed.")
def list_families(pool: Annotated[str | None, typer.Option("--pool", help="agent, math or code.", show_default=False)] = None,
                  json: AsJson = False) -> None:
    """Print every family: pool, environment, verifier, and its easiest task."""
    from dormouse_core.tasks.registry import cards
    from dormouse_core.tasks.task import Pool

    if pool is not None and pool not in set(Pool):
        raise DormouseError(f"no pool {pool!r}; pools are {', '.join(Pool)}")
    found = cards(Pool(pool) if pool else None)
    rows = [[c.pool, c.name, f"{c.difficulties[0]}-{c.difficulties[-1]}", c.environment, c.verifier, shown(c.example),
             " ".join(shown(a) for a in c.reference)] for c in found]
    emit([c.model_dump(mode="json") for c in found], json, lambda: out.print(
        grid("task families", ["pool", "family", "difficulty", "environment", "verifier", "example", "a solution"], rows), markup=False))


@group.command("show")
@resumable("Nothing was changed.")
def show(name: Annotated[str, typer.Argument(help="A family.", show_default=False)],
         difficulty: Annotated[int, typer.Option("--difficulty", "-d", help="The family's knob.", min=0)] = 0,
         n: Annotated[int, typer.Option("--n", help="How many.", min=1)] = 1,
         split: Annotated[str, typer.Option("--split", help="train or frozen.")] = "train",
         seed: Annotated[int, typer.Option("--seed", help="Root of the train split's draws.")] = 1, json: AsJson = False) -> None:
    """Print tasks of a family whole: what the policy sees, what its verifier knows, and a solution."""
    from dormouse_core.tasks.registry import draw
    from dormouse_core.tasks.task import Split

    if split not in (Split.TRAIN, Split.FROZEN):
        raise DormouseError(f"split {split!r} cannot be shown from here; train and frozen can (fresh seeds derive from a checkpoint)")
    found = [draw(name, difficulty, Split(split), index, str(seed)) for index in range(n)]
    emit([t.model_dump(mode="json") | {"id": t.id, "cell": t.cell} for t in found], json, lambda: _show(found))


def _show(found: "Sequence[Task]") -> None:
    for task in found:
        rows = [["id", task.id], ["cell", task.cell], ["prompt", shown(task.prompt)],
                ["solution", " | ".join(shown(a) for a in task.reference)],
                ["verifier", f"{task.verifier} {task.trusted}"], ["environment", f"{task.environment} {task.start or ''}"],
                ["limits", f"{task.byte_budget} bytes, {task.max_steps} steps"], ["guess bound", f"{task.guess_bound:.3f}"],
                ["use", f"{task.use} ({task.split}, {task.licence}, {task.source})"]]
        out.print(grid("", ["", ""], rows), markup=False)


@group.command("check")
@resumable("Nothing was changed.")
def check(names: Annotated[list[str] | None, typer.Argument(
              help="Families (all when nothing is named), or one folder of task files.", show_default=False)] = None,
          per_cell: Annotated[int, typer.Option("--per-cell", help="Tasks a cell.", min=1)] = 3,
          seed: Annotated[int, typer.Option("--seed", help="Root of the draws.")] = 1, tasks_dir: TasksDir = None,
          limit: Annotated[int, typer.Option("--limit", help="With a folder: at most so many tasks of each file; 0 is all.", min=0)] = 0,
          json: AsJson = False) -> None:
    """Of families: judge every reference (must pass) and one wrong answer a task (must not). Of a folder: put every task of its files
    through the admission gate and print the first rule that refuses each. Exit code 1 when anything does not hold.

    Without names also every task file of --tasks-dir: a broken line is named and counted, a reference that fails is refused.
    """
    if names and len(names) == 1 and Path(names[0]).is_dir():
        _check_folder(Path(names[0]), limit, json)
        return
    if missing := next((name for name in names or [] if "/" in name or Path(name).exists()), None):
        raise DormouseError(f"{missing} is no folder: name one folder of task files, or families (dormouse tasks list names them)"
                            if not Path(missing).is_dir() else f"one folder at a time: {missing} stands beside other names")
    if not names and tasks_dir is not None and not tasks_dir.is_dir():
        raise DormouseError(f"the tasks directory {tasks_dir} is not a folder; name the folder of public task files with --tasks-dir or "
                            "DORMOUSE_TASKS_DIR, or leave it out to check the generated families alone")
    with Reporter(quiet=json) as reporter:
        ledger = reporter.ledger()
        rows = _check_families(names or [], per_cell, seed, ledger)
        if not names and tasks_dir is not None:
            rows += _check_files(tasks_dir, ledger)
    bad = [row for row in rows if not row["holds"]]
    emit({"rows": rows, "counters": ledger.counters(), "holds": not bad}, json, lambda: out.print(grid(
        "tasks", ["source", "tasks", "references that pass", "wrong answers that fail", "skipped", "holds"],
        [[r["source"], r["tasks"], f"{r['passed']}/{r['references']}", f"{r['rejected']}/{r['wrong']}", r["skipped"],
          "yes" if r["holds"] else "NO"] for r in rows]), markup=False))
    if bad:
        raise typer.Exit(1)


def _check_folder(folder: Path, limit: int, json: bool) -> None:
    from dormouse_core.admission.own import admit_folder

    with Reporter(quiet=json) as reporter:
        found = admit_folder(folder, limit, reporter.ledger())
    emit(found.model_dump(mode="json") | {"holds": found.holds}, json, lambda: _show_gate(found))
    if not found.holds:
        raise typer.Exit(1)


def _show_gate(found: "FolderReport") -> None:
    from dormouse_core.admission.gate import Rule

    failing = [rule for rule in Rule if any(rule in row.refused for row in found.rows)]
    out.print(grid("the admission gate", ["source", "tasks", "admitted", *(f"{rule}" for rule in failing), "broken lines", "unchecked"], [
        [row.source, row.tasks, row.admitted, *(row.refused.get(rule, 0) for rule in failing), row.broken,
         ", ".join(f"{rule} {n}" for rule, n in row.unchecked.items()) or "-"] for row in found.rows]), markup=False)
    if found.refused:
        out.print(grid("\nrefused (the first of each family and rule; --json lists all)", ["task", "source", "rule", "why"], [
            [r.task_id[:12], r.source, str(r.refused_by), r.reason] for r in found.examples()]), markup=False)


def _check_families(names: Sequence[str], per_cell: int, seed: int, ledger: "Ledger") -> list[dict[str, Any]]:
    from dormouse_core.seeding import generator
    from dormouse_core.tasks.family import MAX_DIFFICULTY
    from dormouse_core.tasks.registry import draw_distinct, families, family
    from dormouse_core.tasks.task import Split

    chosen = [family(name) for name in names] or list(families().values())
    rows = []
    for done, each in enumerate(chosen):
        tasks = [t for level in range(MAX_DIFFICULTY + 1) for t in draw_distinct(each.name, level, Split.TRAIN, per_cell, str(seed))]
        wrong = [each.wrong(task, generator("tasks check", seed, task.id)) for task in tasks]
        rows.append(_judged(each.name, tasks, wrong, 0, ledger))
        ledger.progress("tasks check", done + 1, len(chosen), "families")
    return rows


def _check_files(folder: Path, ledger: "Ledger") -> list[dict[str, Any]]:
    from dormouse_core.ledger import Ledger
    from dormouse_core.tasks.public import available, load_public

    rows = []
    for name, there in available(folder).items():
        if there:
            own = Ledger(on_line=ledger.loud)
            tasks = load_public(name, folder, own)
            rows.append(_judged(name, tasks, [], own.counters().get("tasks_broken_lines", 0), ledger))
        else:
            ledger.loud(f"tasks: {folder} does not hold {name}; its check did not run")
            ledger.ask("public sets", ran=False)
        ledger.progress("tasks check", len(rows), len(available(folder)), "public sets")
    return rows


def _judged(source: str, tasks: "Sequence[Task]", wrong: Sequence[bytes], skipped: int, ledger: "Ledger") -> dict[str, Any]:
    from dormouse_core.admission.reference import admit
    from dormouse_core.config.stages import VerifyConfig
    from dormouse_core.envs.environment import StopReason
    from dormouse_core.verifiers.attempt import Attempt
    from dormouse_core.verifiers.judge import judge
    from dormouse_core.verifiers.verdict import VerdictClass

    known = [t for t in tasks if t.reference]
    _, refused = admit(tasks, VerifyConfig(), ledger)
    attempts = [Attempt(f"wrong:{t.id}", t, (answer,), StopReason.SUBMITTED) for t, answer in zip(tasks, wrong, strict=False)]
    rejected = sum(v.verdict is not VerdictClass.PASS for v in judge(attempts, VerifyConfig(), ledger))
    return {"source": source, "tasks": len(tasks), "references": len(known), "passed": len(known) - len(refused), "wrong": len(attempts),
            "rejected": rejected, "skipped": skipped, "refused": [r.model_dump(mode="json") for r in refused],
            "holds": not refused and rejected == len(attempts)}
