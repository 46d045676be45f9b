"""A checkpoint written before a setting existed is still itself."""

import json

import safetensors
import safetensors.torch
import torch

from dormouse_core.artifacts import checkpoint as container
from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.first_settings import FIRST
from dormouse_core.artifacts.identity import canonical, config_content, decisive, identity, sha256
from dormouse_core.artifacts.provenance import Kind, Provenance
from dormouse_core.config.resolve import known_keys, resolve
from dormouse_core.config.run import RunConfig

PROVENANCE = Provenance(kind=Kind.CHECKPOINT, stage="test", config_sha256="c", code_version="v", seed=1)


def _written_before(setting: str) -> bytes:
    """A checkpoint's bytes as a version without rl.<setting> would have written them."""
    data, _ = container.encode(Checkpoint(RunConfig(), {"w": torch.arange(4.0)}), PROVENANCE)
    (key,) = (k for k in json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"])
    header = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"][key])
    tensors = safetensors.torch.load(data)
    del header["config"]["rl"][setting], header["sha256"]
    content = sha256(container.weights_identity(tensors).encode(), canonical(decisive(header["config"])), canonical(header["state"]))
    header["identity"] = identity(content, PROVENANCE)
    header["sha256"] = sha256(canonical(header))
    return safetensors.torch.save(tensors, metadata={key: canonical(header).decode()})


def test_a_checkpoint_older_than_a_setting_still_loads_with_that_settings_default():
    loaded, _, _ = container.decode(_written_before("dead_round_limit"), "old.bin")
    assert loaded.config == RunConfig()


def test_a_setting_that_came_later_is_no_part_of_an_identity_until_it_is_used() -> None:
    stored = RunConfig().model_dump(mode="json")
    del stored["policy"]["dtype"], stored["policy"]["depth"], stored["train"]["optimizer"]["experts"]
    assert decisive(stored) == config_content(RunConfig())
    used = [config_content(resolve("tiny", [s])) for s in ("policy.dtype=bfloat16", "policy.depth.kind=random",
                                                           "train.optimizer.experts.kind=muon")]
    assert len({canonical(c) for c in [*used, config_content(resolve("tiny"))]}) == 4
    assert config_content(resolve("tiny", ["policy.recompute=true"])) == config_content(resolve("tiny"))


def test_settings_of_the_first_checkpoints_are_part_of_an_identity_also_at_their_default() -> None:
    assert set(known_keys()) >= FIRST, "a setting the first checkpoints knew is gone: they can no longer be read"
    assert config_content(RunConfig())["rl"]["clip"] == 0.2 and "dtype" not in config_content(RunConfig())["policy"]
