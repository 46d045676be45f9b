"""`dormouse serve`: one inference file behind a small HTTP endpoint."""

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dormouse_pipeline.cli.options import resumable

Model = Annotated[Path, typer.Argument(help="Inference file (dormouse export).", show_default=False)]


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@resumable("Requests that were running are cut off; `dormouse serve` starts it again.")
def serve(model: Model,
          host: Annotated[str, typer.Option("--host", help="Address to listen on. Anything but loopback is open to the network.")]
          = "127.0.0.1",
          port: Annotated[int, typer.Option("--port", help="0 takes a free one.", min=0, max=65535)] = 8000,
          name: Annotated[str | None, typer.Option("--name", help="What the model is called. [default: the file's name]",
                                                   show_default=False)] = None,
          rows: Annotated[int, typer.Option("--rows", help="Completions decoded together.", min=1, max=1024)] = 16,
          max_tokens: Annotated[int, typer.Option("--max-tokens", help="Most bytes one completion may ask for.", min=1)] = 4096,
          threads: Annotated[int | None, typer.Option("--threads", help="Torch threads. [default: as the preset says]", min=1,
                                                      show_default=False)] = None) -> None:
    """Serve completions over HTTP until Ctrl-C: POST /v1/completions (OpenAI style, streams with `"stream": true`; tokens are bytes),
    GET /v1/models, GET /healthz. Loopback by default; no authentication."""
    import torch

    from dormouse_core.kernels.seen import SEEN
    from dormouse_core.ledger import Ledger
    from dormouse_core.policy.export import open_inference
    from dormouse_pipeline.serve.server import LOOPBACK, Server

    say = Console(stderr=True, highlight=False, soft_wrap=True)
    SEEN.on_line = lambda line: say.print(f"! {line}", markup=False)
    ready = open_inference(model, Ledger(on_line=SEEN.on_line))
    torch.set_num_threads(threads or ready.threads)
    server = Server(ready.policy, name or model.stem, ready.artifact.identity, host, port, rows, max_tokens)
    if host not in LOOPBACK:
        say.print(f"! listening on {host}: anyone who reaches this address can use it; there is no authentication", markup=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    say.print(f"dormouse serve: {server.url}/v1/completions  (model {server.name}, {ready.artifact.identity[:16]}; Ctrl-C stops it)",
              markup=False)
    try:
        server.serve_forever(poll_interval=0.1)
    finally:
        server.close()
