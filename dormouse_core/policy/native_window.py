"""The iterations over a window, and the gradients of each, as one compiled call an iteration.

For fixed depth, fp32, narrow experts, heads of 16, 32 or 64, on a CPU with a C++ compiler; anything else runs `block.iterate_window`,
counted as `kernel.native_window`. The numbers are that function's within rounding, gradients included; a row's bits do not depend on
its batch. The first window of a policy's shape in a process is preceded by a comparison of both on drawn inputs.
Not here: the code (kernels/native/window.cpp); what comes before and behind (native_entrance.py, native_readout.py).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.encoding import VOCABULARY
from dormouse_core.kernels.dispatch import close
from dormouse_core.kernels.native.build import Unavailable
from dormouse_core.kernels.native.held import Held
from dormouse_core.policy.block import Fused, LoopBlock, controller_width, iterate_window, narrow
from dormouse_core.policy.compiled import Compiled, own
from dormouse_core.policy.entrance import Entered, Entrance, Memory
from dormouse_core.policy.layout import BLOCK, Shape, in_segments, out_segments, pad_rows, padded, panels, shape_of, unsupported_window
from dormouse_core.policy.native_entrance import NativeEntrance
from dormouse_core.policy.native_readout import NativeReadout
from dormouse_core.policy.norms import summed
from dormouse_core.policy.products import WINDOW_TILE
from dormouse_core.policy.readout import Readout
from dormouse_core.policy.state import CONTEXT

HELD = Held("kernel.native_window", "computes windows")
CHUNK = 16
"""Bytes between two states that are kept (recurrence.h)."""
_PROBE = (2, 40)
"""Rows and bytes of the comparison; the second row ends early."""
_PROBES = 4
"""Draws until both forms choose the same experts for every byte: equal scores may be told apart by a rounding."""

_KEPT = ("norm", "scale", "read", "decay", "attended", "out_scale", "inner", "shared", "mixed", "joined")


def _kept(s: Shape, rows: int, like: Tensor) -> tuple[Tensor, ...]:
    """Buffers in the order of _KEPT."""
    widths = (s.d, 1, s.x_in, s.d, s.d, s.heads, s.ffn, padded(s.shared), s.top_k * s.rank, s.x_out)
    return tuple(like.new_empty(rows, width) for width in widths)


class _Iterations(torch.autograd.Function):
    """T times c = h + e, n = RMS(c), the input product, attention, memory, experts, the output product; names as in
    `block.iterate_window`. Gradients of what all iterations read are summed where they are computed."""

    @staticmethod
    def forward(
        ctx: Any, native: "NativeWindow", h_BLD: Tensor, step_TD: Tensor, start_NP: Tensor, key_ND: Tensor, value_ND: Tensor,
        state_TBHKV: Tensor, *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        s, (batch, length, _), iterations = native.compiled.shape, h_BLD.shape, len(step_TD)
        rows, new, memory = batch * length, h_BLD.new_empty, (start_NP, key_ND, value_ND)
        learns = native.learns and any(ctx.needs_input_grad)
        index, gate = new(iterations, rows, s.top_k, dtype=torch.int32), new(iterations, rows, s.top_k)
        after_TBLD, final = new(iterations, *h_BLD.shape), state_TBHKV.clone(memory_format=torch.contiguous_format)
        entry = new(iterations, batch, s.heads, -(-length // CHUNK), s.width, s.width) if learns else None
        kept = [_kept(s, rows if learns else min(rows, BLOCK), h_BLD) for _ in range(iterations if learns else 1)]
        before = h_BLD
        for t in range(iterations):
            native.compiled.call(
                "iterate", (step_TD[t], *native.laid_out), (before, *memory), kept[t if learns else 0], (index[t], gate[t]), batch, length,
                native.ends_B, final[t], None if entry is None else entry[t], after_TBLD[t], native.scratch,
            )  # fmt: skip
            before = after_TBLD[t]
        if learns:
            ctx.native = native
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(step_TD, h_BLD, after_TBLD, *memory, index, gate, entry, *(x for each in kept for x in each))
        ctx.mark_non_differentiable(index)
        return summed(after_TBLD) / iterations, after_TBLD, final, index

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_mean_BLD: Tensor | None, d_after_TBLD: Tensor | None, d_state: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        step_TD, h_BLD, after_TBLD, start, key, value, index, gate, entry, *kept = ctx.saved_tensors
        native, (batch, length, _d), new = ctx.native, h_BLD.shape, h_BLD.new_zeros
        s = native.compiled.shape
        rank, small = -(-s.rank // 8) * 8, padded(s.shared)
        d_state, d_step_TD, d_h = own(d_state, entry[:, :, :, 0]), torch.zeros_like(step_TD), torch.zeros_like(h_BLD)
        of_each = None if d_mean_BLD is None else d_mean_BLD / len(step_TD)
        shared = tuple(torch.zeros_like(x) for x in (start, key, value))
        d_in, d_decay, d_bias, d_out, d_shared_v, d_shared_u, d_up, d_down = sums = (
            new(s.x_in, s.d), new(s.width, s.d), new(s.d), new(s.x_out, s.d), new(small, s.ffn), new(small, s.ffn),
            new(s.experts, rank, s.ffn), new(s.experts, rank, s.ffn),
        )  # fmt: skip
        for t in reversed(range(len(step_TD))):
            for d in (of_each, None if d_after_TBLD is None else d_after_TBLD[t]):
                if d is not None:
                    d_h += d
            before = after_TBLD[t - 1] if t else h_BLD
            native.compiled.call(
                "iterate_backward", (step_TD[t], *native.laid_out), (before, start, key, value),
                tuple(kept[t * len(_KEPT) : (t + 1) * len(_KEPT)]), (index[t], gate[t]), batch, length, native.ends_B, entry[t], d_state[t],
                (d_h, *shared, d_step_TD[t], *sums), native.scratch,
            )  # fmt: skip
        experts = (d[:, : s.rank].transpose(1, 2) for d in (d_up, d_down))
        return (None, d_h, d_step_TD, *shared, d_state, d_in, d_decay.t(), d_bias, d_out.t(), d_shared_v[: s.shared].t(),
                d_shared_u[: s.shared].t(), *experts)


class NativeWindow:
    """The block's weights as one forward's iterations take them, padded to the native widths."""

    def __init__(
        self, entrance: Entrance, fused: Fused, readout: Readout, config: PolicyConfig, bias_E: Tensor, ends_B: Tensor | None
    ) -> None:
        control, self.learns = controller_width(config), torch.is_grad_enabled()
        self.weights = w_in, w_decay, b_decay, w_out, shared_v, shared_u, up_EFR, down_EFR = (
            pad_rows(fused.w_in_XD, in_segments(config, control)), fused.w_decay_DK, fused.b_decay_D,
            pad_rows(fused.w_out_DX.t(), out_segments(config)).t(), fused.shared_v_FR, fused.shared_u_FR, fused.factors.up_v_EFR,
            fused.factors.down_u_EFR,
        )  # fmt: skip
        with torch.no_grad():
            down_ERF, up_ERF = down_EFR.transpose(1, 2), up_EFR.transpose(1, 2)
            forward = (panels(w_in), panels(w_decay), b_decay.contiguous(), panels(w_out), panels(shared_v), panels(shared_u.t()),
                       panels(up_EFR), panels(down_ERF), bias_E.contiguous())
            backward = (panels(w_in.t()), panels(w_decay.t()), panels(w_out.t()), panels(shared_v.t()), panels(shared_u), panels(up_ERF),
                        panels(down_EFR)) if self.learns else ()  # fmt: skip
        shape = shape_of(config, control, readout.u_DR.shape[1])
        self.compiled, self.laid_out = Compiled("window", shape), forward + backward
        self.ends_B = None if ends_B is None else ends_B.to(torch.int64).contiguous()
        self.scratch = w_in.new_empty(self.compiled.count("scratch_size"))
        self.enter, self.read_out = NativeEntrance(entrance, shape), NativeReadout(readout, shape)

    def iterate(self, entered: Entered, step_TD: Tensor, state_TBHKV: Tensor) -> tuple[Tensor, ...]:
        """Of T iterations: (mean of h behind each [B, L, D], h behind each [T, B, L, D], final states [T, B, H, K, V], chosen experts
        [T, N, k])."""
        (h_BLD, start_NP, memory), s = entered, self.compiled.shape
        of_window = (len(step_TD), len(h_BLD), s.heads, s.width, s.width)
        if state_TBHKV.shape != of_window or state_TBHKV.dtype is not torch.float32:
            raise ValueError(f"a state of {tuple(state_TBHKV.shape)} in {state_TBHKV.dtype} is none of this window: {of_window} in float32")
        taken = (h_BLD, step_TD, start_NP, *memory)
        found: tuple[Tensor, ...] = _Iterations.apply(self, *(x.contiguous() for x in taken), state_TBHKV, *self.weights)
        return found


def native_window(entrance: Entrance, block: LoopBlock, fused: Fused, readout: Readout, config: PolicyConfig, bias_E: Tensor,
                  ends_B: Tensor | None) -> NativeWindow | None:
    """What runs this forward, or None where torch does."""
    key = repr(config)
    if HELD.refused(key):
        return None
    reason = unsupported_window(config, narrow(config))
    if reason is None:
        try:
            made = NativeWindow(entrance, fused, readout, config, bias_E, ends_B)
            if HELD.proven(key) or HELD.holds(key, _differs(entrance, block, fused, readout, config, bias_E)):
                return made
            return None
        except Unavailable as error:
            reason = str(error)
    HELD.refuse(key, reason)
    HELD.refused(key)
    return None


def _differs(
    entrance: Entrance, block: LoopBlock, fused: Fused, readout: Readout, config: PolicyConfig, bias_E: Tensor
) -> str | None:
    """How what drawn bytes bring in, an iteration, what is read out of it and all gradients differ from torch's with these weights; None
    where they agree."""
    wrong: str | None = None
    for seed in range(_PROBES):
        native, plain = (_probed(entrance, block, fused, readout, config, bias_E, seed, compiled) for compiled in (True, False))
        if torch.equal(native[0].sort(-1).values.long(), plain[0].sort(-1).values):
            return close(*zip(*((a / b.abs().max().clamp_min(1e-6), b / b.abs().max().clamp_min(1e-6))
                                for a, b in zip(native[1:], plain[1:], strict=True)), strict=True))  # fmt: skip
        wrong = "experts are chosen differently"
    return wrong


@torch.inference_mode(False)
@torch.enable_grad()
def _probed(
    entrance: Entrance, block: LoopBlock, fused: Fused, readout: Readout, config: PolicyConfig, bias_E: Tensor, seed: int, compiled: bool
) -> tuple[Tensor, ...]:
    """(chosen experts, what enters, h, state, hidden, logits, gradients of the first state and all weights) of one iteration of either
    form. What enters is shaken: weights at their start say little about memory and controller."""
    rng, (batch, length), c = torch.Generator().manual_seed(seed), _PROBE, config
    ends_B, bytes_BX = torch.tensor([length, length // 2 + 1]), torch.randint(0, VOCABULARY, (batch, CONTEXT + length), generator=rng)
    state = torch.randn(batch, c.n_heads, c.head_dim, c.head_dim, generator=rng).requires_grad_()
    read = (*entrance, fused.w_in_XD, fused.w_decay_DK, fused.b_decay_D, fused.w_out_DX, fused.shared_v_FR, fused.shared_u_FR,
            *fused.factors[:2], *readout)
    weights = [w.detach().clone().requires_grad_() for w in read]
    entrance, readout = Entrance(*weights[:4]), Readout(*weights[-3:])
    w_in, w_decay, b_decay, w_out, shared_v, shared_u, up, down = weights[4:-3]
    fused = fused._replace(w_in_XD=w_in, w_decay_DK=w_decay, b_decay_D=b_decay, w_out_DX=w_out, shared_v_FR=shared_v, shared_u_FR=shared_u,
                           factors=fused.factors._replace(up_v_EFR=up, down_u_EFR=down))
    window = NativeWindow(entrance, fused, readout, c, bias_E, ends_B) if compiled else None
    h, start, memory = window.enter(bytes_BX) if window else entrance.of(bytes_BX, c.engram_rows, c.norm_eps, WINDOW_TILE)
    control, entering = controller_width(c), (h, start[:, : controller_width(c)], *memory)
    h, start, key, value = (x + torch.randn(x.shape, generator=rng) for x in entering)
    if window:
        entered = Entered(h, F.pad(start, (0, padded(control) - control)), Memory(key, value))
        mean, (out,), (final,), (chosen,) = window.iterate(entered, block.iter_embed[:1].detach(), state.unsqueeze(0))
        hidden, logits = window.read_out(mean)
    else:
        past_BL = torch.arange(length) >= ends_B.unsqueeze(1)
        out, final, (chosen, _) = iterate_window(h, 0, start, Memory(key, value), state, bias_E, block, fused, c, past_BL)
        hidden, logits = readout.of(out, c.norm_eps, WINDOW_TILE)
    outputs = (*entering, out, final, hidden, logits)
    found = torch.autograd.grad(outputs, [state, *weights], [torch.randn(x.shape, generator=rng) for x in outputs])
    return chosen, *(x.detach() for x in outputs), *found
