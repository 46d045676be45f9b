"""Patches of a repository task that must not pass: those that know nothing, and those that attack the tests instead of the fault.

Each is a unified diff of the task's own tree, made from the tree alone; the known solution is not looked at. A patch that cannot be made of
a tree (it holds no Python file) is left out. Not here: how a patch is judged (verifiers/repo.py).
"""

from collections import Counter
from collections.abc import Iterator

from dormouse_core.sandbox import wire
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.repo import prepare

_EVERY_FUNCTION = """
def _everywhere(answer):
    def set_in(owner):
        for name, value in list(vars(owner).items()):
            if type(value) is type(_everywhere) and not name.startswith("__"):
                setattr(owner, name, answer)
    import sys
    module = sys.modules[__name__]
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == __name__:
            set_in(value)
    set_in(module)
"""
"""Gives every function and method of the module it stands in another answer."""
_LIAR = """
class _Liar:
    def _yes(self, *a, **k): return True
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = _yes
    def _self(self, *a, **k): return self
    __ne__ = lambda self, other: False
    __call__ = __getattr__ = __getitem__ = __add__ = __sub__ = __round__ = _self
    __hash__ = lambda self: 0
    __iter__ = lambda self: iter((self,))
    __len__ = lambda self: 1
"""
CONSTANTS = ("None", "True", "False", "0", "1", "''", "[]")
"""What a patch that knows nothing would have every function return, beside the value its tests expect most."""


def null_patches(task: Task) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Nothing, the prompt, a file nobody asked for, and every function of the tree answering one constant.
    Raises BadTask where the task cannot be used."""
    yield "nothing", (b"",)
    yield "echo", (task.prompt,)
    yield "a file nobody asked for", (_new_file("NOTHING_IS_DONE.txt", "nothing\n"),)
    suite = prepare(task)
    expected = Counter(repr(wire.value_of(site.tree)) for test in suite.tests[: suite.to_pass] for site in test.sites
                       if site.strong and not site.raises)
    for value in dict.fromkeys((*CONSTANTS, *(text for text, _ in expected.most_common(1)))):
        if (patch := everywhere(task, f"{_EVERY_FUNCTION}_everywhere(lambda *a, **k: {value})\n")):
            yield f"every function returns {value}", (patch,)


def hostile_patches(task: Task) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Leaving early in three ways, values equal to everything, and the files that steer a test runner."""
    leaves = "import os, sys\nsys.stdout.write('1 passed in 0.01s\\n')\nsys.stdout.flush()\nos._exit(0)\n"
    for name, code in (("leaves with exit code 0", leaves), ("raises SystemExit(0)", "raise SystemExit(0)\n"),
                       ("skips its tests", "import unittest\nraise unittest.SkipTest('no need')\n"),
                       ("equal to everything", f"{_EVERY_FUNCTION}{_LIAR}_everywhere(_Liar())\n")):
        if (patch := everywhere(task, code)):
            yield name, (patch,)
    steering = [path for path in ("sitecustomize.py", "conftest.py", "usercustomize.py") if path not in task.start["files"]]
    if steering:
        yield "steers the runner", (b"".join(_new_file(path, leaves) for path in steering),)


def everywhere(task: Task, code: str) -> bytes:
    """A patch that puts `code` at the end of every Python file of the tree that is no trusted test; empty where there is none."""
    files, tests = task.start["files"], task.trusted.get("tests", {})
    return b"".join(_at_the_end(path, text, code) for path, text in sorted(files.items()) if path.endswith(".py") and path not in tests)


def _added(code: str) -> list[str]:
    return [f"+{line}\n" for line in code.removesuffix("\n").split("\n")]


def _new_file(path: str, code: str) -> bytes:
    added = _added(code)
    return "".join([f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(added)} @@\n", *added]).encode()


def _at_the_end(path: str, text: str, code: str) -> bytes:
    """The last line is written again, since it may lack its newline."""
    lines, added = text.split("\n"), _added(code)
    ended = lines[-1] == "" and len(lines) > 1
    count = len(lines) - ended if text else 0
    last = [f"-{lines[count - 1]}\n", *([] if ended else ["\\ No newline at end of file\n"]), f"+{lines[count - 1]}\n"] if text else []
    where = f"@@ -{count},{min(count, 1)} +{max(count, 1)},{min(count, 1) + len(added)} @@\n"
    return "".join([f"--- a/{path}\n+++ b/{path}\n", where, *last, *added]).encode()
