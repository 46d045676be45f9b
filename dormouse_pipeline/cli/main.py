"""`dormouse`: the command line. Each command calls a stage function or the driver; none holds an algorithm of its own."""

import sys

import typer

from dormouse_core.ledger import DormouseError
from dormouse_pipeline.cli import bench, decode, export, lineage, loop, model, post_train, serve, short_form, smoke, tasks, train, ui

cli = typer.Typer(
    name="dormouse", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="rich",
    help="Post-train a small byte-level language model on tasks that a program can check. Start with [bold]dormouse loop[/bold].")
cli.command("loop")(loop.loop)
cli.command("ui")(ui.ui)
cli.command("lineage")(lineage.lineage)
cli.command("train")(train.train)
post_train.group.callback(invoke_without_command=True)(short_form.short_form)
cli.add_typer(post_train.group, name="post-train")
cli.command("smoke")(smoke.smoke)
cli.add_typer(tasks.group, name="tasks")
cli.command("export")(export.export)
cli.command("decode")(decode.decode)
cli.command("serve")(serve.serve)
cli.command("model")(model.model)
cli.add_typer(bench.group, name="bench")


def app() -> None:
    """Entry point. A DormouseError is one paragraph and exit code 1, wrong usage is 2, Ctrl-C is 130; none shows a trace."""
    try:
        cli()
    except DormouseError as error:
        sys.stderr.write(f"dormouse: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("dormouse: stopped.\n")
        sys.exit(130)


if __name__ == "__main__":
    app()
