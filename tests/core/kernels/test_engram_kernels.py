"""The n-gram tables in Triton: what is read, and what flows back."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dormouse_core.kernels.engram import gather
from tests.core.kernels.conftest import Kernels
from tests.core.kernels.test_kda_kernels import FEW


def case(n: int, n_rows: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, n_rows, (n, 3), generator=rng), torch.randn(n_rows, width, generator=rng, dtype=dtype)


@FEW
@given(n=st.integers(1, 11), n_rows=st.integers(1, 40), width=st.integers(1, 20), seed=st.integers(0, 99))
def test_gathered_rows_are_the_tables_bit_for_bit(kernels: Kernels, n: int, n_rows: int, width: int, seed: int) -> None:
    rows_N3, table_RM = case(n, n_rows, width, seed)
    assert torch.equal(kernels(gather, rows_N3, table_RM), table_RM[rows_N3].flatten(1))


@FEW
@given(n=st.integers(1, 8), n_rows=st.integers(1, 12), width=st.integers(1, 20), seed=st.integers(0, 99))
def test_a_rows_gradient_is_the_sum_over_all_that_read_it_and_zero_where_nobody_did(
    kernels: Kernels, n: int, n_rows: int, width: int, seed: int
) -> None:
    rows_N3, table_RM = case(n, n_rows, width, seed)
    table_RM.requires_grad_()
    weight = torch.randn(n, 3 * width, generator=torch.Generator().manual_seed(seed))
    (got,) = torch.autograd.grad((kernels(gather, rows_N3, table_RM) * weight).sum(), table_RM)
    wide = table_RM.detach().double().requires_grad_()
    (want,) = torch.autograd.grad((wide[rows_N3].flatten(1) * weight).sum(), wide)
    torch.testing.assert_close(got, want.float(), atol=1e-6, rtol=1e-6)


def test_a_window_of_one_byte_repeated_piles_up_on_three_rows(kernels: Kernels) -> None:
    rows_N3 = torch.tensor([[0, 4, 9]]).expand(30, 3).contiguous()
    table_RM = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (got,) = torch.autograd.grad(kernels(gather, rows_N3, table_RM).sum(), table_RM)
    assert got[[0, 4, 9]].eq(30).all() and got.sum() == 3 * 4 * 30


def test_a_row_outside_the_table_reads_nan_and_nothing_of_its_neighbours(kernels: Kernels) -> None:
    rows_N3, table_RM = case(4, 8, 4, seed=2)
    kernels(gather, rows_N3, table_RM)  # the first call is compared with torch, which would refuse
    rows_N3[1, 2], rows_N3[3, 0] = 8, -1
    got = kernels(gather, rows_N3, table_RM).view(4, 3, 4)
    assert got[1, 2].isnan().all() and got[3, 0].isnan().all() and got.isnan().sum() == 8
