"""The inference file: the weights of a checkpoint and what is needed to run them, in the type they will be run in.

A safetensors file in the checkpoint's own container, of kind `inference`: no optimizer, no resume state, the checkpoint it was made
from as its parent. Decoding and serving read only this, so that a file of 10 GB with moments in it, or one in the middle of a run,
is never taken for a model. Not here: the container (artifacts.checkpoint), and running it (rollouts).
"""

from pathlib import Path
from typing import Literal, NamedTuple

import torch

from dormouse_core.artifacts.atomic import write_chunks
from dormouse_core.artifacts.checkpoint import Checkpoint, planned
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store, previous_name
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy.model import Policy, load_policy

STAGE = "export"
Dtype = Literal["bfloat16", "float32"]


class Exported(NamedTuple):
    """What an export wrote. changed: the largest relative change of a weight by rounding (0 where the type stayed)."""

    artifact: Artifact
    size: int
    parameters: int
    largest: float
    smallest: float
    """Magnitude of the smallest weight that is not 0."""
    changed: float


def export(source: Artifact, out: Path, dtype: Dtype, store: Store) -> Exported:
    """Write the weights of a checkpoint as an inference file; what stood at `out` stays beside it as `.prev`.

    Raises DormouseError where `source` is no checkpoint, or a weight is not finite.
    """
    if source.kind is not Kind.CHECKPOINT:
        raise DormouseError(f"{source.path} is of kind {source.kind}; an inference file is made from a checkpoint (.bin).")
    held = store.read_checkpoint(source)
    policy = held.config.policy.model_copy(update={"dtype": dtype})
    made = load_policy(held, held.config.policy, source.path)
    parameters = dict(made.named_parameters())
    model, largest, smallest, changed = dict[str, torch.Tensor](), 0.0, float("inf"), 0.0
    for name, tensor in made.state_dict().items():
        if name not in parameters:
            model[name] = torch.zeros_like(tensor) if name == "load_E" else tensor
            continue
        model[name] = tensor.to(getattr(torch, dtype))
        seen = _look(name, tensor, model[name], source.path)
        largest, smallest, changed = max(largest, seen[0]), min(smallest, seen[1]), max(changed, seen[2])
    state = {"stage": held.state.get("stage", ""), "dtype": dtype, "from": held.config.policy.dtype, "lfb_version": made.lfb_version}
    provenance = Provenance(
        kind=Kind.INFERENCE, stage=STAGE, parents=(Parent(role="checkpoint", kind=source.kind, identity=source.identity),),
        config_sha256=held.config.sha256(), code_version=code_version(), seed=source.provenance.seed)
    plan = planned(Checkpoint(held.config.model_copy(update={"policy": policy}), model, {}, state), provenance)
    file_sha256 = write_chunks(out, plan.chunks, plan.size, previous=previous_name(out))
    artifact = Artifact(kind=Kind.INFERENCE, identity=plan.identity, file_sha256=file_sha256, path=str(out), provenance=provenance)
    return Exported(artifact, plan.size, sum(p.numel() for p in parameters.values()), largest, smallest, changed)


def _look(name: str, before: torch.Tensor, after: torch.Tensor, where: str) -> tuple[float, float, float]:
    """(largest magnitude, smallest that is not 0, largest relative change) of one tensor, a part at a time."""
    largest, smallest, changed = 0.0, float("inf"), 0.0
    for old, new in zip(before.reshape(-1).split(1 << 22), after.reshape(-1).split(1 << 22), strict=True):
        size = old.float().abs()
        if not bool(torch.isfinite(size).all()) or not bool(torch.isfinite(new).all()):
            raise DormouseError(f"{where}: {name} holds values that are not finite; such a policy answers nothing. Export the checkpoint "
                                "before it (dormouse lineage shows its parents).")
        some = size > 0
        if bool(some.any()):
            largest, smallest = max(largest, float(size.max())), min(smallest, float(size[some].min()))
            changed = max(changed, float(((new.float() - old.float()).abs()[some] / size[some]).max()))
    return largest, smallest, changed


class Ready(NamedTuple):
    """A policy to run, the file it came from, and the torch threads its configuration asks for."""

    policy: Policy
    artifact: Artifact
    threads: int


def open_inference(path: Path, ledger: Ledger) -> Ready:
    """The policy of an inference file. On a processor without bf16 products a bf16 file is run in fp32, and that is said.

    Raises DormouseError where the file is missing, damaged, or anything else; for a training checkpoint with the command that
    converts it.
    """
    store = Store(path.parent)
    artifact = store.open(path)
    if artifact.kind is Kind.CHECKPOINT:
        raise DormouseError(
            f"{path} is a training checkpoint (written by {artifact.provenance.stage}), not an inference file. Convert it: "
            f"dormouse export {path} --out {path.with_suffix('.safetensors')}")
    if artifact.kind is not Kind.INFERENCE:
        raise DormouseError(f"{path} is of kind {artifact.kind}; decoding and serving take an inference file (dormouse export).")
    held = store.read_checkpoint(path)
    policy = load_policy(held, held.config.policy, str(path))
    slow = held.config.policy.dtype == "bfloat16" and not has_bf16()
    ledger.ask("bf16 products", ran=not slow, n=int(held.config.policy.dtype == "bfloat16"))
    if slow:
        ledger.loud(f"{path.name}: this processor has no bf16 products (AVX512-BF16 or AMX): the weights are widened to fp32")
        model = {n: t.float() if t.dtype is torch.bfloat16 else t for n, t in held.model.items()}
        wide = held.config.policy.model_copy(update={"dtype": "float32"})
        policy = load_policy(Checkpoint(held.config, model), wide, str(path))
    return Ready(policy.eval(), artifact, held.config.runtime.threads)


def has_bf16() -> bool:
    """Whether this machine multiplies bf16 natively."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return True  # no Linux: the library decides, and a slow product is still the right one
    return any(f" {flag}" in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))
