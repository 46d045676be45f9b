"""A checkpoint written before a setting existed is still itself."""

import json

import safetensors
import safetensors.torch
import torch

from dormouse_core.artifacts import checkpoint as container
from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.identity import canonical, decisive, identity, sha256
from dormouse_core.artifacts.provenance import Kind, Provenance
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
