"""Compile every kernel for a GPU that is not there: `python -m tests.core.kernels.compiled CAPABILITY`.

The interpreter accepts programs that the compiler refuses. Here each launch is compiled, down to the machine code of a CUDA
device of the given compute capability, instead of being run: with the sizes of nano and b1, in fp32 and bf16. Prints a line a kernel.
"""

import inspect
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from dormouse_core.kernels.experts import plan
from dormouse_core.kernels.gpu import engram, experts, kda, sampling

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float64: "*fp64", torch.int64: "*i64", torch.bool: "*i1",
            torch.uint8: "*u8"}


def compile_instead(capability: int) -> None:
    """From here on, launching a kernel compiles it and leaves its results as they were allocated."""

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        options = {k: keywords.pop(k) for k in list(keywords) if k not in self.arg_names}
        named = inspect.signature(self.fn).bind(*args, **keywords).arguments
        constants = {p.name for p in self.params if p.is_constexpr}
        signature = {name: "constexpr" if name in constants else POINTERS[x.dtype] if isinstance(x, torch.Tensor)
                     else "fp32" if isinstance(x, float) else "i32" for name, x in named.items()}
        source = ASTSource(self, signature, {(self.arg_names.index(name),): named[name] for name in constants})
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        size, shared = len(made.asm["cubin"]), made.metadata.shared
        sys.stdout.write(f"{self.fn.__name__:16s} sm_{capability}  machine code {size:7,d} bytes  shared {shared:7,d} bytes\n")

    JITFunction.run = run


def launch_all(rank: int, d: int, f: int, n_experts: int, width: int, wide: torch.dtype) -> None:
    rows, chunk, n = 2, 16, 40
    x = torch.zeros(2, rows, chunk, width)
    state, beta = torch.zeros(rows, width, width), torch.zeros(2, rows, chunk)
    kda.forward(x, x, x, x, beta, state, -5.0)
    kda.backward(x, x, x, x, beta, torch.zeros(3, rows, width, width), x, state, -5.0)
    kda.step(torch.zeros(1, rows, 2, width), x[:1, :, 0], x[:1, :, 0], beta[:1, :, :1], state[None])
    index_N2 = torch.arange(2 * n).remainder(n_experts).view(n, 2)
    p = plan(index_N2, n_experts)
    inner_w, outer_w = torch.zeros(n_experts, f, rank, dtype=wide), torch.zeros(n_experts, d, rank, dtype=wide)
    code = torch.zeros(2 * n, rank)
    experts.grouped_in(torch.zeros(n, d, dtype=wide), p.row_A, outer_w, p.start_E, p.tiles_E)
    experts.grouped_out(code, outer_w, p.start_E, p.tiles_E)
    experts.grouped_weight(torch.zeros(n, d, dtype=wide), p.row_A, code, p.start_E, wide)
    experts.inner(code, inner_w, inner_w, p.start_E, p.tiles_E)
    experts.inner_backward(code, inner_w, inner_w, code, p.start_E, p.tiles_E)
    words, table = torch.zeros(n, 3, dtype=torch.int64), torch.zeros(64, 32, dtype=wide)
    engram.scatter(words, engram.gather(words, table)[0], 64)
    name = torch.zeros(n, dtype=torch.int64)
    sampling.sample(torch.zeros(n, 256), torch.ones(256, dtype=torch.bool), torch.ones(n, dtype=torch.float64), name, name, name, name)


if __name__ == "__main__":
    compile_instead(int(sys.argv[1]))
    launch_all(rank=8, d=128, f=192, n_experts=8, width=32, wide=torch.float32)
    launch_all(rank=64, d=2048, f=5632, n_experts=16, width=64, wide=torch.bfloat16)
