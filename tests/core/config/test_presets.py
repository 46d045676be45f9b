"""Preset sizes, counted from the module a preset builds."""

import tomllib
from importlib.resources import files

import pytest

from dormouse_core.config.resolve import packaged_presets, resolve
from dormouse_core.config.suite import packaged_suites
from dormouse_core.policy.counts import parameter_counts


@pytest.mark.parametrize(("preset", "least", "most"), [("tiny", 10_000, 50_000), ("nano", 200_000, 500_000)])
def test_the_small_presets_stay_in_their_bounds(preset: str, least: int, most: int) -> None:
    assert least <= parameter_counts(resolve(preset).policy).total <= most


@pytest.mark.parametrize("preset", packaged_presets())
def test_memory_tables_are_at_most_half_of_the_parameters(preset: str) -> None:
    policy = resolve(preset).policy
    assert 3 * policy.engram_rows * policy.engram_dim <= parameter_counts(policy).total / 2


@pytest.mark.parametrize(("preset", "total", "active"), [("small", 9_437_088, 4_914_432), ("b1", 1_065_407_140, 57_073_412)])
def test_the_large_presets_have_the_sizes_they_are_named_for(preset: str, total: int, active: int) -> None:
    counts = parameter_counts(resolve(preset).policy)
    assert (counts.total, counts.active) == (total, active)


@pytest.mark.parametrize("preset", packaged_presets())
def test_the_suites_a_preset_names_are_packaged(preset: str) -> None:
    config = resolve(preset)
    assert {config.loop.suite, config.eval.suite} <= set(packaged_suites())


@pytest.mark.parametrize("preset", packaged_presets())
def test_a_training_window_fits_the_policy(preset: str) -> None:
    config = resolve(preset)
    assert config.train.seq_len <= config.policy.max_seq_len


@pytest.mark.parametrize("preset", packaged_presets())
def test_a_preset_fixes_threads_and_workers_itself_and_a_user_may_override_them(preset: str) -> None:
    written = tomllib.loads((files("dormouse_core.config") / "presets" / f"{preset}.toml").read_text())
    assert {"threads"} <= written["runtime"].keys() and {"workers"} <= written["roll"].keys()
    config = resolve(preset, ["runtime.threads=3", "roll.workers=5"])
    assert (config.runtime.threads, config.roll.workers) == (3, 5)
