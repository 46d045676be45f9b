"""Compiles a C++ file of this folder for the processor it runs on, once, and loads it.

The library is kept under $XDG_CACHE_HOME/dormouse (~/.cache/dormouse), named by the sha256 of source, flags, compiler and processor:
a file made for another processor is never loaded. Several processes may compile at once; the last one's file stands, all are equal.
Not here: what the functions take (the caller), what happens without a compiler (the caller counts and goes on in torch).
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast", "-w")
_LIMIT_SECONDS = 300


class Unavailable(Exception):
    """Why there is no native library here, in a few words."""


@cache
def library(name: str) -> ctypes.CDLL:
    """The functions of `name`.cpp. Raises Unavailable where there is no compiler, or it refuses the file."""
    compiler = next((found for c in (os.environ.get("CXX", ""), "g++", "clang++", "c++") if c and (found := shutil.which(c))), None)
    if compiler is None:
        raise Unavailable("no C++ compiler on PATH")
    source = Path(__file__).with_name(f"{name}.cpp")
    flags = (*FLAGS, "-mprefer-vector-width=512") if _has("avx512f") else FLAGS
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    made_of = [*texts, " ".join(flags).encode(), _said([compiler, "--version"]), _processor()]
    key = hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dormouse"
    path = folder / f"{name}-{key}.so"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                fresh = Path(scratch) / path.name
                _said([compiler, *flags, str(source), "-o", str(fresh)])
                os.replace(fresh, path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path}: {error}") from error


def _said(command: list[str]) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=_LIMIT_SECONDS, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", b"") or b""
        raise Unavailable(f"{command[0]} failed ({(told.decode(errors='replace').strip() or str(error)).splitlines()[0][:200]})") from error


def _processor() -> bytes:
    """What -march=native looks at: model and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
    except OSError:
        return os.uname().machine.encode()
    return b"\n".join(line for line in lines if line.startswith((b"model", b"vendor", b"cpu family", b"flags", b"Features", b"CPU ")))


def _has(flag: str) -> bool:
    return flag.encode() in _processor().split()
