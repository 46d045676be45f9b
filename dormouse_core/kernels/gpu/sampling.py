# mypy: disable-error-code="no-untyped-def"
"""One sampled byte a row in Triton, with its log-prob and the entropy it was drawn at. Contract: rollouts/sampling.py.

The log-softmax is taken in fp64 and rounded once to fp32; the byte is the inverse CDF in fp64 of those rounded log-probs at
the uniform of dormouse_core.seeding, Philox4x32-10 at (step, byte) under the row's seed, bit for bit. The running sum adds in
another order than the CPU's, so a byte can differ where the uniform meets a border of the CDF within 2^-50.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def uniform(seed, step, byte):
    """Philox4x32-10 at counter (step, byte, 0, 0): 53 bits of the first two words as a float64 in [0, 1)."""
    zero = step.to(tl.uint32) * 0
    first, second, _, _ = tl.philox(seed, step.to(tl.uint32), byte.to(tl.uint32), zero, zero)
    return ((first.to(tl.uint64) << 21) ^ (second.to(tl.uint64) >> 11)).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _sample(
    logits_ptr, may_write_ptr, temperature_ptr, seed_ptr, step_ptr, byte_ptr, avoid_ptr, chosen_ptr, log_prob_ptr, entropy_ptr,
    V: tl.constexpr, BV: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, BV)
    allowed = tl.load(may_write_ptr + v, mask=v < V, other=0) != 0
    temperature = tl.load(temperature_ptr + row)
    greedy = temperature == 0.0
    # fp64 division rounded to fp32 is the fp32 division; a / b alone would compile to an approximate one
    divisor = tl.where(greedy, 1.0, temperature).to(tl.float32).to(tl.float64)
    logit = tl.load(logits_ptr + row * V + v, mask=v < V, other=0.0).to(tl.float32).to(tl.float64)
    x = tl.where(allowed, (logit / divisor).to(tl.float32).to(tl.float64), float("-inf"))
    x -= tl.max(x, 0)
    log_prob = (x - tl.log(tl.sum(tl.exp(x), 0))).to(tl.float32)
    wide = log_prob.to(tl.float64)
    prob = tl.exp(wide)
    entropy = -tl.sum(prob * tl.maximum(wide, -1e30), 0)
    prob = tl.where(v == tl.load(avoid_ptr + row), 0.0, prob)
    running = tl.cumsum(prob, 0)
    total = tl.sum(tl.where(v == BV - 1, running, 0.0), 0)
    below = (total.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)
    drop = uniform(tl.load(seed_ptr + row), tl.load(step_ptr + row), tl.load(byte_ptr + row))
    point = tl.minimum(drop * total, tl.where(total > 0.0, below, 0.0))
    # a byte without mass is never chosen, whatever rounding does to the running sum
    last = tl.max(tl.where(prob > 0.0, v, 0), 0)
    drawn = tl.min(tl.where((running > point) & (prob > 0.0), v, last), 0)
    likeliest = tl.min(tl.where(prob == tl.max(prob, 0), v, BV), 0)
    chosen = tl.where(greedy, likeliest, drawn)
    tl.store(chosen_ptr + row, chosen.to(tl.uint8))
    tl.store(log_prob_ptr + row, tl.sum(tl.where(v == chosen, log_prob, 0.0), 0))
    tl.store(entropy_ptr + row, entropy.to(tl.float32))


def sample(
    logits_XV: Tensor, may_write_V: Tensor, temperature_X: Tensor, seed_X: Tensor, step_X: Tensor, byte_X: Tensor, avoid_X: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(byte uint8, log_prob fp32, entropy fp32). temperature_X float64; seed, step, byte and avoid int64, avoid -1 for none."""
    n, vocabulary = logits_XV.shape
    out = [torch.empty(n, dtype=d, device=logits_XV.device) for d in (torch.uint8, torch.float32, torch.float32)]
    if n:
        args = [x.contiguous() for x in (logits_XV, may_write_V, temperature_X, seed_X, step_X, byte_X, avoid_X)]
        _sample[(n,)](*args, *out, V=vocabulary, BV=triton.next_power_of_2(vocabulary))
    return out[0], out[1], out[2]
