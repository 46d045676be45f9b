"""A compiled library of the native window, called with tensors (kernels/native/{entrance,window,readout}.cpp).

A tensor travels as a pointer to its first element, a tuple of tensors as a struct of such pointers, a number as int64, None as a null
pointer. What each function takes and writes stands above it in C++.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from dormouse_core.kernels.native.build import library
from dormouse_core.policy.layout import Shape

_TYPES = (torch.float32, torch.int32, torch.int64)
Given = Tensor | tuple[Tensor, ...] | int | None


class Compiled:
    """One library and the widths it is called with. Raises build.Unavailable where it cannot be had."""

    def __init__(self, name: str, shape: Shape) -> None:
        self._library, self.shape = library(name), shape

    def call(self, name: str, *given: Given) -> None:
        getattr(self._library, name)(ctypes.byref(self.shape), *map(_passed, given))

    def count(self, name: str, *given: Given) -> int:
        """A call that returns a number."""
        function = getattr(self._library, name)
        function.restype = ctypes.c_int64
        return int(function(ctypes.byref(self.shape), *map(_passed, given)))


def _passed(given: Given) -> Any:
    if isinstance(given, int):
        return ctypes.c_int64(given)
    if isinstance(given, tuple):
        return (ctypes.c_void_p * len(given))(*map(_address, given))
    return ctypes.c_void_p(None if given is None else _address(given))


def _address(x: Tensor) -> int:
    if not x.is_contiguous() or x.dtype not in _TYPES or x.device.type != "cpu":
        raise TypeError(f"a compiled call cannot read a tensor of {x.dtype} on {x.device} with strides {x.stride()}")
    return x.data_ptr()


def own(gradient: Tensor | None, like: Tensor) -> Tensor:
    """A gradient that a call may write to; zeros where nothing read the value it is of."""
    return like.new_zeros(like.shape) if gradient is None else gradient.clone(memory_format=torch.contiguous_format)
