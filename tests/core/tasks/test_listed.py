"""Tasks that stand in files: what is said of them when they are taken."""

from pathlib import Path

from dormouse_core.ledger import Ledger
from dormouse_core.tasks.listed import public_tasks


def test_a_set_to_train_on_is_said_to_have_passed_no_gate_and_one_to_evaluate_on_to_be_refused_by_training(tasks_dir: Path) -> None:
    said = {}
    for name in ("mbpp", "humaneval"):
        ledger = Ledger()
        assert public_tasks(name, tasks_dir, None, ledger)
        (said[name],) = ledger.lines
    assert "not been before the admission gate" in said["mbpp"] and "tasks check" in said["mbpp"]
    assert "training refuses them" in said["humaneval"]
