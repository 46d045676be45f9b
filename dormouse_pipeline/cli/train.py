"""`dormouse train`: pretrain a base on text."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dormouse_pipeline.cli.options import AsJson, Out, Preset, Seed, Sets, StorePath, chosen_store, emit, grid, out, resolved, resumable
from dormouse_pipeline.cli.stages import call

if TYPE_CHECKING:
    from dormouse_core.artifacts.checkpoint import Checkpoint

WAY_ON = "The same command goes on from the last resume file in the store."


@resumable(WAY_ON)
def train(preset: Preset = "nano", sets: Sets = [],  # noqa: B006 - Typer reads the default
          data: Annotated[str | None, typer.Option("--data", help="`stdlib` (this Python's own sources) or a folder of text.",
                                                   show_default=False)] = None,
          steps: Annotated[int | None, typer.Option("--steps", help="Optimizer steps.", min=0, show_default=False)] = None,
          seed: Seed = None, dest: Out = None, store: StorePath = None, json: AsJson = False) -> None:
    """Pretrain a policy on text; print bits per byte beside what counting scores on the same bytes."""
    from dormouse_core.learning import pretrain

    config = resolved(preset, sets, seed, {"train.data": data, "train.steps": steps})
    held = chosen_store(store)
    done = call(held, "train", pretrain.run, config, out=dest, quiet=json)
    checkpoint = held.read_checkpoint(done.artifact)
    value = done.as_json() | {"bits_per_byte": checkpoint.state["bits_per_byte"]}
    emit(value, json, lambda: _show(checkpoint, done.lines()))


def _show(checkpoint: "Checkpoint", lines: list[str]) -> None:
    bits: dict[str, Any] = checkpoint.state["bits_per_byte"]
    out.print(grid("bits per byte", ["on", "bits"], [[name.replace("_", " "), float(value)] for name, value in bits.items()]))
    for line in lines:
        out.print(line, markup=False)
