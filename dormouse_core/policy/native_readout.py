"""The readout and the head over a window, and the gradients of both, as one compiled call each (kernels/native/readout.cpp).

Part of what `policy/native_window.py` runs, counts and holds to torch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse_core.encoding import VOCABULARY
from dormouse_core.policy.compiled import Compiled, own
from dormouse_core.policy.layout import BLOCK, Shape, padded, panels
from dormouse_core.policy.readout import Readout


class _ReadOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, native: "NativeReadout", mean_ND: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        (rows, d), new = mean_ND.shape, mean_ND.new_empty
        kept = new(rows, padded(native.compiled.shape.readout)), new(rows, d), new(rows)
        hidden_ND, logits_NV = new(rows, d), new(rows, VOCABULARY)
        native.compiled.call("read_out", native.laid_out, mean_ND, rows, kept, hidden_ND, logits_NV)
        if native.learns and any(ctx.needs_input_grad):
            ctx.native = native
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(mean_ND, *kept)
        return hidden_ND, logits_NV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden_ND: Tensor | None, d_logits_NV: Tensor | None) -> tuple[Tensor | None, ...]:
        mean_ND, *kept = ctx.saved_tensors
        native, (rows, d) = ctx.native, mean_ND.shape
        rank = native.compiled.shape.readout
        d_mean_ND, d_hidden_ND = torch.empty_like(mean_ND), own(d_hidden_ND, mean_ND)
        d_u_RD, d_v_DR, d_head_VD = sums = (
            mean_ND.new_zeros(padded(rank), d), mean_ND.new_zeros(d, padded(rank)), mean_ND.new_zeros(VOCABULARY, d)
        )  # fmt: skip
        d_logits_NV = mean_ND.new_zeros(rows, VOCABULARY) if d_logits_NV is None else d_logits_NV.contiguous()
        scratch = mean_ND.new_empty(BLOCK, padded(rank))
        native.compiled.call("read_out_backward", native.laid_out, mean_ND, rows, tuple(kept), d_logits_NV, (d_mean_ND, d_hidden_ND, *sums),
                             scratch)
        return None, d_mean_ND, d_u_RD[:rank].t(), d_v_DR[:, :rank], d_head_VD


class NativeReadout:
    """The weights as one forward reads them."""

    def __init__(self, weights: Readout, shape: Shape) -> None:
        self.weights, self.learns = weights, torch.is_grad_enabled()
        with torch.no_grad():
            u, v, head = weights
            self.laid_out = tuple(map(panels, (u.t(), v, head, *((u, v.t(), head.t()) if self.learns else ()))))
        self.compiled = Compiled("readout", shape)

    def __call__(self, mean_XD: Tensor) -> tuple[Tensor, Tensor]:
        """(hidden [..., D], logits [..., V])."""
        hidden_ND, logits_NV = _ReadOut.apply(self, mean_XD.flatten(0, -2).contiguous(), *self.weights)
        return hidden_ND.view_as(mean_XD), logits_NV.view(*mean_XD.shape[:-1], VOCABULARY)
