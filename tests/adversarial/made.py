"""The task the hostile programs are set, and attempts at it."""

from dormouse_core.envs.environment import StopReason
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.attempt import Attempt

ADD = Task(pool=Pool.CODE, family="add", prompt=b"", environment="answer", verifier=VerifierKind.EXEC, split=Split.TRAIN, use=Use.TRAIN,
           trusted={"entry_point": "f", "cases": [{"args": repr((i, i * i + 1)), "expected": repr(i + i * i + 1)} for i in range(2, 10)]})
RIGHT = "def f(a, b):\n    return a + b\n"


def attempt(source: str, name: str = "t", task: Task = ADD) -> Attempt:
    return Attempt(name, task, (source.encode(),), StopReason.SUBMITTED)
