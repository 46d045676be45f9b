"""`dormouse export`: a checkpoint's weights as the file that decodes and serves."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dormouse_pipeline.cli.options import AsJson, StorePath, chosen_store, emit, out, resumable


class Precision(StrEnum):
    BF16 = "bf16"
    FP32 = "fp32"


@resumable("Nothing was changed.")
def export(checkpoint: Annotated[Path, typer.Argument(help="Checkpoint file (.bin).", show_default=False)],
           dest: Annotated[Path, typer.Option("--out", help="Inference file to write (.safetensors); what stood there is kept as .prev.",
                                              show_default=False)],
           dtype: Annotated[Precision, typer.Option("--dtype", help="Type of the weights.")] = Precision.BF16,
           store: StorePath = None, json: AsJson = False) -> None:
    """Write a checkpoint's weights as an inference file: no optimizer, provenance inside. `decode` and `serve` take it."""
    from dormouse_core.policy.export import export as write

    held = chosen_store(store)
    done = write(held.open(checkpoint), dest, "bfloat16" if dtype is Precision.BF16 else "float32", held)
    value = {"out": str(dest), "identity": done.artifact.identity, "checkpoint": done.artifact.provenance.parents[0].identity,
             "dtype": dtype.value, "bytes": done.size, "parameters": done.parameters, "largest": done.largest,
             "smallest": done.smallest, "largest_relative_change": done.changed}
    emit(value, json, lambda: out.print(
        f"wrote       {dest}  ({done.size:,} bytes, {done.parameters:,} parameters as {dtype.value})\n"
        f"weights     magnitudes {done.smallest:.2g} to {done.largest:.3g}; largest relative change by rounding {done.changed:.2g}\n"
        f"next        dormouse decode {dest} --prompt '...'    or    dormouse serve {dest}", markup=False))
