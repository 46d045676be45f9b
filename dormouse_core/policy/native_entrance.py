"""What bytes bring into the loop, and its gradients, as one compiled call each (kernels/native/entrance.cpp).

Part of what `policy/native_window.py` runs, counts and holds to torch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse_core.policy.compiled import Compiled, own
from dormouse_core.policy.engram import ORDERS
from dormouse_core.policy.entrance import Entered, Entrance, Memory
from dormouse_core.policy.layout import BLOCK, Shape, panels
from dormouse_core.policy.state import CONTEXT


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, native: "NativeEntrance", bytes_BX: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        s, batch, length, new = native.compiled.shape, len(bytes_BX), bytes_BX.shape[1] - CONTEXT, weights[0].new_empty
        rows = batch * length
        kept = new(rows, len(ORDERS), dtype=torch.int64), new(rows, s.d), new(rows), new(rows, s.memory), new(rows)
        out = h, start, key, value = new(batch, length, s.d), new(rows, s.control), new(rows, s.d), new(rows, s.d)
        done = native.compiled.count("enter", native.laid_out, bytes_BX, batch, length, kept, *out)
        if done != rows:
            raise IndexError(f"{int(bytes_BX[:, CONTEXT:].reshape(-1)[done])} at {done} of a window is no byte")
        if native.learns and any(ctx.needs_input_grad):
            ctx.native = native
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(bytes_BX, h, start, key, value, *kept)
        return h, start, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        bytes_BX, h, start, key, value, *kept = ctx.saved_tensors
        native, new, (batch, length, _) = ctx.native, h.new_zeros, h.shape
        s = native.compiled.shape
        gradients = tuple(own(d, like) for d, like in zip(given, (h, start, key, value), strict=True))
        d_embedding, d_table, d_start, d_key, d_value = sums = (
            *map(torch.zeros_like, native.weights[:2]), new(s.control, s.d), new(s.d, s.memory), new(s.d, s.memory)
        )  # fmt: skip
        scratch = h.new_empty(BLOCK, s.d + s.memory)
        native.compiled.call("enter_backward", native.laid_out, bytes_BX, batch, length, tuple(kept), key, (*gradients, *sums), scratch)
        control, width = len(native.weights.start_PD), len(ORDERS) * s.dim
        return None, None, d_embedding, d_table, d_start[:control], torch.cat((d_key[:, :width], d_value[:, :width]))


class NativeEntrance:
    """The weights as one forward reads them."""

    def __init__(self, weights: Entrance, shape: Shape) -> None:
        self.weights, self.learns = weights, torch.is_grad_enabled()
        with torch.no_grad():
            key, value = weights.engram_XM.chunk(2)
            start = F.pad(weights.start_PD, (0, 0, 0, shape.control - len(weights.start_PD)))
            read = (start, key, value, *((start.t(), key.t(), value.t()) if self.learns else ()))
            self.laid_out = (weights.embedding_VD.contiguous(), weights.table_RM.contiguous(), *map(panels, read))
        self.compiled = Compiled("entrance", shape)

    def __call__(self, bytes_BX: Tensor) -> Entered:
        """`Entrance.of`, its start padded to the native width. Raises IndexError where an id is no byte."""
        h_BLD, start_NP, key_ND, value_ND = _Enter.apply(self, bytes_BX.contiguous(), *self.weights)
        return Entered(h_BLD, start_NP, Memory(key_ND, value_ND))
