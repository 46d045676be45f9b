"""Rows of different lengths -> padded batches, in an order that is a function of (seed, epoch) alone.

Arrays are numpy so that a batch travels to a worker process as plain bytes. Every loss weight is set here, over the whole
batch, so a batch cut into micro-batches adds up to the same gradient (docs/mechanisms/prompt-mean.md).
Not here: the loss (loss.py), the rows (demonstrations.py, rollouts).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from dormouse_core.learning.advantage import Credit
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.seeding import generator

Aggregation = Literal["prompt_mean", "trajectory_mean", "byte_mean"]
POOL_OF_BATCHES = 16
"""Rows are sorted by length inside blocks of this many batches: little padding, still shuffled."""


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Rows with a loss weight a byte: SFT and its held-out side. weight_BL[b, t] belongs to the prediction OF byte t."""

    ids_BL: np.ndarray  # uint8, zero padded
    weight_BL: np.ndarray  # float32; 0 at padding and wherever there is no loss; sums to 1 over a whole batch
    observation_BL: np.ndarray  # float32: the same for observation bytes (weight included)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Trajectories cut into steps: B rows of L bytes, S steps, X bytes the policy wrote."""

    ids_BL: np.ndarray  # uint8, zero padded
    row_X: np.ndarray  # int64 row of each written byte
    position_X: np.ndarray  # int64 position of the byte; its logits stand one before
    step_X: np.ndarray  # int64 step of the byte, in [0, S), non-decreasing
    sampled_X: np.ndarray  # float32 log-prob as sampled
    bytes_S: np.ndarray  # float32 bytes written in the step
    advantage_S: np.ndarray  # float32
    weight_S: np.ndarray  # float32 share of the step in the loss of the whole batch
    row_S: np.ndarray  # int64 row of the step
    boundary_S: np.ndarray  # int64 position of the last byte before the step: where V is read
    value_S: np.ndarray  # float32 target of V
    value_weight_S: np.ndarray  # float32
    temperature: float

    def cost(self) -> int:
        return self.ids_BL.size


def padded(streams: Sequence[np.ndarray], dtype: type = np.uint8) -> np.ndarray:
    """[B, L] with zeros after each row's end."""
    out: np.ndarray = np.zeros((len(streams), max(map(len, streams))), dtype=dtype)
    for row, stream in zip(out, streams, strict=True):
        row[: len(stream)] = stream
    return out


