"""A call whose inner tensors are not kept for the backward but computed again there.

The function runs once as it is, and whatever it saves for its gradient is replaced by an empty mark. The first mark that the backward
asks for runs the function again; what it saves then is handed out mark by mark, and let go as the backward goes. The graph is the same as
without, so the gradient has the same bits.
`torch.utils.checkpoint` does the same. It also imports torch's compiler, which costs a process 1.1 CPU-seconds and 108 MiB here.
Not here: random numbers (the policy draws none in a forward); a second backward over the same graph.
"""

from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

Out = TypeVar("Out")


class _Mark:
    """Stands for a tensor that is not kept. It dies with the node of the graph that asked for the tensor."""

    __slots__ = ("__weakref__",)


class _Enough(Exception):
    """Everything that was saved the first time has been computed again: the rest of the function is of no use."""


def recomputed(function: Callable[..., Out], *arguments: object) -> Out:
    """function(*arguments), keeping the arguments alone. It must do the same again when it is called with them again: RuntimeError in the
    backward where it saves fewer tensors then."""
    marks: list[ref[_Mark]] = []
    found: WeakKeyDictionary[_Mark, Tensor] = WeakKeyDictionary()

    def mark(_: Tensor) -> _Mark:
        one = _Mark()
        marks.append(ref(one))
        return one

    def again() -> None:
        seen = 0

        def keep(tensor: Tensor) -> None:
            nonlocal seen
            if (one := marks[seen]()) is not None:
                found[one] = tensor.detach()
            seen += 1
            if seen == len(marks):
                raise _Enough

        with torch.enable_grad(), saved_tensors_hooks(keep, _not_asked):
            try:
                function(*arguments)
            except _Enough:
                return

    def value(one: _Mark) -> Tensor:
        if one not in found:
            again()
        if one not in found:
            raise RuntimeError(f"{function.__name__} saved fewer tensors when it was called again: what it does depends on more than "
                               "its arguments")
        return found[one]

    with saved_tensors_hooks(mark, value):
        return function(*arguments)


def _not_asked(_: object) -> Tensor:
    raise AssertionError("the graph of the second run has no backward")
