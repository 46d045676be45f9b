"""An inference file holds the weights, says where they are from, and is the only thing that decodes."""

from pathlib import Path

import pytest
import torch

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.lineage import walk
from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.resolve import resolve
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy import export as room
from dormouse_core.policy.export import export, open_inference
from dormouse_core.policy.model import build_policy

CONFIG = resolve("tiny")
IDS = torch.arange(40).view(2, 20)


def provenance(kind: Kind = Kind.CHECKPOINT) -> Provenance:
    return Provenance(kind=kind, stage="sft_checkpoint", config_sha256=CONFIG.sha256(), code_version="v", seed=1)


@pytest.fixture
def trained(store: Store) -> Artifact:
    policy = build_policy(CONFIG.policy, 5)
    with torch.no_grad():
        policy.load_E.fill_(7)
    moments = {f"exp_avg/{n}": torch.ones_like(p) for n, p in policy.named_parameters()}
    return store.put_checkpoint(Checkpoint(CONFIG, dict(policy.state_dict()), moments, {"step": 9}), provenance())


def test_fp32_weights_come_out_bit_for_bit_and_without_the_optimizer(store: Store, trained: Artifact, tmp_path: Path) -> None:
    done = export(trained, tmp_path / "p.safetensors", "float32", store)
    ready = open_inference(tmp_path / "p.safetensors", Ledger())
    assert done.changed == 0 and done.artifact.identity == ready.artifact.identity
    with torch.no_grad():
        assert torch.equal(ready.policy(IDS).logits_BLV, build_policy(CONFIG.policy, 5)(IDS).logits_BLV)
    held = store.read_checkpoint(tmp_path / "p.safetensors")
    assert not held.optimizer and int(held.model["load_E"].sum()) == 0 and "step" not in held.state


def test_bf16_is_half_the_size_and_answers_nearly_the_same(store: Store, trained: Artifact, tmp_path: Path) -> None:
    sizes = [export(trained, tmp_path / name, dtype, store).size for name, dtype in (("h", "bfloat16"), ("f", "float32"))]
    done = export(trained, tmp_path / "h", "bfloat16", store)
    assert 0 < done.changed <= 2**-8 and abs(sizes[1] - sizes[0] - 2 * done.parameters) < 100  # the header is as long, nearly
    half, full = (open_inference(tmp_path / name, Ledger()).policy for name in ("h", "f"))
    assert half.embedding.dtype is torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(half(IDS).logits_BLV, full(IDS).logits_BLV, atol=0.1, rtol=0.05)


def test_the_same_checkpoint_gives_the_same_file_and_what_stood_there_is_kept(store: Store, trained: Artifact, tmp_path: Path) -> None:
    first = export(trained, tmp_path / "p.safetensors", "bfloat16", store).artifact
    second = export(trained, tmp_path / "p.safetensors", "bfloat16", store).artifact
    assert first.file_sha256 == second.file_sha256 and (tmp_path / "p.prev.safetensors").exists()


def test_lineage_walks_from_the_inference_file_to_its_checkpoint(store: Store, trained: Artifact, tmp_path: Path) -> None:
    export(trained, tmp_path / "p.safetensors", "bfloat16", store)
    found = walk(store, store.open(tmp_path / "p.safetensors"))
    assert trained.identity in str(found)


def test_a_training_checkpoint_is_refused_with_the_command_that_converts_it(store: Store, trained: Artifact) -> None:
    with pytest.raises(DormouseError, match=r"training checkpoint[\s\S]*dormouse export .*\.bin --out .*\.safetensors"):
        open_inference(store.path(trained), Ledger())


def test_other_files_are_refused_by_what_they_are(store: Store, tmp_path: Path) -> None:
    class Note(Record):
        text: str = "x"

    record = store.put_record(Note(), provenance(Kind.CURRICULUM))
    with pytest.raises(DormouseError, match="is of kind curriculum"):
        open_inference(store.path(record), Ledger())
    with pytest.raises(DormouseError, match="made from a checkpoint"):
        export(record, tmp_path / "p", "bfloat16", store)


def test_weights_that_are_not_finite_are_refused_by_name(store: Store, tmp_path: Path) -> None:
    model = dict(build_policy(CONFIG.policy, 5).state_dict())
    model["block.mem_dense"][0, 0] = float("nan")
    broken = store.put_checkpoint(Checkpoint(CONFIG, model), provenance())
    with pytest.raises(DormouseError, match=r"block\.mem_dense holds values that are not finite"):
        export(broken, tmp_path / "p", "bfloat16", store)
    assert not (tmp_path / "p").exists()


def test_without_bf16_products_a_bf16_file_runs_in_fp32_and_says_so(store: Store, trained: Artifact, tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    export(trained, tmp_path / "h", "bfloat16", store)
    monkeypatch.setattr(room, "has_bf16", lambda: False)
    ledger = Ledger()
    assert open_inference(tmp_path / "h", ledger).policy.embedding.dtype is torch.float32
    assert "widened to fp32" in ledger.lines[0] and ledger.arms()["bf16 products"] == "0/1"
