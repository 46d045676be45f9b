"""`dormouse bench`: what this machine does best."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dormouse_pipeline.cli import bench_verifier
from dormouse_pipeline.cli.options import AsJson, Preset, Sets, emit, grid, out, resolved, resumable

if TYPE_CHECKING:
    from dormouse_core.learning.throughput import Rate

group = typer.Typer(no_args_is_help=True, help="Measure this machine, and whether its verifier can be trusted.")
group.command("verifier")(bench_verifier.verifier)
group.command("screen")(bench_verifier.screen)
group.command("honeypots")(bench_verifier.honeypots)


@group.command("threads")
@resumable("Nothing was changed.")
def threads(preset: Preset = "nano", sets: Sets = [],  # noqa: B006 - Typer reads the default
            repeats: Annotated[int, typer.Option("--repeats", help="Measurements of each; the best counts.", min=1)] = 5,
            json: AsJson = False) -> None:
    """Measure sampling and training under every sensible number of worker processes and torch threads, and suggest the best.

    Threads are part of a run's identity: they are fixed in the preset, and another number may give other bits. Workers change
    speed, never a byte.
    """
    from dormouse_core.learning.throughput import candidates, measure
    from dormouse_core.policy.model import build_policy

    config = resolved(preset, sets)
    cores, busy = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    policy = build_policy(config.policy, config.runtime.seed)
    say = Console(stderr=True, highlight=False, soft_wrap=True)
    rates: list[Rate] = []
    for workers, each in candidates(cores):
        rates.append(measure(policy, config, workers, each, repeats))
        if not json:
            say.print(f"measured    {workers} worker(s) of {each} thread(s)", markup=False)
    best = max(rates, key=lambda rate: rate.joint)
    now = next((r for r in rates if (r.workers, r.threads) == (config.roll.workers, config.runtime.threads)), None)
    value: dict[str, Any] = {
        "preset": preset, "cores": cores, "load": round(busy, 2), "rows": [r._asdict() | {"joint": r.joint} for r in rates],
        "best": {"workers": best.workers, "threads": best.threads}, "preset_has": {"workers": config.roll.workers, "threads":
                                                                                   config.runtime.threads},
        "gain": best.joint / now.joint if now else None,
        "settings": [f"roll.workers={best.workers}", f"runtime.threads={best.threads}"]}
    emit(value, json, lambda: _show(value, rates, best, config.roll.lanes))


def _show(value: dict[str, Any], rates: "list[Rate]", best: "Rate", lanes: int) -> None:
    rows = [[r.workers, r.threads, f"{r.sampled / 1e3:.1f}", f"{r.trained / 1e3:.1f}", f"{r.joint / best.joint:.2f}x"] for r in rates]
    out.print(grid(f"kB a second (wall) of preset {value['preset']}, {lanes} lanes, {value['cores']} cores", [
        "workers", "threads", "sampled", "trained", "of the best"], rows))
    if value["load"] > 0.5:
        out.print(f"! the machine was busy (load {value['load']} at the start): measure again when it is idle", markup=False)
    gain = f", {value['gain']:.2f} times what the preset has" if value["gain"] else ""
    out.print(f"best        {best.workers} worker(s) of {best.threads} thread(s){gain}", markup=False)
    out.print("use it      " + " ".join(f"--set {s}" for s in value["settings"]), markup=False)
