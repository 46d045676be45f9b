"""The attention arm: projections of KDA and the two ways to run it, over a window and for one byte.

q, k, v pass SiLU; q and k are L2-normalised per head, q is scaled by K^-1/2. The decay logit goes through a bottleneck of
one head's width; g = -5 sigmoid(exp(A_h) z) is floored at -5. The output is RMS-normalised per head and gated.
The four [d, d] inputs, beta, the output norm and W_o are folded into the block's two products (policy/fuse.py).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.kernels import kda as recurrence
from dormouse_core.policy.norms import rms_normalise, sigmoid_rows, silu_rows

DECAY_FLOOR = -5.0
OUT_EPS = 1e-5
L2_EPS = 1e-6


class Kda(nn.Module):
    """Parameters of the arm. decay_up [hd, d], decay_down [d, hd], decay_bias [d], decay_rate [H] (A), beta [H, d]."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        d, heads, width = config.d_model, config.n_heads, config.head_dim
        self.query = nn.Parameter(torch.empty(d, d))
        self.key = nn.Parameter(torch.empty(d, d))
        self.value = nn.Parameter(torch.empty(d, d))
        self.gate = nn.Parameter(torch.empty(d, d))
        self.out = nn.Parameter(torch.empty(d, d))
        self.decay_up = nn.Parameter(torch.empty(width, d))
        self.decay_down = nn.Parameter(torch.empty(d, width))
        self.decay_bias = nn.Parameter(torch.empty(d))
        self.decay_rate = nn.Parameter(torch.empty(heads))
        self.beta = nn.Parameter(torch.empty(heads, d))
        self.out_norm = nn.Parameter(torch.empty(width))

    def rate_D(self) -> Tensor:
        """exp(A_h), clamped, once per channel; fp32."""
        return self.decay_rate.float().clamp(-10.0, 20.0).exp().repeat_interleave(self.out_norm.shape[0])


def _chunked_view(x: Tensor) -> Tensor:
    """[..., G, B, H, C, K] storage -> view [B, G, C, ..., H, K] (no leading dimension: [B, G, C, H, K])."""
    return x.permute(1, 0, 3, 2, 4) if x.dim() == 5 else x.permute(2, 1, 4, 0, 3, 5)


def _to_chunks(dst: Tensor, src_BLX: Tensor, fill: float = 0.0) -> None:
    """Copy a window into chunk-major storage; what is missing of the last chunk gets `fill`."""
    view = _chunked_view(dst)
    chunk, split = view.shape[2], view.shape[3:]
    whole, ragged = divmod(src_BLX.shape[1], chunk)
    view[:, :whole].copy_(src_BLX[:, : whole * chunk].unflatten(1, (whole, chunk)).unflatten(-1, split))
    if ragged:
        view[:, whole, :ragged].copy_(src_BLX[:, whole * chunk :].unflatten(-1, split))
        view[:, whole, ragged:].fill_(fill)


def _from_chunks(src: Tensor, length: int) -> Tensor:
    """Chunk-major storage -> contiguous window [B, L, X]."""
    view = _chunked_view(src)
    chunk, split = view.shape[2], view.shape[3:]
    whole, ragged = divmod(length, chunk)
    dst_BLX = src.new_empty(view.shape[0], length, split.numel())
    dst_BLX[:, : whole * chunk].unflatten(1, (whole, chunk)).unflatten(-1, split).copy_(view[:, :whole])
    if ragged:
        dst_BLX[:, whole * chunk :].unflatten(-1, split).copy_(view[:, whole, :ragged])
    return dst_BLX


