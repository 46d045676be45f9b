"""Gradients of the kernels against central differences of the kernels themselves, in float64, along random directions."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dormouse_core.kernels.engram import gather
from dormouse_core.kernels.experts import mix_narrow, mix_wide
from dormouse_core.kernels.kda import kda_chunked
from tests.core.kernels import test_expert_kernels, test_kda
from tests.core.kernels.conftest import Kernels
from tests.core.kernels.test_kda_kernels import in_chunks

STEP = 1e-5


def kda_case() -> tuple[Callable[..., Tensor], list[Tensor]]:
    *windows, state = test_kda.draw(2, 6, 4, seed=1, dtype=torch.float64)

    def loss(*inputs: Tensor) -> Tensor:
        out, final = kda_chunked(*inputs)
        return out.square().sum() + final.sin().sum()

    return loss, [*(in_chunks(x, 3) for x in windows), state]


def wide_case() -> tuple[Callable[..., Tensor], list[Tensor]]:
    index, (x, *rest) = test_expert_kernels.routed(5, 4, 2, "few", 2), test_expert_kernels.case(5, 4, 6, 7, 3, 2, torch.float64)
    return lambda x, *rest: mix_wide(x, index.to(x.device), *rest).square().sum(), [x, *rest]


def narrow_case() -> tuple[Callable[..., Tensor], list[Tensor]]:
    index, tensors = test_expert_kernels.routed(5, 4, 2, "pile", 3), test_expert_kernels.case(5, 4, 6, 7, 3, 3, torch.float64)
    code = torch.randn(5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return lambda x, *rest: mix_narrow(x, index.to(x.device), *rest).square().sum(), [code, tensors[1], tensors[3], tensors[4]]


def gather_case() -> tuple[Callable[..., Tensor], list[Tensor]]:
    rows = torch.tensor([[0, 2, 3], [0, 0, 3]])
    return lambda table: gather(rows.to(table.device), table).sin().sum(), [torch.randn(5, 3, dtype=torch.float64,
                                                                                         generator=torch.Generator().manual_seed(4))]


@pytest.mark.parametrize("case", [kda_case, wide_case, narrow_case, gather_case], ids=["kda", "wide", "narrow", "gather"])
def test_kernel_gradients_pass_finite_differences(kernels: Kernels, case: Callable[[], tuple[Callable[..., Tensor], list[Tensor]]]) -> None:
    function, leaves = case()
    leaves = [x.requires_grad_() for x in leaves]
    gradients = torch.autograd.grad(kernels(function, *leaves), leaves)
    rng = torch.Generator().manual_seed(5)
    for moved, gradient in enumerate(gradients):
        along = torch.randn(leaves[moved].shape, dtype=torch.float64, generator=rng)
        ends = []
        with torch.no_grad():
            for side in (1, -1):
                ends.append(kernels(function, *(x + side * STEP * along if i == moved else x for i, x in enumerate(leaves))))
        torch.testing.assert_close((ends[0] - ends[1]) / (2 * STEP), (gradient * along).sum(), rtol=1e-6, atol=1e-8)
