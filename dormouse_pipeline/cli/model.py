"""`dormouse model`: what a preset's policy costs, counted from the instantiated module on the meta device."""

from typing import Any

from dormouse_pipeline.cli.options import AsJson, Preset, Sets, emit, grid, out, resolved, resumable


@resumable("Nothing was changed.")
def model(preset: Preset = "nano", sets: Sets = [], json: AsJson = False) -> None:  # noqa: B006 - Typer reads the default
    """Print the policy of a preset: parameters in all, parameters a byte uses, multiply-adds a byte, bytes of state."""
    from dormouse_core.policy.counts import parameter_counts

    config = resolved(preset, sets).policy
    counts = parameter_counts(config)._asdict()
    value: dict[str, Any] = {"preset": preset, "counts": counts, "policy": config.model_dump(mode="json")}
    rows = [["parameters", f"{counts['total']:,}"], ["active a byte, at most", f"{counts['active']:,}"],
            ["active in one iteration", f"{counts['active_one_iteration']:,}"],
            ["multiply-adds a byte", f"{counts['madds_per_byte']:,}"], ["state of one sequence, bytes", f"{counts['state_bytes']:,}"]]
    rows += [[name, str(number)] for name, number in value["policy"].items()]
    emit(value, json, lambda: out.print(grid(f"policy of preset {preset}", ["", "value"], rows)))
