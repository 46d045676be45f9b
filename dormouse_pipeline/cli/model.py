"""`dormouse model`: what a preset's policy costs, and what a stage would take of a device, before anything is allocated."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dormouse_pipeline.cli.options import AsJson, Preset, Sets, emit, grid, out, resolved, resumable

if TYPE_CHECKING:
    from dormouse_core.config.run import RunConfig
    from dormouse_core.learning.memory import Plan


class StageName(StrEnum):
    TRAIN = "train"
    SFT = "sft"
    RL = "rl"
    ROLL = "roll"


class DeviceName(StrEnum):
    GPU = "gpu"
    CPU = "cpu"


@resumable("Nothing was changed.")
def model(preset: Preset = "nano", sets: Sets = [],  # noqa: B006 - Typer reads the default
          stage: Annotated[StageName | None, typer.Option("--stage", help="Also the memory of this stage.", show_default=False)] = None,
          device_gib: Annotated[float | None, typer.Option("--device-gib", help="Memory of the device; a stage that does not fit is "
                                                           "refused, with what would.", min=0.01, show_default=False)] = None,
          device: Annotated[DeviceName, typer.Option("--device", help="What else is in its memory: a GPU's context (a guess), or this "
                                                     "process (measured).")] = DeviceName.GPU,
          micro_batch: Annotated[int | None, typer.Option("--micro-batch", help="Bytes of text in a micro-batch. [default: the most "
                                                          "the configuration can put into one]", min=1, show_default=False)] = None,
          json: AsJson = False) -> None:
    """Print the policy of a preset: parameters in all, parameters a byte uses, multiply-adds a byte, bytes of state; with --stage,
    the memory plan of a stage."""
    from dormouse_core.policy.counts import parameter_counts

    config = resolved(preset, sets)
    counts = parameter_counts(config.policy)._asdict()
    value: dict[str, Any] = {"preset": preset, "counts": counts, "policy": config.policy.model_dump(mode="json")}
    plan = None
    if stage is not None or device_gib is not None:
        plan = _plan(config, stage or StageName.RL, device_gib, device, micro_batch)
        value["memory"] = {"stage": plan.stage, "peak": plan.peak, "micro_batch": plan.micro_bytes,
                           "items": [{"name": i.name, "bytes": i.bytes, "when": i.when} for i in plan.items]}
    emit(value, json, lambda: _show(preset, value, plan, device_gib))


def _plan(config: "RunConfig", stage: StageName, device_gib: float | None, device: DeviceName, micro: int | None) -> "Plan":
    from dormouse_core.learning.memory import GIB, Stage, plan, process_bytes, refuse_unfit

    process = None if device is DeviceName.GPU else process_bytes()
    if device_gib is None:
        return plan(config, Stage(stage), process, micro)
    return refuse_unfit(config, Stage(stage), int(device_gib * GIB), process, micro)


def _show(preset: str, value: dict[str, Any], plan: "Plan | None", device_gib: float | None) -> None:
    counts = value["counts"]
    rows = [["parameters", f"{counts['total']:,}"], ["active a byte: union over iterations, at most", f"{counts['active']:,}"],
            ["active in one iteration", f"{counts['active_one_iteration']:,}"],
            ["multiply-adds a byte", f"{counts['madds_per_byte']:,}"], ["state of one sequence, bytes", f"{counts['state_bytes']:,}"]]
    rows += [[name, str(number)] for name, number in value["policy"].items()]
    out.print(grid(f"policy of preset {preset}", ["", "value"], rows))
    if plan is not None:
        gib = 1 << 30
        shown = [[i.name, f"{i.bytes / gib:.3f}", i.when] for i in plan.items]
        shown.append(["peak: held + the larger of the other two", f"{plan.peak / gib:.3f}", ""])
        out.print()
        out.print(grid(f"memory of {plan.stage}, GiB" + (f"; fits {device_gib:g}" if device_gib else ""), ["", "GiB", "when"], shown))
