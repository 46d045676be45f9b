"""The code's own fingerprint, so an artifact can say which sources made it."""

import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def code_version() -> str:
    """sha256 over every source of dormouse_core (path and content, sorted). Read once a process."""
    return fingerprint(_PACKAGE)


def fingerprint(folder: Path) -> str:
    """sha256 over the `.py` files below a folder: relative path and content, in path order."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