def epoch_order(lengths: Sequence[int], batch: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Row indices of each batch of one epoch: every row once, rows of one batch alike in length.

    A function of (lengths, batch, seed, epoch). The last batch of the epoch may be short; order of batches is shuffled.
    """
    draw = generator("batch-order", seed, epoch)
    order, length = draw.permutation(len(lengths)), np.asarray(lengths)
    block = batch * POOL_OF_BATCHES
    batches = []
    for lo in range(0, len(order), block):
        rows = order[lo : lo + block]
        rows = rows[np.argsort(length[rows], kind="stable")]
        batches += [rows[i : i + batch] for i in range(0, len(rows), batch)]
    return [batches[i] for i in draw.permutation(len(batches))]


def text_batch(streams: Sequence[np.ndarray], masks: Sequence[np.ndarray], observed: Sequence[np.ndarray], observation_weight: float,
               parts: int = 1) -> list[TextBatch]:
    """One batch in `parts` micro-batches: the mean over all assistant bytes, plus observation_weight times that over all
    observation bytes. masks and observed hold True at the bytes that are targets."""
    targets, seen = sum(int(m.sum()) for m in masks), sum(int(o.sum()) for o in observed)
    out = []
    for rows in np.array_split(np.arange(len(streams)), min(parts, len(streams))):
        weight = padded([masks[r].astype(np.float32) / np.float32(max(targets, 1)) for r in rows], np.float32)
        watch = padded([observed[r].astype(np.float32) * np.float32(observation_weight / max(seen, 1)) for r in rows], np.float32)
        out.append(TextBatch(padded([streams[r] for r in rows]), weight, watch))
    return out


def step_weights(trajectories: Sequence[Trajectory], credit: Credit, aggregation: Aggregation) -> list[tuple[float, float]]:
    """(weight of a byte of this trajectory in the policy term, weight of one of its step boundaries in the value term).

    prompt_mean: over a trajectory's bytes, then over its prompt's learning rows, then over prompts. Dead prompts are
    prompts: they stay in the last mean with credit 0, so their number scales the step, never its direction.
    """
    written = [sum(s.tokens for s in t.sampled_steps) for t in trajectories]
    inside: dict[str, int] = {}
    for t, learns in zip(trajectories, credit.learns_N, strict=True):
        if learns:
            inside[t.group] = inside.get(t.group, 0) + 1
    rows, all_bytes = sum(inside.values()), sum(w for w, learns in zip(written, credit.learns_N, strict=True) if learns)
    out = []
    for t, n, learns in zip(trajectories, written, credit.learns_N, strict=True):
        if not learns or n == 0:
            out.append((0.0, 0.0))
            continue
        row = 1.0 / (inside[t.group] * len(inside)) if aggregation == "prompt_mean" else 1.0 / rows
        byte = 1.0 / all_bytes if aggregation == "byte_mean" else row / n
        out.append((byte, row / max(len(t.sampled_steps), 1)))
    return out


def step_batches(trajectories: Sequence[Trajectory], credit: Credit, aggregation: Aggregation, parts: int) -> list[StepBatch]:
    """The live trajectories in at most `parts` micro-batches of alike length and about equal cost, longest first.

    Empty where every group is dead. Raises ValueError where live rows were sampled at different temperatures.
    """
    weights = step_weights(trajectories, credit, aggregation)
    streams = {i: trajectories[i].stream() for i in np.flatnonzero(credit.live_N).tolist()}
    if not streams:
        return []
    temperatures = sorted({trajectories[i].temperature for i in streams})
    if len(temperatures) > 1:
        raise ValueError(f"one update cannot mix sampling temperatures: {temperatures}")
    order = sorted(streams, key=lambda i: (-len(streams[i][0]), i))
    return [_step_batch(rows, streams, trajectories, credit, weights, temperatures[0]) for rows in _cut(order, streams, parts)]


def _cut(order: list[int], streams: dict[int, tuple[bytes, np.ndarray, np.ndarray]], parts: int) -> list[list[int]]:
    """Cut rows, longest first, where the running number of bytes passes the next 1/parts of the total."""
    lengths = np.array([len(streams[i][0]) for i in order], dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    part_of = np.minimum(before * parts // max(int(lengths.sum()), 1), parts - 1)
    return [[order[j] for j in np.flatnonzero(part_of == p)] for p in range(parts) if np.any(part_of == p)]


def _step_batch(
    rows: list[int],
    streams: dict[int, tuple[bytes, np.ndarray, np.ndarray]],
    trajectories: Sequence[Trajectory],
    credit: Credit,
    weights: list[tuple[float, float]],
    temperature: float,
) -> StepBatch:
    ids = [np.frombuffer(streams[i][0], dtype=np.uint8) for i in rows]
    step_BL = padded([streams[i][1] + 1 for i in rows], np.int64) - 1
    sampled_BL = padded([streams[i][2] for i in rows], np.float32)
    row_X, position_X = np.nonzero(step_BL >= 0)
    own_X = step_BL[row_X, position_X]
    first_X = np.ones(len(row_X), dtype=bool)
    first_X[1:] = (row_X[1:] != row_X[:-1]) | (own_X[1:] != own_X[:-1])
    step_X = np.cumsum(first_X) - 1
    row_S, k_S, boundary_S = row_X[first_X], own_X[first_X], position_X[first_X] - 1
    bytes_S = np.bincount(step_X).astype(np.float32)
    which_S = np.array(rows)[row_S]
    weight_N2 = np.array(weights)
    value_S = credit.value_NK[which_S, k_S]
    labelled_S = np.isfinite(value_S)
    return StepBatch(
        ids_BL=padded(ids), row_X=row_X, position_X=position_X, step_X=step_X, sampled_X=sampled_BL[row_X, position_X], bytes_S=bytes_S,
        advantage_S=credit.advantage_NK[which_S, k_S].astype(np.float32),
        weight_S=(weight_N2[which_S, 0] * bytes_S).astype(np.float32),
        row_S=row_S, boundary_S=boundary_S,
        value_S=np.where(labelled_S, value_S, 0.0).astype(np.float32),
        value_weight_S=np.where(labelled_S, weight_N2[which_S, 1], 0.0).astype(np.float32),
        temperature=temperature)


def nbytes(batch: TextBatch | StepBatch) -> int:
    """Bytes a batch takes in transit."""
    return sum(v.nbytes for f in fields(batch) if isinstance(v := getattr(batch, f.name), np.ndarray))
