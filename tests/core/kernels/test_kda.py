"""KDA: the chunked form against the recurrence, and both against fla-core's naive recurrence."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from dormouse_core.kernels.kda import kda_chunked, kda_recurrent

CHUNK = 16


def draw(rows: int, length: int, width: int, seed: int, dtype: torch.dtype = torch.float32, floor: bool = False) -> tuple[Tensor, ...]:
    """(q scaled, k unit, v, g, beta) [N, L, ...] and a non-zero state [N, K, V]. `floor`: every decay at -5."""
    rng = torch.Generator().manual_seed(seed)
    q, k, v, g = (torch.randn(rows, length, width, generator=rng, dtype=dtype) for _ in range(4))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g = torch.full_like(g, -5.0) if floor else -5 * torch.sigmoid(g - 2)
    beta = torch.rand(rows, length, generator=rng, dtype=dtype)
    return q * width**-0.5, k, v, g, beta, torch.randn(rows, width, width, generator=rng, dtype=dtype)


def flas_naive_module() -> ModuleType:
    """fla's reference file by itself: importing the whole package takes fifteen seconds and adds nothing here."""
    package = importlib.util.find_spec("fla")
    if package is None or not package.submodule_search_locations:
        pytest.skip("fla-core is not installed: its naive KDA is the oracle of this test (pip install -e '.[dev]')")
    path = Path(package.submodule_search_locations[0], "ops", "kda", "naive.py")
    spec = importlib.util.spec_from_file_location("fla_naive_kda", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_chunks(x: Tensor) -> Tensor:
    """[N, L, ...] -> contiguous [G, N, C, ...], zero-padded at the end."""
    pad = -x.shape[1] % CHUNK
    x = torch.cat((x, x.new_zeros(len(x), pad, *x.shape[2:])), 1)
    return x.unflatten(1, (-1, CHUNK)).transpose(0, 1).contiguous()


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    out, final = kda_chunked(*(in_chunks(x) for x in (q, k, v, g, beta)), state)
    return out.transpose(0, 1).flatten(1, 2)[:, : q.shape[1]], final


def test_outputs_and_final_state_match_flas_naive_recurrence_over_several_chunks_from_a_nonzero_state() -> None:
    naive = flas_naive_module()
    q, k, v, g, beta, state = draw(6, 53, 32, seed=1)
    # fla: [B, T, H, K]; the six rows are 2 sequences of 3 heads, and its q arrives unscaled
    fla = [x.unflatten(0, (2, 3)).transpose(1, 2) for x in (q, k, v, g, beta)]
    want, want_state = naive.naive_recurrent_kda(*fla, scale=1.0, initial_state=state.unflatten(0, (2, 3)), output_final_state=True)
    want = want.transpose(1, 2).flatten(0, 1)
    for form in (chunked, kda_recurrent):
        out, final = form(q, k, v, g, beta, state)
        torch.testing.assert_close(out, want, atol=3e-6, rtol=1e-5)
        torch.testing.assert_close(final, want_state.flatten(0, 1), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 48, 61])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 3e-6)])
def test_chunked_equals_recurrent_with_a_ragged_last_chunk(length: int, dtype: torch.dtype, tolerance: float) -> None:
    inputs = draw(5, length, 16, seed=length, dtype=dtype)
    for got, want in zip(chunked(*inputs), kda_recurrent(*inputs), strict=True):
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_chunked_equals_recurrent_with_every_decay_at_the_floor(dtype: torch.dtype, tolerance: float) -> None:
    inputs = draw(4, 40, 32, seed=3, dtype=dtype, floor=True)
    for got, want in zip(chunked(*inputs), kda_recurrent(*inputs), strict=True):
        assert torch.isfinite(got).all()
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_gradients_stay_finite_with_every_decay_at_the_floor() -> None:
    inputs = [x.requires_grad_() for x in draw(4, 40, 32, seed=4, floor=True)]
    out, final = chunked(*inputs)
    (out.sum() + final.sum()).backward()
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in inputs)


def taped(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence, one byte at a time, under autograd."""
    out = []
    for t in range(q.shape[1]):
        kept = g[:, t].exp().unsqueeze(-1) * state
        delta = beta[:, t, None] * (v[:, t] - (k[:, t].unsqueeze(-1) * kept).sum(1))
        state = kept + k[:, t].unsqueeze(-1) * delta.unsqueeze(1)
        out.append((q[:, t].unsqueeze(-1) * state).sum(1))
    return torch.stack(out, 1), state


def test_written_out_backward_is_the_gradient_of_the_recurrence() -> None:
    inputs = [x.requires_grad_() for x in draw(3, 37, 8, seed=5, dtype=torch.float64)]
    weights = torch.randn(3, 37, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(6))

    def gradients(form: object) -> list[Tensor]:
        out, final = form(*inputs)  # type: ignore[operator]
        return list(torch.autograd.grad((out * weights).sum() + final.square().sum(), inputs))

    for got, want in zip(gradients(chunked), gradients(taped), strict=True):
        torch.testing.assert_close(got, want, atol=1e-11, rtol=1e-9)


def test_a_chunk_that_could_leave_fp32_is_refused() -> None:
    q = torch.zeros(1, 1, 32, 4)
    with pytest.raises(ValueError, match="chunk 32"):
        kda_chunked(q, q, q, q, q[..., 0], torch.zeros(1, 4, 4))
