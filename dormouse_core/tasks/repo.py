"""Repository tasks in the shape of SWE-bench: a tree of files, a request, and tests that must come to pass or must still pass.

A row holds `instance_id`, `problem_statement`, `patch` (the known solution), `test_patch` (what the hidden tests change), `FAIL_TO_PASS`
and `PASS_TO_PASS` (lists of test ids, or such lists as JSON text); the tree comes beside it, as {path: text}. The policy answers with a
unified diff of the tree. No image is needed: the tests run with the interpreter's standard library.
Not here: how tests are judged (verifiers/repo.py).
"""

import json
from collections.abc import Mapping
from typing import Any

from dormouse_core.ledger import DormouseError
from dormouse_core.tasks import patch
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind


def repo_task(row: Mapping[str, Any], files: Mapping[str, str], use: Use = Use.EVALUATION, split: Split = Split.PUBLIC,
              **more: Any) -> Task:
    """The task of a row over its tree. Raises DormouseError naming the row where a field is missing or unreadable, a patch does not fit, or
    no test must come to pass."""
    name = str(row.get("instance_id", "a repository task"))
    try:
        tree = {patch.safe_path(path): _text(content) for path, content in files.items()}
        after = patch.apply(tree, patch.parse(_text(row["test_patch"])))
        patch.apply(tree, patch.parse(_text(row["patch"])))
        fail_to_pass, pass_to_pass = (_names(row[key]) for key in ("FAIL_TO_PASS", "PASS_TO_PASS"))
        request = _text(row["problem_statement"])
    except (KeyError, TypeError, ValueError) as error:
        raise DormouseError(f"{name} is no repository task: {type(error).__name__}: {error}. Correct the row, or leave it out.") from error
    if not fail_to_pass:
        raise DormouseError(f"{name} has no hidden test that must come to pass: anything would be right. Correct the row, or leave it out.")
    named = {test.partition("::")[0] for test in (*fail_to_pass, *pass_to_pass)}
    tests = {path: text for path, text in after.items() if tree.get(path) != text or path in named}
    listing = "".join(f"\n--- {path}\n{text}" for path, text in sorted(tree.items()) if path not in tests)
    return Task(**{
        "pool": Pool.CODE, "family": "repo", "params": {"id": name}, "prompt": f"{request.strip()}\n{listing}".encode(),
        "environment": "answer", "start": {"files": tree}, "verifier": VerifierKind.REPO,
        "trusted": {"tests": tests, "fail_to_pass": fail_to_pass, "pass_to_pass": pass_to_pass},
        "reference": (_text(row["patch"]).encode(),), "reference_steps": 1, "byte_budget": 4 * len(row["patch"]) + 1024, "guess_bound": 1.0,
        "split": split, "use": use, "source": name, **more})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text was expected, not {type(value).__name__}")
    return value


def _names(value: Any) -> list[str]:
    found = json.loads(value) if isinstance(value, str) else list(value)
    if not isinstance(found, list) or not all(isinstance(n, str) for n in found):
        raise TypeError("a list of test ids was expected")
    return found
