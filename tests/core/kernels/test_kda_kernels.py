"""KDA in Triton against a taped float64 recurrence and fla-core's naive one."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dormouse_core.kernels import dispatch
from dormouse_core.kernels.kda import kda_chunked, kda_step
from dormouse_core.kernels.seen import SEEN, forget_counts
from tests.core.kernels.conftest import Kernels
from tests.core.kernels.test_kda import draw, flas_naive_module, taped

SHAPES = {"rows": st.integers(1, 3), "length": st.integers(1, 9), "width": st.sampled_from([4, 7, 16, 20]),
          "chunk": st.sampled_from([1, 3, 5, 8]), "seed": st.integers(0, 99)}
FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FEWER = settings(FEW, max_examples=4)
"""The interpreter takes about ten milliseconds a program: gradients run many."""


def in_chunks(x: Tensor, chunk: int) -> Tensor:
    x = torch.cat((x, x.new_zeros(len(x), -x.shape[1] % chunk, *x.shape[2:])), 1)
    return x.unflatten(1, (-1, chunk)).transpose(0, 1).contiguous()


def chunked(kernels: Kernels, inputs: tuple[Tensor, ...], chunk: int) -> tuple[Tensor, Tensor]:
    *windows, state = inputs
    out, final = kernels(kda_chunked, *(in_chunks(x, chunk) for x in windows), state)
    return out.transpose(0, 1).flatten(1, 2)[:, : windows[0].shape[1]], final


def double(inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return [x.double() for x in inputs]


@FEW
@given(**SHAPES)
def test_chunked_kernel_is_the_float64_recurrence_for_any_shape_and_ragged_end(
    kernels: Kernels, rows: int, length: int, width: int, chunk: int, seed: int
) -> None:
    inputs = draw(rows, length, width, seed)
    for got, want in zip(chunked(kernels, inputs, chunk), taped(*double(inputs)), strict=True):
        torch.testing.assert_close(got, want.float(), atol=3e-6, rtol=1e-5)


@FEWER
@given(**SHAPES)
def test_chunked_kernels_gradients_are_the_float64_recurrences(
    kernels: Kernels, rows: int, length: int, width: int, chunk: int, seed: int
) -> None:
    inputs = [x.requires_grad_() for x in draw(rows, length, width, seed, torch.float64)]
    weight = torch.randn(rows, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def gradients(out: Tensor, final: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((out * weight).sum() + final.square().sum(), inputs)

    for got, want in zip(gradients(*chunked(kernels, tuple(inputs), chunk)), gradients(*taped(*inputs)), strict=True):
        torch.testing.assert_close(got, want, atol=1e-11, rtol=1e-9)


def test_chunked_kernel_at_full_chunks_matches_flas_naive_recurrence(kernels: Kernels) -> None:
    naive = flas_naive_module()
    inputs = draw(2, 37, 32, seed=1)
    fla = [x.unflatten(0, (1, 2)).transpose(1, 2) for x in inputs[:5]]
    want, state = naive.naive_recurrent_kda(*fla, scale=1.0, initial_state=inputs[5].unflatten(0, (1, 2)), output_final_state=True)
    out, final = chunked(kernels, inputs, 16)
    torch.testing.assert_close(out, want.transpose(1, 2).flatten(0, 1), atol=3e-6, rtol=1e-5)
    torch.testing.assert_close(final, state.flatten(0, 1), atol=3e-6, rtol=1e-5)


def test_every_decay_at_the_floor_leaves_kernel_and_gradients_exact(kernels: Kernels) -> None:
    inputs = [x.requires_grad_() for x in draw(2, 20, 16, seed=3, floor=True)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    (out, final), (want, want_final) = chunked(kernels, tuple(inputs), 16), taped(*wide)
    torch.testing.assert_close(out, want.float(), atol=1e-5, rtol=1e-5)
    for got, exact in zip(torch.autograd.grad(out.sum() + final.sum(), inputs), torch.autograd.grad(want.sum() + want_final.sum(), wide),
                          strict=True):
        torch.testing.assert_close(got, exact.float(), atol=1e-4, rtol=1e-4)


def test_a_key_repeated_through_a_chunk_with_full_writes_loses_no_digits(kernels: Kernels) -> None:
    q, k, v, g, beta, state = draw(1, 16, 16, seed=4)
    inputs = (q, k[:, :1].expand_as(k), v, torch.zeros_like(g), torch.ones_like(beta), state)
    for got, want in zip(chunked(kernels, inputs, 16), taped(*double(inputs)), strict=True):
        torch.testing.assert_close(got, want.float(), atol=3e-6, rtol=1e-5)


@FEW
@given(batch=st.integers(1, 3), heads=st.integers(1, 3), width=st.sampled_from([4, 7, 16, 40]), seed=st.integers(0, 99))
def test_step_kernel_moves_the_state_in_place_as_the_float64_recurrence_does(
    kernels: Kernels, batch: int, heads: int, width: int, seed: int
) -> None:
    q, k, v, g, beta, state = draw(batch * heads, 2, width, seed)
    want, want_state = taped(*double((q, k, v, g, beta, state)))
    rows, moving = (batch, heads), state.clone().unflatten(0, (batch, heads)).to(kernels.device)
    for t in range(2):
        qk, alpha = torch.stack((q[:, t], k[:, t]), 1).unflatten(0, rows), g[:, t].exp().unflatten(0, rows)
        got = kernels(kda_step, qk, v[:, t].unflatten(0, rows), alpha, beta[:, t, None].unflatten(0, rows), moving)
        torch.testing.assert_close(got.flatten(0, 1), want[:, t].float(), atol=3e-6, rtol=1e-5)
    torch.testing.assert_close(moving.cpu().flatten(0, 1), want_state.float(), atol=3e-6, rtol=1e-5)


def test_step_kernel_reads_arguments_laid_out_otherwise(kernels: Kernels) -> None:
    q, k, v, g, beta, state = draw(6, 1, 8, seed=5)
    want, _ = taped(*double((q, k, v, g, beta, state)))
    pair = torch.stack((q[:, 0], k[:, 0])).unflatten(1, (2, 3)).permute(1, 2, 0, 3)
    value = v[:, 0].unflatten(0, (2, 3)).transpose(0, 1).contiguous().transpose(0, 1)
    got = kernels(kda_step, pair, value, g[:, 0].exp().unflatten(0, (2, 3)), beta.unflatten(0, (2, 3)), state.unflatten(0, (2, 3)))
    torch.testing.assert_close(got.flatten(0, 1), want[:, 0].float(), atol=3e-6, rtol=1e-5)


def test_a_head_too_wide_for_registers_is_a_counted_fallback_with_the_right_result() -> None:
    inputs = draw(1, 2, 160, seed=6)
    forget_counts()
    with dispatch.requested():
        out, _ = kda_chunked(*(in_chunks(x, 2) for x in inputs[:5]), inputs[5])
    torch.testing.assert_close(out[0], taped(*inputs)[0], atol=1e-5, rtol=1e-5)
    assert SEEN.arms() == {"kernel.kda_chunked": "0/1"} and "160" in SEEN.lines[0]
    forget_counts()


def test_bf16_inputs_keep_an_fp32_state(kernels: Kernels) -> None:
    *windows, state = draw(2, 11, 16, seed=7)
    narrow = [x.bfloat16() for x in windows]
    out, final = chunked(kernels, (*narrow, state), 8)
    want, want_state = taped(*(x.double() for x in narrow), state.double())
    assert out.dtype == torch.bfloat16 and final.dtype == torch.float32
    torch.testing.assert_close(out.double(), want, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(final.double(), want_state, atol=1e-5, rtol=1e-5)
