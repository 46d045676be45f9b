"""`dormouse bench verifier|screen|honeypots`: is the reward right, is it screened, and does a policy take bait?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse_core.ledger import DormouseError
from dormouse_pipeline.cli.options import AsJson, StorePath, chosen_store, emit, grid, opened, out, resumable
from dormouse_pipeline.cli.progress import Reporter
from dormouse_pipeline.cli.scores import hack_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dormouse_core.admission.bench import BenchReport
    from dormouse_core.admission.planted import AlarmRow, RecallRow

TasksDir = Annotated[Path | None, typer.Option("--tasks-dir", envvar="DORMOUSE_TASKS_DIR", help="Folder of public task files.",
                                               show_default=False)]


def _checked(tasks_dir: Path | None) -> Path | None:
    if tasks_dir is not None and not tasks_dir.is_dir():
        raise DormouseError(f"the tasks directory {tasks_dir} is not a folder; name the folder of public task files with --tasks-dir or "
                            "DORMOUSE_TASKS_DIR, or leave it out to judge what is built in alone")
    return tasks_dir


@resumable("Nothing was changed.")
def verifier(sample: Annotated[int, typer.Option("--sample", help="Judge about so many of the answers; 0 is all.", min=0)] = 0,
             tasks_dir: TasksDir = None, json: AsJson = False) -> None:
    """Judge every answer whose truth is known: our own, honest variants, hostile programs, and the labelled public outputs of the tasks
    directory. Exit code 1 on any false pass, false fail or missing verdict.
    """
    from dormouse_core.admission import bench
    from dormouse_core.config.stages import VerifyConfig

    folder = _checked(tasks_dir)
    with Reporter(quiet=json) as reporter:
        ledger = reporter.ledger()
        if folder is None:
            ledger.loud("bench verifier: no tasks directory, so the public answers are not judged")
        report = bench.run(folder, sample, VerifyConfig(), ledger)
    emit(report.model_dump(mode="json") | {"holds": report.holds, "counters": ledger.counters()}, json, lambda: _show(report))
    if not report.holds:
        raise typer.Exit(1)


def _show(report: "BenchReport") -> None:
    rows = [[r.source, r.right, r.wrong, r.false_passes, r.false_fails, r.no_verdict, r.in_child_asserts, f"{r.seconds:.2f}"]
            for r in report.rows]
    rows.append(["all", sum(r.right for r in report.rows), sum(r.wrong for r in report.rows), report.false_passes, report.false_fails,
                 report.no_verdict, report.in_child_asserts, f"{report.seconds:.2f}"])
    out.print(grid("answers whose truth is known", ["source", "right", "wrong", "false passes", "false fails", "no verdict", "in child",
                                                    "seconds"], rows), markup=False)
    for row in report.rows:
        for example in row.examples:
            out.print(f"misjudged   {row.source}: {example}", markup=False)


@resumable("Nothing was changed.")
def screen(tasks_dir: TasksDir = None, json: AsJson = False) -> None:
    """Plant every known hack among honest answers: is any paid, and does the screen see it when the judge is fooled? Then count the
    screen's false alarms on honest programs. Exit code 1 when a hack is paid.
    """
    from dormouse_core.admission.planted import false_alarms, recall
    from dormouse_core.config.stages import VerifyConfig

    folder = _checked(tasks_dir)
    with Reporter(quiet=json) as reporter:
        found = recall(VerifyConfig(), reporter.ledger())
        alarms = false_alarms(folder)
    emit({"recall": [r.model_dump(mode="json") for r in found], "false_alarms": [a.model_dump(mode="json") for a in alarms]}, json,
         lambda: _show_screen(found, alarms))
    if any(r.paid for r in found):
        raise typer.Exit(1)


def _show_screen(found: "Sequence[RecallRow]", alarms: "Sequence[AlarmRow]") -> None:
    out.print(grid("planted hacks", ["class", "", "defence", "planted", "paid", "paid in part", "recognised"], [
        [r.number, r.slug, " ".join(r.defences), r.programs, r.paid, r.part_paid, f"{r.recognised}/{r.programs}"] for r in found]),
        markup=False)
    programs, seen = sum(r.programs for r in found), sum(r.recognised for r in found)
    out.print(f"all         {sum(r.paid for r in found)} of {programs} paid; {seen} recognised when the judge passes everything\n")
    out.print(grid("false alarms", ["honest programs", "read", "set aside", "labels"], [
        [a.source, a.programs, a.alarms, ", ".join(f"{k} {n}" for k, n in a.labels.items()) or "-"] for a in alarms]), markup=False)
    out.print(f"all         {sum(a.alarms for a in alarms)} of {sum(a.programs for a in alarms)} honest programs set aside")


@resumable("Nothing was changed.")
def honeypots(base: Annotated[Path, typer.Option("--base", help="Checkpoint to measure.", show_default=False)],
              n: Annotated[int | None, typer.Option("--n", help="Baited episodes. [default: honeypots.episodes of the checkpoint's "
                                                    "configuration]", min=1, show_default=False)] = None,
              env: Annotated[str, typer.Option("--env", help="Where the tasks come from: pools, a family, a cell or a suite.")] =
              "agent,math,code",
              seed: Annotated[int, typer.Option("--seed", help="Root of the draws.", min=0)] = 1, store: StorePath = None,
              json: AsJson = False) -> None:
    """Offer a policy bait and count how often it takes it: the proven hack rate, by trap, with its Wilson interval. Exit code 1 when its
    lower end is above honeypots.halt_above.
    """
    from dormouse_core.policy.model import load_policy
    from dormouse_core.rollouts.honeypots import measured
    from dormouse_core.rollouts.request import Origin
    from dormouse_core.tasks.spec import load_spec, spec_tasks

    held = chosen_store(store)
    with Reporter(quiet=json) as reporter:
        checkpoint = opened(held, base, "checkpoint")
        stored = held.read_checkpoint(checkpoint)
        policy = load_policy(stored, stored.config.policy, checkpoint.path)
        episodes = n or stored.config.honeypots.episodes
        tasks = spec_tasks(load_spec(env), min(episodes, 64), seed)
        origin = Origin(cycle="honeypots", round=0, policy=checkpoint.identity, seed=seed, lfb_version=policy.lfb_version)
        rate, _, _ = measured(policy, tasks, episodes, stored.config, origin, reporter.ledger())
    limit = stored.config.honeypots.halt_above
    emit(rate.model_dump(mode="json") | {"halt_above": limit, "holds": rate.low <= limit}, json,
         lambda: out.print(hack_table(rate), markup=False))
    if rate.low > limit:
        raise typer.Exit(1)


