"""Runs hidden tests inside the jail and claims, site by site, what they computed. Started there as `python -I -S -B judge/driver.py`.

It knows no expected value. Every test runs in a process of its own, forked before any line of the repository was imported, from sources
read before the first test ran; the repository stands last on the path, so that it shadows no module of the standard library. What a
test prints goes nowhere. Frames on the descriptor that was standard output: `B` test begun, `V` index, encoded value, `U` index, why it has
no wire form, `X` name of what the test raised, `E` test ended; index = test * SITES + site.
Nothing of dormouse but the wire format is loaded, by path.
"""

import contextlib
import json
import os
import struct
import sys
import types
from typing import Any

HEAD = struct.Struct("<cII")
SITES = 4096
ROOT = "/work"


def load(path: str, name: str) -> Any:
    module = types.ModuleType(name)
    with open(path, "rb") as source:
        exec(compile(source.read(), name, "exec"), module.__dict__)
    return module


class Claims:
    """One test's frames."""

    def __init__(self, out: int, test: int, wire: Any) -> None:
        self.out, self.test, self.wire = out, test, wire

    def frame(self, kind: bytes, site: int = 0, payload: bytes = b"") -> None:
        data = HEAD.pack(kind, self.test * SITES + site, len(payload)) + payload
        while data:
            data = data[os.write(self.out, data):]

    def claim(self, site: int, value: Any) -> None:
        try:
            encoded = self.wire.encode(value)
        except BaseException as error:  # noqa: BLE001 - a candidate's object may raise anything
            return self.frame(b"U", site, type(error).__name__.encode("utf-8", "replace")[:80])
        return self.frame(b"V", site, encoded)

    def raised(self, site: int) -> Any:
        return Raised(self, site)


class Raised:
    """`with __raised__(site):` claims the names of what the block raised, most special first; none where it raised nothing."""

    def __init__(self, claims: Claims, site: int) -> None:
        self.claims, self.site = claims, site
        self.value: Any = None
        self.exception: Any = None

    def __enter__(self) -> "Raised":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        self.value = self.exception = value
        self.claims.claim(self.site, [] if kind is None else [c.__name__ for c in kind.__mro__][:16])
        return kind is not None and issubclass(kind, Exception)


def run(test: dict[str, str], source: str, claims: Claims) -> None:
    """One test, in its own process."""
    sys.path += [path for path in (f"{ROOT}/repo", f"{ROOT}/repo/src") if os.path.isdir(path)]
    module = types.ModuleType("hidden_test")
    module.__dict__.update({"__file__": f"{ROOT}/repo/{test['file']}", "__claim__": claims.claim, "__raised__": claims.raised})
    claims.frame(b"B")
    try:
        exec(compile(source, test["file"], "exec", dont_inherit=True), module.__dict__)
        owner, _, name = test["qualname"].rpartition(".")
        if owner:
            made = module.__dict__[owner]
            unit = hasattr(made, "assertEqual")
            one = made(name) if unit else made()
            if unit:
                made.setUpClass()
            getattr(one, "setUp" if unit else "setup_method", lambda: None)()
            getattr(one, name)()
            getattr(one, "tearDown" if unit else "teardown_method", lambda: None)()
        else:
            module.__dict__[name]()
    except BaseException as error:  # noqa: BLE001 - a test may raise anything
        return claims.frame(b"X", 0, type(error).__name__.encode("utf-8", "replace")[:80])
    return claims.frame(b"E")


def main() -> None:
    out = os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    wire = load(f"{ROOT}/judge/wire.py", "wire")
    with open(f"{ROOT}/judge/plan.json", encoding="utf-8") as file:
        plan = json.load(file)
    os.chdir(f"{ROOT}/repo")
    for index, test in enumerate(plan["tests"]):
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                run(test, plan["sources"][test["file"]], Claims(out, index, wire))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.killpg(pid, 9)


if __name__ == "__main__":
    main()
