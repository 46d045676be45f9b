"""Drift: a resume under another configuration is refused with the field-by-field difference, never half-obeyed."""

from typing import Any

from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError

PROGRESS_KEYS = frozenset({"steps", "log_every", "ckpt_every", "eval", "eval_every"})
"""Keys (a section or a field of any section) that may change on a resume: how far, how often saved, measured or said."""


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping -> {dotted key: value}, in order."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        flat |= flatten(value, f"{key}.") if isinstance(value, dict) else {key: value}
    return flat


def differences(stored: RunConfig, fresh: RunConfig) -> dict[str, tuple[Any, Any]]:
    """{dotted key: (stored, fresh)} of every setting that differs outside PROGRESS_KEYS. A key one side lacks is None there.

    The preset's name is provenance, not a setting: two names for the same values are no drift.
    """
    old, new = flatten(stored.model_dump(mode="json")), flatten(fresh.model_dump(mode="json"))
    return {key: (old.get(key), new.get(key)) for key in [*old, *(k for k in new if k not in old)]
            if old.get(key) != new.get(key) and key != "preset" and not PROGRESS_KEYS & set(key.split("."))}


def refuse_drift(stored: RunConfig, fresh: RunConfig, where: str, instead: str = "start a new line: dormouse loop --line NAME") -> None:
    """Raise DormouseError when `fresh` would not go on with what `stored` began. `where` names the file that holds `stored`;
    `instead` says how to start anew where a new line is not the way."""
    changed = differences(stored, fresh)
    if not changed:
        return
    width = max(map(len, changed))
    olds = {key: str(old) for key, (old, _) in changed.items()}
    old_width = max(map(len, olds.values()))
    rows = "\n".join(f"  {key:<{width}}  {olds[key]:<{old_width}} -> {new}" for key, (_, new) in changed.items())
    back = " ".join(f"--set {key}={old}" for key, (old, _) in list(changed.items())[:2]) + (" ..." if len(changed) > 2 else "")
    plural = "s differ" if len(changed) > 1 else " differs"
    raise DormouseError(f"resume refused: {len(changed)} setting{plural} from the run in {where}\n{rows}\n"
                        f"Either drop the changes ({back}) or {instead}")
