"""The readout and the head over a window, and the gradients of both, as one compiled call each (kernels/native/readout.cpp).

Part of what `policy/native_window.py` runs, counts and holds to torch.
"""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse_core.encoding import VOCABULARY
from dormouse_core.kernels.native.build import library
from dormouse_core.policy.layout import BLOCK, Shape, address, own, padded, panels, pointers
from dormouse_core.policy.readout import Readout


class _Plan(NamedTuple):
    library: ctypes.CDLL
    shape: Shape
    laid_out: tuple[Tensor, ...]

    def run(self, name: str, mean_ND: Tensor, kept: tuple[Tensor, ...], *more: Any) -> None:
        rows = ctypes.c_int64(len(mean_ND))
        getattr(self.library, name)(ctypes.byref(self.shape), pointers(*self.laid_out), address(mean_ND), rows, pointers(*kept), *more)


class _ReadOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, mean_ND: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        (rows, d), new = mean_ND.shape, mean_ND.new_empty
        kept = new(rows, padded(plan.shape.readout)), new(rows, d), new(rows)
        hidden_ND, logits_NV = new(rows, d), new(rows, VOCABULARY)
        plan.run("read_out", mean_ND, kept, address(hidden_ND), address(logits_NV))
        if any(ctx.needs_input_grad):
            ctx.plan = plan
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(mean_ND, *kept)
        return hidden_ND, logits_NV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden_ND: Tensor | None, d_logits_NV: Tensor | None) -> tuple[Tensor | None, ...]:
        mean_ND, *kept = ctx.saved_tensors
        d, rank = mean_ND.shape[1], ctx.plan.shape.readout
        d_mean_ND, d_hidden_ND = torch.empty_like(mean_ND), own(d_hidden_ND, mean_ND)
        d_u_RD, d_v_DR, d_head_VD = sums = (
            mean_ND.new_zeros(padded(rank), d), mean_ND.new_zeros(d, padded(rank)), mean_ND.new_zeros(VOCABULARY, d)
        )  # fmt: skip
        d_logits_NV = mean_ND.new_zeros(len(mean_ND), VOCABULARY) if d_logits_NV is None else d_logits_NV.contiguous()
        scratch = mean_ND.new_empty(BLOCK, padded(rank))
        ctx.plan.run("read_out_backward", mean_ND, tuple(kept), address(d_logits_NV), pointers(d_mean_ND, d_hidden_ND, *sums),
                     address(scratch))
        return None, d_mean_ND, d_u_RD[:rank].t(), d_v_DR[:, :rank], d_head_VD


class NativeReadout:
    """The weights as one forward reads them."""

    def __init__(self, weights: Readout, shape: Shape) -> None:
        self.weights = weights
        with torch.no_grad():
            u, v, head = weights
            laid_out = tuple(panels(w) for w in (u.t(), v, head, u, v.t(), head.t()))
        self.plan = _Plan(library("readout"), shape, laid_out)

    def __call__(self, mean_XD: Tensor) -> tuple[Tensor, Tensor]:
        """(hidden [..., D], logits [..., V])."""
        hidden_ND, logits_NV = _ReadOut.apply(self.plan, mean_XD.flatten(0, -2).contiguous(), *self.weights)
        return hidden_ND.view_as(mean_XD), logits_NV.view(*mean_XD.shape[:-1], VOCABULARY)