class _Window(torch.autograd.Function):
    """SiLU, unit keys and queries, decay, the chunked recurrence and the output's norm, with one backward for all of it:
    everything happens in chunk-major storage, so a window is laid out once on the way in and once on the way out."""

    @staticmethod
    def forward(
        ctx: Any, qkv_BLX: Tensor, decay_BLD: Tensor, beta_BLH: Tensor, state_BHKV: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        (batch, length), (heads, width) = qkv_BLX.shape[:2], state_BHKV.shape[1:3]
        n_chunks, rows = -(-length // chunk), batch * heads
        raw = qkv_BLX.new_empty(4, n_chunks, batch, heads, chunk, width)
        _to_chunks(raw[:3], qkv_BLX)
        _to_chunks(raw[3], decay_BLD, fill=float("-inf"))
        beta = beta_BLH.new_empty(n_chunks, batch, heads, chunk, 1)
        _to_chunks(beta, beta_BLH)
        raw, beta = raw.view(4, n_chunks, rows, chunk, width), beta.view(n_chunks, rows, chunk)
        active, open_ = silu_rows(raw[:3]), sigmoid_rows(raw[3])
        inverse = torch.linalg.vecdot(active[:2], active[:2]).add_(L2_EPS).rsqrt_().unsqueeze(-1)
        inverse[0] *= width**-0.5
        unit = active[:2] * inverse
        state = state_BHKV.reshape(rows, width, width)
        out, state, saved = recurrence.forward(unit[0], unit[1], active[2], open_, beta, state, DECAY_FLOOR)
        scale = torch.linalg.vecdot(out, out).div_(width).add_(OUT_EPS).rsqrt_().unsqueeze(-1)
        out = out * scale
        ctx.save_for_backward(raw, open_, inverse, unit, out, scale, *saved)
        ctx.shape = (batch, length, heads)
        return _from_chunks(out.view(n_chunks, batch, heads, chunk, width), length), state.view_as(state_BHKV)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_attended_BLD: Tensor, d_state_BHKV: Tensor) -> tuple[Tensor | None, ...]:
        raw, open_, inverse, unit, out, scale, *saved = ctx.saved_tensors
        batch, length, heads = ctx.shape
        n_chunks, rows, chunk, width = out.shape
        chunked = (n_chunks, batch, heads, chunk, -1)
        d_out = torch.empty_like(out)
        _to_chunks(d_out.view(chunked), d_attended_BLD)
        d_out.addcmul_(out, torch.linalg.vecdot(out, d_out).unsqueeze(-1), value=-1 / width).mul_(scale)
        d_q, d_k, d_v, d_g, d_beta, d_state = recurrence.backward(saved, d_out, d_state_BHKV.reshape(rows, width, width), DECAY_FLOOR)
        d_raw = torch.empty_like(raw)
        for i, (d_unit, size) in enumerate(((d_q, float(width)), (d_k, 1.0))):
            d_unit.addcmul_(unit[i], torch.linalg.vecdot(unit[i], d_unit).unsqueeze(-1), value=-size)
            torch.mul(d_unit, inverse[i], out=d_raw[i])
        d_raw[2] = d_v
        d_qkv = torch.ops.aten.silu_backward(d_raw[:3], raw[:3])
        d_decay = torch.ops.aten.sigmoid_backward(d_g, open_)
        return (
            _from_chunks(d_qkv.view(3, *chunked), length),
            _from_chunks(d_decay.view(chunked), length),
            _from_chunks(d_beta.view(chunked), length),
            d_state.view_as(d_state_BHKV),
            None,
        )


def attend_window(
    qkv_BLX: Tensor, decay_BLD: Tensor, beta_BLH: Tensor, state_BHKV: Tensor, chunk: int, past_BL: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """qkv before SiLU [B, L, 3d], decay logits [B, L, d], beta in (0, 1). Returns (o, RMS-normalised per head [B, L, d], final state).

    past_BL: bytes that leave no trace in the state: no decay, nothing written. The recurrence is fp32 whatever qkv is.
    """
    dtype, qkv_BLX = qkv_BLX.dtype, qkv_BLX.float()
    if past_BL is not None:
        past_BL1 = past_BL.unsqueeze(-1)
        qkv_BLX, beta_BLH = qkv_BLX.masked_fill(past_BL1, 0.0), beta_BLH.masked_fill(past_BL1, 0.0)
        decay_BLD = decay_BLD.masked_fill(past_BL1, float("-inf"))
    attended_BLD, state_BHKV = _Window.apply(qkv_BLX, decay_BLD, beta_BLH, state_BHKV, chunk)
    return attended_BLD.to(dtype), state_BHKV


def attend_byte(qkv_BX: Tensor, decay_BD: Tensor, beta_BH: Tensor, state_BHKV: Tensor) -> Tensor:
    """One byte: updates the state in place, returns the normalised output [B, d]. No gradient."""
    batch, heads, width, _ = state_BHKV.shape
    active_BH3K = silu_rows(qkv_BX.float()).view(batch, 3, heads, width).transpose(1, 2)
    pair_BH2K = active_BH3K[:, :, :2]
    inverse_BH21 = (pair_BH2K * pair_BH2K).sum(-1, keepdim=True).add_(L2_EPS).rsqrt_()
    inverse_BH21[:, :, 0] *= width**-0.5
    alpha_BHK = (sigmoid_rows(decay_BD) * DECAY_FLOOR).exp_().view(batch, heads, width)
    out_BHV = recurrence.kda_step(pair_BH2K * inverse_BH21, active_BH3K[:, :, 2], alpha_BHK, beta_BH.unsqueeze(-1), state_BHKV)
    return rms_normalise(out_BHV, OUT_EPS).reshape(batch, heads * width).to(qkv_BX.dtype)
