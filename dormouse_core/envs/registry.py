"""The environments there are, by the name a task carries."""

from difflib import get_close_matches

from dormouse_core.envs.answer import Answer
from dormouse_core.envs.environment import Environment
from dormouse_core.envs.file_system import FileSystem
from dormouse_core.envs.register_machine import RegisterMachine
from dormouse_core.envs.repair import Repair
from dormouse_core.envs.state_prediction import StatePrediction
from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.task import Task

ENVIRONMENTS: dict[str, type[Environment]] = {
    "answer": Answer,
    "register_machine": RegisterMachine,
    "file_system": FileSystem,
    "state_prediction": StatePrediction,
    "repair": Repair,
}


def environment(name: str) -> type[Environment]:
    """The environment class of a name. Raises DormouseError with near matches."""
    found = ENVIRONMENTS.get(name)
    if found is None:
        near = get_close_matches(name, ENVIRONMENTS, n=3) or sorted(ENVIRONMENTS)
        raise DormouseError(f"no environment {name!r}; did you mean {' or '.join(near)}? A task names its environment in `environment`")
    return found


def start(task: Task, seed: int = 0) -> Environment:
    """A fresh environment for the task."""
    return environment(task.environment).start(task, seed)


def restore(task: Task, blob: bytes) -> Environment:
    """The environment that `snapshot` was taken of. Raises ValueError on a blob of another task or format."""
    return environment(task.environment).restore(task, blob)
