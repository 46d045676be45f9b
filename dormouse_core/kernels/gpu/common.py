# mypy: disable-error-code="no-untyped-def"
"""What the Triton kernels share: exact products, and the sizes blocks are padded to.

Products are taken in full fp32 (no TF32), in fp64 where the tensors are fp64 (the interpreter's tests).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def dot(a, b, ACC: tl.constexpr):
    """a @ b without a reduced-precision path."""
    return tl.dot(a, b, out_dtype=ACC, input_precision="ieee")


def accumulator(x: Tensor) -> tl.dtype:
    """The dtype a kernel computes in."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def padded(n: int, least: int = 16) -> int:
    """The power of two a block of n is padded to; tensor cores take no less than 16."""
    return max(least, triton.next_power_of_2(n))
