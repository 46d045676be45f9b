"""What a stage will take of a device's memory, from the meta-device module and the configuration, before anything is allocated.

    held      weights; the copy of the best (SFT) or of the base (RL); fp32 masters; moments          for the whole stage
    update    gradients of a micro-batch and their sum, folded copies of factors, activations          while weights move
    rollouts  folded weights, one state a lane, kept prompts and fork points, the window of prompts    while sampling

The peak is what is held plus the larger of the other two. Bytes of weights and moments are exact. Bytes of activations are linear
in the shapes of one iteration; their factors were fitted to the allocator's own trace (`python -m benchmarks.memory` prints trace
against plan). A process on a CPU holds more than its tensors: the C library keeps freed pieces between live ones (`HOLES`). A test
holds the plan to the peak a process really reaches (`python -m benchmarks.memory_peak` prints both). Not here: what the machine has.
"""

import resource
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import nn

from dormouse_core.config.optimizer import AdamRow, FrozenRow, MuonRow, OptimizerConfig
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.resolve import resolve_from
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError
from dormouse_core.optim.declared import declared_groups
from dormouse_core.policy.block import controller_width, narrow
from dormouse_core.policy.counts import parameter_counts
from dormouse_core.policy.layout import padded, shape_of, unsupported_window
from dormouse_core.policy.model import Policy, meta_policy
from dormouse_core.policy.native_window import CHUNK
from dormouse_core.policy.pages import OWN_MAPPING
from dormouse_core.policy.state import MIN_ROWS
from dormouse_core.rollouts.snapshots import LIMIT_BYTES

GIB = 1 << 30
DEVICE_CONTEXT = GIB
"""A CUDA context, library workspaces and fragmentation: a guess, printed as one."""
PROMPT = 128
"""Bytes of a prompt, for the window in which prompts are read; real ones are shorter in the packaged pools."""


class Stage(StrEnum):
    TRAIN = "train"
    SFT = "sft"
    RL = "rl"
    ROLL = "roll"


class When(StrEnum):
    """While what an item takes memory."""

    HELD = "held"
    UPDATE = "update"
    ROLLOUTS = "rollouts"


class Item(NamedTuple):
    name: str
    bytes: int
    when: When


class Plan(NamedTuple):
    stage: Stage
    items: tuple[Item, ...]
    micro_bytes: int
    """Bytes of text in the largest micro-batch; 0 where nothing is trained."""

    def of(self, when: When) -> int:
        return sum(item.bytes for item in self.items if item.when is when)

    @property
    def peak(self) -> int:
        return self.of(When.HELD) + max(self.of(When.UPDATE), self.of(When.ROLLOUTS))


class Way(NamedTuple):
    """Settings under which a stage fits, and the peak it then has."""

    what: tuple[str, ...]
    sets: tuple[str, ...]
    peak: int


class Activations(NamedTuple):
    """Bytes a byte of text and iteration, a unit of each shape; `once`, `logits` and `head` a byte of text.

    width: d. state: d K / 16, the KDA state at each chunk's border. inner: (k + 1) f, the experts' inner activations. code: E r of
    narrow experts. rows: k d of wide ones. router: E. working: d, what KDA's backward needs beside, once the experts' are gone.
    kept: d, what stays of an iteration that is computed again. once: d. logits: 256 of every iteration's own readout. head: 256.
    """

    width: float
    state: float
    inner: float
    code: float
    rows: float
    router: float
    working: float
    kept: float
    once: float
    logits: float
    head: float


TRACED = {
    "float32": Activations(126.6, 1.5, 7.9, 11.1, 12.7, 6.1, 60.0, 5.0, 46.5, 12.4, 10.5),
    "bfloat16": Activations(107.2, 0.0, 9.1, 8.0, 0.0, 0.0, 60.0, 2.5, 20.5, 3.0, 20.5),
}
"""By the policy's type: fitted to 30 and 14 traces, which the sum meets within 3 % and 7 % (iterations recomputed: 9 %)."""

