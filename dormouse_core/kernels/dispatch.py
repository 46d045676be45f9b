"""Which of an operation's two forms runs: torch, or the Triton kernel. Counted, and never a wrong number.

The Triton form is wanted for a CUDA tensor, and for a CPU tensor inside `requested()`, where Triton's interpreter runs it
(TRITON_INTERPRET=1 set before triton is imported). Everything else takes the torch form and pays one attribute look-up.
A wanted kernel that cannot run (no triton, no device, out of shared memory, a shape it does not know) falls back to torch,
loudly and counted. The first call of every specialisation is checked against torch on its own arguments; where they
disagree the kernel is out for the rest of the process.
Not here: the operations (one a file beside this one), their kernels (gpu/, imported when first wanted), the counts (seen.py).
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dormouse_core.kernels.seen import SEEN as SEEN
from dormouse_core.kernels.seen import forget_counts as forget_counts
from dormouse_core.ledger import DormouseError

Results = tuple[Tensor, ...]

_proven: set[tuple[Any, ...]] = set()
_refused: set[tuple[Any, ...]] = set()
_requested = False


def close(got: Results, want: Results) -> str | None:
    """None where every tensor agrees within rounding of its dtype, relative to the largest number; else what differs."""
    for i, (a, b) in enumerate((x.detach(), y.detach()) for x, y in zip(got, want, strict=True)):
        if a.shape != b.shape:
            return f"result {i} has shape {tuple(a.shape)}, the reference {tuple(b.shape)}"
        if not a.numel():
            continue
        limit = (3e-2 if torch.bfloat16 in (a.dtype, b.dtype) else 1e-3) * max(1.0, float(b.abs().max()))
        error = float((a.double() - b.double()).abs().max())
        if not error <= limit:
            return f"result {i} is off by {error:.2g}, more than {limit:.2g}"
    return None


@dataclass(frozen=True)
class Op:
    """An operation with two forms. `reference` takes tensors and numbers and returns a tuple of tensors; `kernel` is
    "file.function" in kernels/gpu and has the same signature."""

    name: str
    kernel: str
    reference: Callable[..., Results]
    mutates: tuple[int, ...] = ()
    """Arguments that are written in place."""
    whole: tuple[int, ...] = ()
    """Arguments whose whole shape makes another program; of others only the last of two or more dimensions does."""
    agree: Callable[[Results, Results], str | None] = close
    """How the kernel's results are held to the reference's: None, or what differs."""


def wanted(x: Tensor) -> bool:
    """Whether the Triton form is asked for where `x` lives."""
    return x.is_cuda or _requested


@contextmanager
def requested() -> Iterator[None]:
    """Inside, CPU tensors ask for the Triton form too. Process-wide: for tests and benchmarks."""
    global _requested
    before, _requested = _requested, True
    try:
        yield
    finally:
        _requested = before


@cache
def _launcher(kernel: str) -> Callable[..., Results]:
    file, _, function = kernel.partition(".")
    launcher: Callable[..., Results] = getattr(importlib.import_module(f"dormouse_core.kernels.gpu.{file}"), function)
    return launcher


def _failures() -> tuple[type[Exception], ...]:
    """What a kernel that cannot run raises: a compiler's or driver's error, or its own refusal of a shape."""
    try:
        from triton.errors import TritonError
    except ImportError:
        return ImportError, NotImplementedError, RuntimeError
    return ImportError, NotImplementedError, RuntimeError, TritonError


def run(op: Op, *args: Any) -> Results:
    """The kernel, or after a counted failure the reference. Callers ask `wanted` first.

    Raises DormouseError where a kernel that writes in place fails after its first call (its argument may be half written);
    lets a full device's torch.OutOfMemoryError pass: torch would need no less.
    """
    key, name = _specialisation(op, args), f"kernel.{op.name}"
    if key in _refused:
        SEEN.ask(name, False)
        return op.reference(*args)
    first = key not in _proven
    before = {i: args[i].clone() for i in op.mutates} if first else {}
    try:
        got = _launcher(op.kernel)(*args)
    except torch.OutOfMemoryError:
        raise
    except _failures() as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        if op.mutates and not first:
            raise DormouseError(
                f"kernel {op.name} failed after it had run before ({reason}), and it writes in place, so its argument cannot be "
                "trusted any more. Start again from the last checkpoint; if it comes back, look at the device and its driver."
            ) from error
        _refuse(op, key, f"cannot run ({reason})")
        return _restored(op, args, before)
    if first:
        wrong = _disagreement(op, args, before, got)
        if wrong is not None:
            _refuse(op, key, f"disagrees with its reference ({wrong})")
            return _restored(op, args, before)
        _proven.add(key)
    SEEN.ask(name, True)
    return got


def _specialisation(op: Op, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What one proof covers: any number of rows."""
    shapes = ((i, a, a.shape if i in op.whole else a.shape[1:][-1:]) for i, a in enumerate(args) if isinstance(a, Tensor))
    return (op.name, *((i, a.dtype, a.device.type, tuple(shape)) for i, a, shape in shapes))


def _refuse(op: Op, key: tuple[Any, ...], why: str) -> None:
    _refused.add(key)
    SEEN.ask(f"kernel.{op.name}", False)
    SEEN.loud(f"kernel {op.name} {why}: torch runs in its place")


def _restored(op: Op, args: tuple[Any, ...], before: dict[int, Tensor]) -> Results:
    for i, copy in before.items():
        args[i].copy_(copy)
    return op.reference(*args)


@torch.no_grad()
def _disagreement(op: Op, args: tuple[Any, ...], before: dict[int, Tensor], got: Results) -> str | None:
    """Run the reference on the arguments as they were, and compare results and what was written in place."""
    fresh = [before.get(i, a) for i, a in enumerate(args)]
    fresh = [a.clone() if i in before else a for i, a in enumerate(fresh)]
    want = op.reference(*fresh)
    written, expected = tuple(args[i] for i in op.mutates), tuple(fresh[i] for i in op.mutates)
    return op.agree(got, want) or close(written, expected)


def forget_proofs() -> None:
    """Let every specialisation be checked, and tried, again."""
    _proven.clear()
    _refused.clear()
