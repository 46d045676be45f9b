"""The attention arm: projections of KDA and the two ways to run it, over a window and for one byte.

q, k, v pass SiLU; q and k are L2-normalised per head, q is scaled by K^-1/2. The decay logit goes through a bottleneck of
one head's width; g = -5 sigmoid(exp(A_h) z) is floored at -5. The output is RMS-normalised per head and gated.
The four [d, d] inputs, beta, the output norm and W_o are folded into the block's two products (policy/fuse.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.kernels.kda import kda_chunked, kda_step
from dormouse_core.policy.norms import l2_normalise, rms_normalise

DECAY_FLOOR = -5.0
OUT_EPS = 1e-5


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
        """exp(A_h), clamped, once per channel."""
        return self.decay_rate.clamp(-10.0, 20.0).exp().repeat_interleave(self.out_norm.shape[0])


def attend_window(
    qkv_BLX: Tensor, decay_BLD: Tensor, beta_BLH: Tensor, state_BHKV: Tensor, heads: int, chunk: int
) -> tuple[Tensor, Tensor]:
    """qkv before SiLU [B, L, 3d], decay logits, beta in (0, 1). Returns (o, RMS-normalised per head [B, L, d], final state)."""
    batch, length, width3 = qkv_BLX.shape
    width = width3 // 3 // heads
    pad = -length % chunk
    n_chunks = (length + pad) // chunk
    qkv_BLX, g_BLD = F.silu(qkv_BLX), torch.sigmoid(decay_BLD) * DECAY_FLOOR
    if pad:
        qkv_BLX, g_BLD, beta_BLH = (F.pad(x, (0, 0, 0, pad)) for x in (qkv_BLX, g_BLD, beta_BLH))
    rows = batch * heads
    qkv = qkv_BLX.view(batch, n_chunks, chunk, 3, heads, width).permute(3, 1, 0, 4, 2, 5).reshape(3, n_chunks, rows, chunk, width)
    g = g_BLD.view(batch, n_chunks, chunk, heads, width).permute(1, 0, 3, 2, 4).reshape(n_chunks, rows, chunk, width)
    beta = beta_BLH.view(batch, n_chunks, chunk, heads).permute(1, 0, 3, 2).reshape(n_chunks, rows, chunk)
    q, k = l2_normalise(qkv[:2]).unbind(0)
    out, state = kda_chunked(q * width**-0.5, k, qkv[2], g, beta, state_BHKV.reshape(rows, width, width))
    out = rms_normalise(out, OUT_EPS).view(n_chunks, batch, heads, chunk, width).permute(1, 0, 3, 2, 4)
    return out.reshape(batch, n_chunks * chunk, heads * width)[:, :length], state.view(batch, heads, width, width)


def attend_byte(qkv_BX: Tensor, decay_BD: Tensor, beta_BH: Tensor, state_NKV: Tensor, heads: int) -> Tensor:
    """One byte: updates the state [B * H, K, V] in place, returns the normalised output [B, d]."""
    batch, width3 = qkv_BX.shape
    width = width3 // 3 // heads
    q, k, v = F.silu(qkv_BX).view(batch, 3, heads, width).unbind(1)
    q, k = l2_normalise(q) * width**-0.5, l2_normalise(k)
    alpha = (torch.sigmoid(decay_BD) * DECAY_FLOOR).exp_().view(-1, width)
    out = kda_step(
        q.reshape(-1, width), k.reshape(-1, width), v.reshape(-1, width), alpha, beta_BH.reshape(-1, 1), state_NKV
    )
    return rms_normalise(out, OUT_EPS).view(batch, heads * width)
