"""The order of resolution, what is refused, and that no field can be forgotten."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from dormouse_core.config.drift import flatten
from dormouse_core.config.resolve import known_keys, packaged_presets, resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import GroupAdvantage, RlConfig
from dormouse_core.ledger import DormouseError


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text("[rl]\nclip = 0.11\nkl = 0.5\nrounds = 7\n")
    return path


def test_each_layer_overrides_the_one_before(preset: Path) -> None:
    assert resolve(preset).rl.epochs == RlConfig().epochs
    assert resolve(preset).rl.clip == 0.11
    assert resolve(preset, ["rl.clip=0.12"]).rl.clip == 0.12
    assert resolve(preset, ["rl.clip=0.12"], {"rl.clip": 0.13}).rl.clip == 0.13
    assert resolve(preset, ["rl.clip=0.12"], {"rl.clip": None}).rl.clip == 0.12
    assert resolve(preset, ["rl.clip=0.12", "rl.clip=0.14"]).rl.clip == 0.14


def test_the_snapshot_names_its_preset(preset: Path) -> None:
    assert (resolve("tiny").preset, resolve(preset).preset) == ("tiny", "mine")


def schema_leaves(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Every field of the default member of every section, read from the models themselves."""
    leaves = set()
    for name, value in model():
        if isinstance(value, BaseModel):
            leaves |= schema_leaves(type(value), f"{prefix}{name}.")
        else:
            leaves.add(f"{prefix}{name}")
    return leaves


def test_every_field_of_the_schema_stands_in_the_snapshot_the_hash_is_taken_of() -> None:
    snapshot = flatten(json.loads(RunConfig().canonical()))
    assert set(snapshot) == schema_leaves(RunConfig)
    assert schema_leaves(RunConfig) <= set(known_keys())


@pytest.mark.parametrize("name", packaged_presets())
def test_every_packaged_preset_is_legal(name: str) -> None:
    assert resolve(name).preset == name


def test_the_four_presets_exist() -> None:
    assert {"tiny", "nano", "small", "b1"} <= set(packaged_presets())


@pytest.mark.parametrize(("name", "hint"), [("nanno", "nano"), ("qqqq", "known presets"), ("gone.toml", "no preset file at gone.toml")])
def test_an_unknown_preset_is_refused_with_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(DormouseError, match=hint):
        resolve(name)


@pytest.mark.parametrize(("setting", "hint"), [
    ("rl.clipp=1", "rl.clip"),
    ("clip=0.3", "did you mean rl.clip"),
    ("nonsense.key=1", "keys of the configuration"),
    ("rl.clip", "has no value"),
    ("rl.clip.x=1", "not a setting"),
    ("policy=3", "is a section"),
    ("rl.advantage=vtrace", "fork-replay, group"),
    ("rl.advantage.kappa=1", "the chosen rl.advantage has no kappa"),
    ("policy.msa_budget=3", "no such parameter"),
    ("preset=b1", "--preset"),
])
def test_an_unknown_key_is_refused_with_the_way_out(setting: str, hint: str) -> None:
    with pytest.raises(DormouseError, match=hint):
        resolve("nano", [setting])


def test_an_unknown_key_in_a_preset_is_refused_naming_the_preset(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text("[policy]\nn_layers = 12\n")
    with pytest.raises(DormouseError, match=r"preset old: policy\.n_layers is not a setting"):
        resolve(tmp_path / "old.toml")


@pytest.mark.parametrize("text", ["[rl", "rl = {clip = }", "\x00"])
def test_a_preset_that_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(DormouseError, match="not readable TOML"):
        resolve(tmp_path / "bad.toml")


def test_every_value_out_of_bounds_is_named_at_once() -> None:
    with pytest.raises(DormouseError) as caught:
        resolve("nano", ["rl.clip=-1", "train.batch=0", "policy.d_model=97"])
    assert all(key in str(caught.value) for key in ("rl.clip", "train.batch", "d_model"))


def test_a_kind_is_chosen_by_its_name_and_starts_from_its_own_defaults() -> None:
    config = resolve("nano", ["rl.advantage=group", "rl.advantage.kappa=0.5"])
    assert config.rl.advantage == GroupAdvantage(kappa=0.5)
    assert resolve("nano", ["rl.advantage.kind=group"]).rl.advantage == GroupAdvantage()


def test_a_preset_may_name_a_kind_after_its_keys(tmp_path: Path) -> None:
    (tmp_path / "arm.toml").write_text('[rl.advantage]\nkappa = 0.25\nkind = "group"\n')
    assert resolve(tmp_path / "arm.toml").rl.advantage == GroupAdvantage(kappa=0.25)


def test_typed_text_becomes_the_type_of_its_field() -> None:
    config = resolve("nano", ["eval.budgets=[4, 8]", "rl.interleave_sft=none", "loop.line=7", "eval.frozen=off", "train.data=/x y"])
    assert (config.eval.budgets, config.rl.interleave_sft, config.loop.line, config.eval.frozen, config.train.data) == (
        (4, 8), None, "7", False, "/x y")
    assert resolve("nano", ["rl.interleave_sft=0.5"]).rl.interleave_sft == 0.5


@pytest.mark.parametrize(("settings", "why"), [
    (["moe_topk=9"], "exceeds n_experts 8"), (["moe_topk=1"], "zero gradient"), (["engram_rows=1000"], "power of two"),
    (["n_heads=2"], "must equal d_model"), (["readout_rank=129"], "readout_rank 129 exceeds 128"),
    (["shared_rank=200"], "shared_rank 200 exceeds"), (["d_ffn=64", "rank=65"], "rank 65 exceeds 64"),
    (["depth.kind=sideways"], "sideways"),
])  # fmt: skip
def test_a_policy_that_cannot_be_built_is_refused_with_the_reason(settings: list[str], why: str) -> None:
    with pytest.raises(DormouseError, match=why):
        resolve("nano", [f"policy.{setting}" for setting in settings])
