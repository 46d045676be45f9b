"""`dormouse decode`: one prompt through an inference file, by the distribution that samples rollouts."""

from pathlib import Path
from typing import Annotated

import typer

from dormouse_pipeline.cli.options import AsJson, emit, out, resumable
from dormouse_pipeline.cli.serve import Model


@resumable("Nothing was changed.")
def decode(model: Model,
           prompt: Annotated[str | None, typer.Option("--prompt", help="What the policy is shown.", show_default=False)] = None,
           prompt_file: Annotated[Path | None, typer.Option("--prompt-file", help="The same, as the bytes of a file.",
                                                            show_default=False)] = None,
           temp: Annotated[float, typer.Option("--temp", help="Sampling temperature; 0 is greedy.", min=0.0)] = 0.0,
           max_bytes: Annotated[int, typer.Option("--max-bytes", help="New bytes it may write, END included.", min=1)] = 64,
           n: Annotated[int, typer.Option("--n", help="Answers.", min=1)] = 1,
           seed: Annotated[int, typer.Option("--seed", help="Root of the draws.", min=0)] = 1,
           stop: Annotated[list[str], typer.Option("--stop", help="End before this text. Repeatable.", show_default=False)] = [],  # noqa: B006
           json: AsJson = False) -> None:
    """Let a policy answer one prompt: a single turn, ended by the policy, a stop text or the byte limit. `serve` gives the same
    answers to the same seed."""
    import torch

    from dormouse_core.kernels.seen import report
    from dormouse_core.ledger import Ledger
    from dormouse_core.policy.export import open_inference
    from dormouse_core.rollouts.streams import Stream, answer_seeds, complete

    if (prompt is None) == (prompt_file is None):
        raise typer.BadParameter("give --prompt or --prompt-file", param_hint="--prompt")
    shown = prompt_file.read_bytes() if prompt_file is not None else (prompt or "").encode()
    ledger = Ledger(on_line=lambda line: typer.echo(f"! {line}", err=True))
    ready = open_inference(model, ledger)
    torch.set_num_threads(ready.threads)
    stops = tuple(s.encode() for s in stop if s)
    played = complete(ready.policy, [Stream(shown, max_bytes, temp, one, stops) for one in answer_seeds(seed, n)])
    report(ledger)
    answers = [{"answer": s.content.decode("utf-8", "backslashreplace"), "bytes": len(s.raw), "stop": s.finish, "log_prob": s.log_prob}
               for s in played]
    value = {"prompt": shown.decode("utf-8", "backslashreplace"), "model": ready.artifact.identity, "temperature": temp,
             "answers": answers}
    emit(value, json, lambda: out.print("\n".join(str(a["answer"]) for a in answers), markup=False))
