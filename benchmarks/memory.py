"""Activations of a forward and backward: the allocator's trace beside the plan's estimate, in KiB a byte of text.

    python -m benchmarks.memory [--dtype float32|bfloat16] [--recompute]

Each shape is traced at 512 and at 2,048 bytes of text by torch's profiler; the difference is what a byte costs, without what the
weights cost. The factors in `dormouse_core/learning/memory.py` were fitted to this table; the last column is plan over trace.
"""

import argparse
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.learning.batches import text_batch
from dormouse_core.learning.loss import text_loss
from dormouse_core.learning.memory import activation_bytes
from dormouse_core.policy.model import Policy

BASE: dict[str, Any] = {"d_model": 128, "n_heads": 4, "head_dim": 32, "max_iter": 3, "n_experts": 8, "rank": 8, "d_ffn": 256,
                        "shared_rank": 16, "engram_rows": 256, "engram_dim": 8, "readout_rank": 32}
SHAPES: list[dict[str, Any]] = [
    {}, {"d_model": 256, "n_heads": 8}, {"n_heads": 8, "head_dim": 16}, {"max_iter": 6}, {"n_experts": 24}, {"n_experts": 64},
    {"rank": 16}, {"d_ffn": 1024}, {"moe_topk": 4}, {"d_model": 256, "n_heads": 8, "max_iter": 6, "d_ffn": 512},
    {"d_model": 256, "n_heads": 4, "head_dim": 64, "n_experts": 96, "d_ffn": 768, "max_iter": 5},
]  # fmt: skip


def peak(config: PolicyConfig, rows: int, length: int) -> int:
    """Most bytes allocated at once in a forward and backward, by the order of allocations and releases."""
    policy = Policy(config)
    with torch.no_grad():
        for i, p in enumerate(policy.parameters()):
            p.normal_(std=0.05, generator=torch.Generator().manual_seed(i))
    draw = np.random.Generator(np.random.Philox(0))
    text = [draw.integers(0, 256, length).astype(np.uint8) for _ in range(rows)]
    target_L = np.arange(length) > 0
    (batch,) = text_batch(text, [target_L] * rows, [np.zeros_like(target_L)] * rows, 0.0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        loss, _ = text_loss(policy, batch, config.deep_loss)
        torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
    assert trace.profiler is not None, "the profiler has run"
    events = trace.profiler.kineto_results.events()
    sizes = [n for _, n in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")]
    return int(np.cumsum(sizes).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--recompute", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'shape':76s} {'trace':>8s} {'plan':>8s} {'ratio':>6s}")
    for shape in SHAPES:
        config = PolicyConfig.model_validate({**BASE, **shape, "dtype": options.dtype, "recompute": options.recompute})
        traced = (peak(config, 8, 256) - peak(config, 4, 128)) / (2048 - 512)
        planned = activation_bytes(config, deep=True)
        print(f"{shape or 'base'!s:76s} {traced / 1024:8.1f} {planned / 1024:8.1f} {planned / traced:6.2f}")


if __name__ == "__main__":
    main()
