"""Whether an answer that our own generators wrote solves its task, and how far the best constant answer gets in a cell.

Function bodies are evaluated in process here, which is why only text of our own generators may come here; a policy's answers go
to the verifiers and their runner, never here.
"""

from ast import literal_eval
from collections import Counter
from collections.abc import Sequence

from dormouse_core.envs.environment import StopReason
from dormouse_core.envs.registry import start
from dormouse_core.tasks.generators._program import compile_body
from dormouse_core.tasks.registry import draw, family
from dormouse_core.tasks.task import Split, Task, VerifierKind

CANDIDATES = 40
"""Constant answers tried a cell: the commonest references, short and worked."""


def solves(task: Task, actions: Sequence[bytes]) -> bool:
    """True where the actions solve the task: by value for exact tasks, on every hidden case for functions, by the environment's goal
    for multi-step ones (actions after the goal do not matter)."""
    if task.verifier is VerifierKind.ENV_STEP:
        state = start(task)
        stops = (state.step(action).stop for action in actions)
        return next((stop for stop in stops if stop is not None), None) is StopReason.SOLVED
    text = actions[-1].decode() if actions else ""
    if task.verifier is VerifierKind.EXACT:
        return text.rsplit("=", 1)[-1] == task.trusted["answer"]
    function = compile_body(task.params["arguments"], text)
    try:
        return all(repr(function(*literal_eval(case["args"]))) == case["expected"] for case in task.trusted["cases"])
    except (IndexError, TypeError):
        return False


def measured_guess_bound(name: str, difficulty: int, n: int, root: str = "guess bound") -> float:
    """Success rate over n train tasks of the best constant answer among the commonest references. For multi-step tasks an answer is a
    fixed sequence of actions, repeated until the task's step limit."""
    tasks = [draw(name, difficulty, Split.TRAIN, index, root) for index in range(n)]
    answers = Counter(t.reference for t in tasks)
    worked = (family(name).worked(t) for t in tasks)
    answers.update((w,) for w in worked if w is not None)
    longest = max(t.max_steps for t in tasks)
    candidates = [(a * longest)[:longest] for a, _ in answers.most_common(CANDIDATES)]
    return max(sum(solves(t, c[: t.max_steps]) for t in tasks) / n for c in candidates)
