"""What may be repeated of the names a candidate's process writes: those this interpreter gives, never a word of the candidate's own.

A class may be called `42`, or hold a line break or a terminal's escape; a reason that repeats it would hold a claimed value, or be more
than one line, or draw on the screen of whoever reads it.
"""

import builtins
import collections
import decimal
import fractions
import functools
import itertools
import json
import queue
import re
import struct
import types
import typing
import zlib

OWN = "a class of its own"
_NO_FORM = "no wire type for "
_CAUSES = frozenset({"too many nodes", "too deep", "too long", "integer too long", "length out of range", "count out of range"})
"""Why a value has no wire form (sandbox/wire.py), its type apart."""
_MODULES = (builtins, types, collections, decimal, fractions, functools, itertools, json, queue, re, struct, typing, zlib)
_NAMES = frozenset(value.__name__ for module in _MODULES for value in vars(module).values() if isinstance(value, type)) | {
    "NoneType", "WireError", "dict_keys", "dict_values", "dict_items", "list_iterator", "set_iterator", "str_iterator", "tuple_iterator",
    "range_iterator", "dict_keyiterator", "list_reverseiterator"}


def class_name(payload: bytes) -> str:
    """The name of a class of the interpreter's, or OWN."""
    name = payload.decode("utf-8", "replace")
    return name if name in _NAMES else OWN


def no_form(payload: bytes) -> str:
    """Why a value has no wire form, as a candidate's process says it."""
    why = payload.decode("utf-8", "replace")
    if why.startswith(_NO_FORM):
        return _NO_FORM + class_name(why.removeprefix(_NO_FORM).encode())
    return why if why in _CAUSES else class_name(payload)
