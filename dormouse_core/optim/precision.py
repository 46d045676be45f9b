"""Rows of a parameter in fp32, whatever it is held in: masters beside bf16 weights, or stochastic rounding instead of them.

bf16 keeps 8 bits of a number: a step below 0.4 % of a weight is lost to nearest rounding, and most steps of RL are below it.
A master is an fp32 copy that takes the steps; the weight is its nearest bf16. Stochastic rounding keeps no copy: a value between
two bf16 neighbours becomes the upper one with the probability of its distance from the lower, so the mean of many steps is exact.
The randomness is a function of (seed, name, step, row, column): cutting a tensor into chunks changes no bit, nor does the device.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from dormouse_core.seeding import key

Index = slice | Tensor
"""Entries along the leading dimension: a slice is worked on in place, int64 numbers are gathered and put back."""
ALL = slice(None)
CHUNK = 1 << 20
"""Elements of a stack worked on at once: bounds the fp32 temporaries, and stays in a CPU's cache."""


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


_GAMMA, _MIX1, _MIX2 = _signed(0x9E3779B97F4A7C15), _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def noise(stream: int, row_N: Tensor, width: int) -> Tensor:
    """int32 [N, width], each in [0, 65536): SplitMix64 (Steele et al., OOPSLA 2014) at the counter of (row, column), four
    numbers a word. `stream` is a `seeding.key`."""
    words = -(-width // 4)
    counter_NW = row_N.unsqueeze(1) * words + torch.arange(1, words + 1, device=row_N.device)
    z = counter_NW * _GAMMA + stream
    z = (z ^ _shifted(z, 30)) * _MIX1
    z = (z ^ _shifted(z, 27)) * _MIX2
    z ^= _shifted(z, 31)
    return (z.view(torch.int16)[:, :width]).int() & 0xFFFF


def stochastic_round(x: Tensor, noise: Tensor) -> Tensor:
    """fp32 -> bf16: up or down with the probabilities that make the mean exact; noise uniform in [0, 65536), int32, same shape.

    Values that bf16 holds exactly, and values that are not finite, stay what they are.
    """
    up = ((x.view(torch.int32) + noise) & -65536).view(torch.float32)
    return torch.where(x.isfinite(), up, x).bfloat16()


def take(t: Tensor, index: Index) -> Tensor:
    """Entries of t in fp32. Of an fp32 tensor, a slice is a view: changes made in place are made to t."""
    return (t if index is ALL else t[index] if isinstance(index, slice) else t.index_select(0, index)).float()


def put(t: Tensor, index: Index, rows: Tensor, stream: int) -> None:
    """Write what `take` gave back after changes in place. stream names the noise of tensors held in bf16."""
    if t.dtype == torch.float32:
        if not isinstance(index, slice):
            t.index_copy_(0, index, rows)
        return
    number_N = torch.arange(t.shape[0], device=t.device)[index]
    flat_NW = rows.reshape(len(number_N), -1)
    rounded = stochastic_round(flat_NW, noise(stream, number_N, flat_NW.shape[1])).view(rows.shape)
    t[index] = rounded


@dataclass(slots=True)
class Slot:
    """One parameter as a rule sees it: a stack of entries along the leading dimension, its state, and how it is held."""

    name: str
    parameter: nn.Parameter
    shape: tuple[int, ...]
    low_precision: Literal["masters", "stochastic"]
    seed: int
    state: dict[str, Tensor] = field(default_factory=dict)

    @property
    def weight(self) -> Tensor:
        """The parameter as a stack."""
        return self.parameter.detach().view(self.shape)

    @property
    def grad(self) -> Tensor:
        """Its gradient as a stack; the caller has made sure there is one."""
        assert self.parameter.grad is not None
        return self.parameter.grad.reshape(self.shape)

    def read(self, index: Index) -> Tensor:
        """Entries in fp32, to be changed in place and handed to `write`."""
        if self.parameter.dtype == torch.float32 or self.low_precision == "stochastic":
            return take(self.weight, index)
        if "master" not in self.state:
            self.state["master"] = self.parameter.detach().float()
        return take(self.state["master"].view(self.shape), index)

    def write(self, index: Index, rows: Tensor, step: int) -> None:
        """Entries changed by step number `step`, back to where they are held."""
        whole = self.parameter.dtype == torch.float32
        if whole or self.low_precision == "stochastic":
            put(self.weight, index, rows, 0 if whole else self.stream("weight", step))  # a hash a tensor is not free
            return
        put(self.state["master"].view(self.shape), index, rows, 0)
        self.weight[index] = rows.bfloat16()

    def stream(self, purpose: str, step: int) -> int:
        """Names the noise of one tensor at one step."""
        return key("stochastic rounding", self.seed, purpose, self.name, step)


def chunks(slot: Slot, live: Index) -> list[Index]:
    """The live entries in parts of at most CHUNK elements (one entry at least)."""
    size = max(1, CHUNK // math.prod(slot.shape[1:]))
    if isinstance(live, slice):
        return [slice(lo, min(lo + size, slot.shape[0])) for lo in range(0, slot.shape[0], size)]
    return list(live.split(size)) if len(live) else []