HOLES = {"float32": (0.25, 0.65), "bfloat16": (0.25, 0.8)}
"""By the policy's type, without and with recompute: what glibc's heap keeps of freed pieces at the peak, over the activations and what
small gradients take while they are summed. Tensors with a mapping of their own never fill what smaller ones left, and an iteration
that is computed again leaves more of those. Fitted to `python -m benchmarks.memory_peak`, which then meets the peak within 10 %."""


def trains_natively(config: PolicyConfig) -> bool:
    """Whether a CPU with a C++ compiler trains this policy by compiled calls (policy/native_window.py)."""
    return config.compute == "native" and unsupported_window(config, narrow(config)) is None


def native_bytes(config: PolicyConfig) -> int:
    """Bytes a byte of text and iteration that the compiled iteration keeps for its gradient: exact."""
    control, d = controller_width(config), config.d_model
    shape = shape_of(config, control, 0)
    kept = 3 * d + 1 + shape.x_in + shape.heads + shape.ffn + padded(config.shared_rank) + shape.top_k * shape.rank + shape.x_out
    return 4 * (kept + d + d * config.head_dim // CHUNK) + 8 * config.moe_topk


def activation_bytes(config: PolicyConfig, deep: bool, native: bool = False) -> float:
    """Bytes of activations a byte of text in a forward and backward, at their peak. deep: with each iteration's own loss. native: by
    compiled calls, which keep less and compute nothing again."""
    a, d, k = TRACED[config.dtype], config.d_model, config.moe_topk
    experts = a.inner * (k + 1) * config.d_ffn + (a.code * config.n_experts * config.rank if narrow(config) else a.rows * k * d)
    rest = a.width * d + a.state * d * config.head_dim / 16 + a.router * config.n_experts
    ends = a.once * d + a.head * 256
    logits = config.max_iter * a.logits * 256 if deep else 0.0
    if native:
        return config.max_iter * native_bytes(config) + logits + ends
    if not config.recompute:
        return config.max_iter * (rest + experts) + logits + ends
    return config.max_iter * a.kept * d + ends + max(logits, rest + max(experts, a.working * d))


def plan(config: RunConfig, stage: Stage, process: int | None = None, micro_bytes: int | None = None) -> Plan:
    """The memory of a stage. process: bytes this process takes before it starts (`process_bytes`); None for a GPU, with a guess of
    its context.

    micro_bytes: bytes of text in a micro-batch; None is the most the configuration can put into one (rows of max_seq_len).
    """
    policy = meta_policy(config.policy)
    weights = _bytes(policy.state_dict().values())
    before = Item("context and fragmentation (a guess)", DEVICE_CONTEXT, When.HELD)
    if process is not None:
        before = Item("process and libraries, as they are now", process, When.HELD)
    items = [before, Item("weights", weights, When.HELD)]
    micro = 0
    if stage is not Stage.ROLL:
        micro = micro_bytes or largest_micro_batch(config, stage)
        if stage is not Stage.TRAIN:
            items.append(Item("best weights so far" if stage is Stage.SFT else "weights of the base (KL)", weights, When.HELD))
        items += _training(config, stage, policy, micro, on_cpu=process is not None)
    if stage in (Stage.RL, Stage.ROLL):
        items += _rollouts(config, policy)
    return Plan(stage, tuple(item for item in items if item.bytes), micro)


def largest_micro_batch(config: RunConfig, stage: Stage) -> int:
    """The most bytes of text the configuration can put into one micro-batch."""
    longest = config.policy.max_seq_len
    sft = -(-config.sft.batch // config.sft.micro_batches) * longest
    if stage is Stage.TRAIN:
        return -(-config.train.batch // config.train.micro_batches) * (config.train.seq_len + 1)
    if stage is Stage.SFT:
        return sft
    rows = -(-config.roll.prompts * config.roll.group_size // config.rl.micro_batches)
    return max(rows * longest, 0 if config.rl.interleave_sft == 0 else sft)


def refuse_unfit(config: RunConfig, stage: Stage, device: int, process: int | None = None, micro_bytes: int | None = None) -> Plan:
    """The plan of a stage that fits `device` bytes. Raises DormouseError naming the shortfall and what would fit."""
    made = plan(config, stage, process, micro_bytes)
    if made.peak <= device:
        return made
    short = (f"{stage} of preset {config.preset} needs {made.peak / GIB:.2f} GiB, {(made.peak - device) / GIB:.2f} more than the "
             f"{device / GIB:g} there are")
    found = ways(config, stage, device, process, micro_bytes)
    if not found:
        raise DormouseError(f"{short}. No setting makes it fit: recomputed iterations, one row a micro-batch, stochastic rounding and "
                            "frozen experts together do not. Use a smaller preset or a larger device.")
    rows = "\n".join(f"  {' and '.join(w.what)}: {w.peak / GIB:.2f} GiB   {' '.join(f'--set {s}' for s in w.sets)}" for w in found)
    raise DormouseError(f"{short}. What would fit:\n{rows}")


def ways(config: RunConfig, stage: Stage, device: int, process: int | None = None, micro_bytes: int | None = None) -> list[Way]:
    """Each change that alone makes the stage fit; where none does, the first of them that do together."""
    def tried(changes: Sequence[tuple[str, tuple[str, ...]]]) -> Way:
        sets = tuple(s for _, chosen in changes for s in chosen)
        smaller = any("micro_batches" in s for s in sets)
        peak = plan(resolve_from(config, sets), stage, process, None if smaller else micro_bytes).peak
        return Way(tuple(what for what, _ in changes), sets, peak)

    options = _options(config, stage, on_cpu=process is not None)
    alone = [way for option in options if (way := tried([option])).peak <= device]
    if alone:
        return alone
    for n in range(2, len(options) + 1):
        together = tried(options[:n])
        if together.peak <= device:
            return [together]
    return []


def _options(config: RunConfig, stage: Stage, on_cpu: bool) -> list[tuple[str, tuple[str, ...]]]:
    """Changes that save memory, the least harmful first."""
    found: list[tuple[str, tuple[str, ...]]] = []
    trains = stage is not Stage.ROLL
    if trains and not config.policy.recompute and not (on_cpu and trains_natively(config.policy)):
        found.append(("recomputed iterations", ("policy.recompute=true",)))
    if trains:
        most = {Stage.TRAIN: config.train.batch, Stage.SFT: config.sft.batch, Stage.RL: config.roll.prompts * config.roll.group_size}[stage]
        sets = [f"{stage}.micro_batches={most}"] if most > _section(config, stage).micro_batches else []
        if stage is Stage.RL and config.sft.batch > config.sft.micro_batches:
            sets.append(f"sft.micro_batches={config.sft.batch}")
        if sets:
            found.append(("smaller micro-batches", tuple(sets)))
    if stage in (Stage.RL, Stage.ROLL) and config.roll.lanes > MIN_ROWS:
        found.append(("fewer lanes", (f"roll.lanes={MIN_ROWS}",)))
    if config.policy.dtype == "float32":
        found.append(("bf16 weights", ("policy.dtype=bfloat16",)))
    if trains:
        optimizer = _section(config, stage).optimizer
        if optimizer.low_precision == "masters":
            found.append(("stochastic rounding", (f"{stage}.optimizer.low_precision=stochastic",)))
        rows = [name for name in ("experts", "expert_scales", "tables") if not isinstance(optimizer.row(name), FrozenRow)]
        if rows:
            found.append(("frozen experts and tables", tuple(f"{stage}.optimizer.{name}.kind=frozen" for name in rows)))
    return found


class _Trained(NamedTuple):
    """What the plan needs of a stage's section."""

    optimizer: OptimizerConfig
    micro_batches: int


def _section(config: RunConfig, stage: Stage) -> _Trained:
    if stage is Stage.TRAIN:
        return _Trained(config.train.optimizer, config.train.micro_batches)
    if stage is Stage.SFT:
        return _Trained(config.sft.optimizer, config.sft.micro_batches)
    return _Trained(config.rl.optimizer, config.rl.micro_batches)


def _training(config: RunConfig, stage: Stage, policy: Policy, micro: int, on_cpu: bool) -> list[Item]:
    optimizer = _section(config, stage).optimizer
    moments: dict[str, int] = {}
    trained: dict[str, nn.Parameter] = {}
    for group, members in declared_groups(policy).items():
        row = optimizer.row(group.value)
        if not isinstance(row, FrozenRow):
            trained |= members
            for name, size in _moments(row, optimizer, members).items():
                moments[name] = moments.get(name, 0) + size
    gradients, (folded, taped) = _bytes(trained.values()), _folded(config.policy, policy, trained)
    largest = max((p.numel() * p.element_size() for n, p in trained.items() if ".experts." in n), default=0)
    deep, native = stage is not Stage.RL and config.policy.deep_loss > 0, on_cpu and trains_natively(config.policy)
    activations = int(micro * activation_bytes(config.policy, deep, native))
    small = sum(size for p in trained.values() if (size := p.numel() * p.element_size()) < OWN_MAPPING)
    holes = int((activations + 3 * small) * HOLES[config.policy.dtype][config.policy.recompute]) if on_cpu else 0
    return [
        *(Item(name, size, When.HELD) for name, size in moments.items()),
        Item("gradients of a micro-batch", gradients, When.UPDATE),
        Item("gradients, summed", gradients, When.UPDATE),
        Item("folded weights and their gradients", folded + taped + largest, When.UPDATE),
        Item(f"activations of {micro:,} bytes of text", activations, When.UPDATE),
        Item("freed pieces the C library keeps", holes, When.UPDATE),
    ]


def _moments(row: object, optimizer: OptimizerConfig, members: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """Bytes of masters and moments of one group, by what they are (optim/{precision,muon,adam}.py)."""
    count = sum(p.numel() for p in members.values())
    low = sum(p.numel() for p in members.values() if p.dtype is not torch.float32)
    sizes = {"fp32 masters": 4 * low if optimizer.low_precision == "masters" else 0}
    if isinstance(row, MuonRow):
        sizes["Muon+ momentum"] = count * (4 if row.momentum_dtype == "float32" else 2)
    else:
        sizes["Adam moments of tables" if isinstance(row, AdamRow) else "AdamW moments"] = 8 * count
    return sizes


def _folded(config: PolicyConfig, policy: Policy, trained: Mapping[str, nn.Parameter]) -> tuple[int, int]:
    """(bytes of weights with scales and norms folded in, bytes of their gradients) in a forward and backward (policy/block.py)."""
    dense = sum(p.numel() * p.element_size() for n, p in policy.named_parameters() if n.startswith("block.") and ".experts." not in n
                and "engram.rows" not in n)
    experts = policy.block.experts
    copied = [experts.up_u, experts.up_u, experts.down_u, experts.down_v] if narrow(config) else [experts.up_u, experts.down_v]
    routed = _bytes(copied)
    return dense + routed, dense + (routed if any(".experts." in n for n in trained) else 0)


def _rollouts(config: RunConfig, policy: Policy) -> list[Item]:
    roll, one = config.roll, parameter_counts(config.policy).state_bytes
    forks = config.rl.advantage.kind == "fork-replay" and roll.fork_share > 0
    kept = min(LIMIT_BYTES, roll.prompts * roll.group_size * one) if forks else 0
    prompts = 2 * max(roll.lanes // 2, 8)
    window = min(roll.prompts, 64) * PROMPT
    read = activation_bytes(config.policy.model_copy(update={"recompute": True}), deep=False)
    return [
        Item("folded weights", _folded(config.policy, policy, {})[0], When.ROLLOUTS),
        Item(f"states of {max(roll.lanes, MIN_ROWS)} lanes", max(roll.lanes, MIN_ROWS) * one, When.ROLLOUTS),
        Item(f"states behind {prompts} prompts", prompts * one, When.ROLLOUTS),
        Item("states of fork points, at most", kept, When.ROLLOUTS),
        Item(f"window of {window:,} prompt bytes", int(window * read), When.ROLLOUTS),
    ]


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def process_bytes() -> int:
    """What this process takes of memory now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
