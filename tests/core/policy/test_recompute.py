"""A call that keeps its arguments alone: the same gradient, less kept, nothing imported. On the policy: test_dtype.py."""

import subprocess
import sys
import weakref

import pytest
import torch
from torch import Tensor

from dormouse_core.policy.recompute import recomputed


def bent(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).square() @ w


def drawn() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(8, 8, generator=rng, requires_grad=True), torch.randn(8, 8, generator=rng, requires_grad=True)


def test_chained_calls_give_the_gradients_of_plain_ones_bit_for_bit() -> None:
    x, w = drawn()
    plain = torch.autograd.grad(bent(bent(x, w), w).sum(), (x, w))
    again = torch.autograd.grad(recomputed(bent, recomputed(bent, x, w), w).sum(), (x, w))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_the_function_runs_once_more_for_all_its_tensors_and_stops_behind_the_last() -> None:
    calls: list[str] = []

    def told(x: Tensor) -> Tensor:
        calls.append("begun")
        out = x.exp().sin()
        calls.append("ended")
        return out + 1

    out = recomputed(told, drawn()[0])
    assert calls == ["begun", "ended"]
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert calls == ["begun", "ended", "begun"], "sin saves its input before it computes; nothing behind it is of use"


def test_nothing_of_the_inside_outlives_the_call_and_nothing_the_backward() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def watched(x: Tensor) -> Tensor:
        inside = x.exp()
        alive.append(weakref.ref(inside))
        return inside.sin()

    x, _ = drawn()
    out = recomputed(watched, x)
    assert alive[0]() is None
    torch.autograd.grad(out.sum(), x)
    assert len(alive) == 2 and alive[1]() is None


def test_a_function_that_does_less_the_second_time_is_refused() -> None:
    turns = iter((3, 1))

    def fickle(x: Tensor) -> Tensor:
        for _ in range(next(turns)):
            x = x.sin()
        return x

    out = recomputed(fickle, drawn()[0])
    with pytest.raises(RuntimeError, match="fickle saved fewer tensors"):
        out.sum().backward()  # type: ignore[no-untyped-call]


def test_recomputing_imports_no_compiler() -> None:
    said = subprocess.run([sys.executable, "-c", (
        "import sys, torch\nfrom dormouse_core.config.resolve import resolve\nfrom dormouse_core.policy.model import build_policy\n"
        "policy = build_policy(resolve('tiny', ['policy.recompute=true']).policy, 1)\n"
        "policy(torch.arange(32)[None]).logits_BLV.sum().backward()\nprint('torch._dynamo' in sys.modules)")],
        capture_output=True, text=True, check=True)  # fmt: skip
    assert said.stdout.strip() == "False"
