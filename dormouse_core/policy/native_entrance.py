"""What bytes bring into the loop, and its gradients, as one compiled call each (kernels/native/entrance.cpp).

Part of what `policy/native_window.py` runs, counts and holds to torch.
"""

import ctypes
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse_core.kernels.native.build import library
from dormouse_core.policy.engram import ORDERS
from dormouse_core.policy.entrance import Entered, Entrance, Memory
from dormouse_core.policy.layout import BLOCK, Shape, address, own, panels, pointers
from dormouse_core.policy.state import CONTEXT


class _Plan(NamedTuple):
    library: ctypes.CDLL
    shape: Shape
    laid_out: tuple[Tensor, ...]

    def run(self, name: str, bytes_BX: Tensor, kept: tuple[Tensor, ...], *more: Any) -> int:
        batch, width = bytes_BX.shape
        sizes = ctypes.c_int64(batch), ctypes.c_int64(width - CONTEXT)
        done: int = getattr(self.library, name)(ctypes.byref(self.shape), pointers(*self.laid_out), address(bytes_BX), *sizes,
                                                pointers(*kept), *more)
        return done


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, bytes_BX: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        s, (batch, width), new = plan.shape, bytes_BX.shape, weights[0].new_empty
        rows = batch * (width - CONTEXT)
        kept = new(rows, len(ORDERS), dtype=torch.int64), new(rows, s.d), new(rows), new(rows, s.memory), new(rows)
        out = h, start, key, value = new(batch, width - CONTEXT, s.d), new(rows, s.control), new(rows, s.d), new(rows, s.d)
        done = plan.run("enter", bytes_BX, kept, *map(address, out))
        if done != rows:
            raise IndexError(f"{int(bytes_BX[:, CONTEXT:].reshape(-1)[done])} at {done} of a window is no byte")
        if any(ctx.needs_input_grad):
            ctx.plan, ctx.weights = plan, [w.shape for w in weights]
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(bytes_BX, h, start, key, value, *kept)
        return h, start, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        bytes_BX, h, start, key, value, *kept = ctx.saved_tensors
        s, new = ctx.plan.shape, h.new_zeros
        gradients = tuple(own(d, like) for d, like in zip(given, (h, start, key, value), strict=True))
        d_embedding, d_table, d_start, d_key, d_value = sums = (
            new(ctx.weights[0]), new(ctx.weights[1]), new(s.control, s.d), new(s.d, s.memory), new(s.d, s.memory)
        )  # fmt: skip
        scratch = h.new_empty(BLOCK, s.d + s.memory)
        ctx.plan.run("enter_backward", bytes_BX, tuple(kept), address(key), pointers(*gradients, *sums), address(scratch))
        width = len(ORDERS) * s.dim
        return None, None, d_embedding, d_table, d_start[: ctx.weights[2][0]], torch.cat((d_key[:, :width], d_value[:, :width]))


class NativeEntrance:
    """The weights as one forward reads them."""

    def __init__(self, weights: Entrance, shape: Shape) -> None:
        self.weights = weights
        with torch.no_grad():
            key, value = weights.engram_XM.chunk(2)
            start = F.pad(weights.start_PD, (0, 0, 0, shape.control - len(weights.start_PD)))
            laid_out = (weights.embedding_VD.contiguous(), weights.table_RM.contiguous(),
                        *(panels(w) for w in (start, key, value, start.t(), key.t(), value.t())))
        self.plan = _Plan(library("entrance"), shape, laid_out)
        self.plan.library.enter.restype = ctypes.c_int64

    def __call__(self, bytes_BX: Tensor) -> Entered:
        """`Entrance.of`, its start padded to the native width. Raises IndexError where an id is no byte."""
        h_BLD, start_NP, key_ND, value_ND = _Enter.apply(self.plan, bytes_BX.contiguous(), *self.weights)
        return Entered(h_BLD, start_NP, Memory(key_ND, value_ND))
