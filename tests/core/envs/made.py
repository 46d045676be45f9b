"""A small faulty program to repair: the sum of the even numbers that forgets one. The visible tests do not see it, the hidden ones do."""

from typing import Any

from dormouse_core.tasks import repair
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind

BUGGY = "def evens(xs):\n    total = 0\n    for x in xs[1:]:\n        if x % 2 == 0:\n            total += x\n    return total\n"
FIXED = BUGGY.replace("xs[1:]", "xs")
VISIBLE = "def check(candidate):\n    assert candidate([1, 2, 3]) == 2\n    assert candidate([]) == 0\ncheck(evens)\n"


def repair_task(buggy: str = BUGGY, steps: int = 12, visible: str = VISIBLE, **more: Any) -> Task:
    """A repair task; `steps` is its limit."""
    start = repair.start_state(buggy, "evens", repair.visible_tests(visible, "evens"))
    cases = [{"args": repr((xs,)), "expected": repr(sum(x for x in xs if x % 2 == 0))} for xs in ([], [2], [4, 5, 6], [1, 3], [-2, 2, 8])]
    return Task(**{
        "pool": Pool.CODE, "family": "evens", "prompt": repair.prompt("Mend it.", start), "environment": "repair", "start": start,
        "verifier": VerifierKind.EXEC, "trusted": {"entry_point": "evens", "cases": cases}, "split": Split.TRAIN, "use": Use.TRAIN,
        "reference": repair.repairing_actions(buggy, FIXED), "reference_steps": 2, "max_steps": steps, "byte_budget": 4096, **more})
