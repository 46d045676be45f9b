"""Unified diffs: what difflib and git write is applied as they mean it; what reaches outside is refused."""

import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core.tasks.patch import Forbidden, NotApplicable, PatchError, apply, parse

GIT = """Some words first.
diff --git a/pkg/a.py b/pkg/a.py
index 1..2 100644
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,3 +1,3 @@ def f
 one
-two
+TWO
 three
diff --git a/new.txt b/new.txt
new file mode 100644
--- /dev/null
+++ b/new.txt
@@ -0,0 +1,2 @@
+x
+y
\\ No newline at end of file
diff --git a/old.txt b/old.txt
deleted file mode 100644
--- a/old.txt
+++ /dev/null
@@ -1 +0,0 @@
-gone
diff --git a/m.py b/sub/m.py
similarity index 90%
rename from m.py
rename to sub/m.py
--- a/m.py
+++ b/sub/m.py
@@ -1 +1 @@
-m
+M
"""
TREE = {"pkg/a.py": "one\ntwo\nthree\n", "old.txt": "gone\n", "m.py": "m\n"}


def test_what_git_writes_is_applied() -> None:
    assert apply(TREE, parse(GIT)) == {"pkg/a.py": "one\nTWO\nthree\n", "new.txt": "x\ny", "sub/m.py": "M\n"}


def test_a_rename_without_a_hunk_moves_the_file() -> None:
    assert apply({"a": "1\n"}, parse("diff --git a/a b/b\nsimilarity index 100%\nrename from a\nrename to b\n")) == {"b": "1\n"}


LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "  c\n", "d\x0c\n", "--- x\n", "@@\n"]), max_size=12)


@given(LINES, LINES, st.booleans(), st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_any_diff_of_two_texts_turns_one_into_the_other(before: list[str], after: list[str], cut: bool, context: int) -> None:
    if cut and after:
        after = [*after[:-1], after[-1].rstrip("\n") or "z"]
    raw = list(difflib.unified_diff(before, after, "a/f", "b/f", n=context))
    text = "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in raw)
    if not text:
        return
    assert apply({"f": "".join(before)}, parse(text)) == {"f": "".join(after)}


def test_a_hunk_that_moved_is_found_and_one_that_does_not_stand_there_is_not() -> None:
    hunk = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n b\n-c\n+C\n"
    assert apply({"f": "0\n1\n2\na\nb\nc\n"}, parse(hunk)) == {"f": "0\n1\n2\na\nb\nC\n"}
    with pytest.raises(NotApplicable, match="finds no such lines"):
        apply({"f": "b\nx\n"}, parse(hunk))
    with pytest.raises(NotApplicable, match="is not there"):
        apply({"g": ""}, parse(hunk))
    with pytest.raises(NotApplicable, match="there already"):
        apply({"new.txt": "", **TREE}, parse(GIT))
    with pytest.raises(NotApplicable, match="inside a file"):
        apply({"f": "1\n"}, parse("--- /dev/null\n+++ b/f/g\n@@ -0,0 +1 @@\n+x\n"))


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ".git/hooks/pre-commit", "a\\b", "a//b", "./a", "a\x01b", ""])
def test_a_path_outside_the_tree_is_forbidden(path: str) -> None:
    with pytest.raises(Forbidden):
        parse(f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n" if not path.startswith("/") else
              f"--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+x\n")


@pytest.mark.parametrize("text", ["new file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n",
                                  "Binary files a/x and b/x differ\n", "GIT binary patch\n"])
def test_links_and_binary_files_are_forbidden(text: str) -> None:
    with pytest.raises(Forbidden):
        parse(text)


@pytest.mark.parametrize("text", ["", "hello", "--- a/f\n+++ b/f\n", "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n", "x" * 300_000,
                                  "--- a/f\n+++ b/f\n@@ -1 +1 @@\n*a\n", "--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n"])
def test_what_is_no_patch_is_named(text: str) -> None:
    with pytest.raises(PatchError):
        parse(text)


@given(st.text(max_size=200) | st.lists(st.sampled_from(GIT.split("\n")), max_size=30).map("\n".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_applied_or_refused_and_never_another_exception(text: str) -> None:
    try:
        after = apply(TREE, parse(text))
    except (PatchError, NotApplicable, Forbidden):
        return
    assert all(not path.startswith(("/", "..")) for path in after)
