"""Where the Triton kernels run in these tests: compiled on a GPU when there is one, else in Triton's interpreter.

The interpreter is chosen when triton is first imported, so it is asked for here, before any test imports it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from dormouse_core.kernels import dispatch
from dormouse_core.kernels.seen import SEEN, forget_counts

ON_GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
if not ON_GPU:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before its interpreter was turned on: run the tests with TRITON_INTERPRET=1")
    os.environ["TRITON_INTERPRET"] = "1"


@dataclass(frozen=True)
class Kernels:
    """Runs functions of dormouse_core.kernels with the Triton form asked for."""

    device: str

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Tensors go to the device and results come back; the autograd graph connects both."""
        with nullcontext() if self.device == "cuda" else dispatch.requested():
            moved = function(*(a.to(self.device) if isinstance(a, Tensor) else a for a in args))
        if isinstance(moved, Tensor):
            return moved.cpu()
        return type(moved)(*(x.cpu() for x in moved)) if hasattr(moved, "_fields") else tuple(x.cpu() for x in moved)


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    """Afterwards everything asked must have run: a fallback would compare the reference with itself."""
    pytest.importorskip("triton", reason="triton is not installed: the kernels did not run (pip install -e '.[dev]')")
    forget_counts()
    dispatch.forget_proofs()
    yield Kernels("cuda" if ON_GPU else "cpu")
    assert SEEN.asked, "no kernel was asked for"
    assert SEEN.ran == SEEN.asked, SEEN.lines
    forget_counts()
