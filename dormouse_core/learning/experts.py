"""Episodes that teach: experts that act at random now and then, kept where the environment says they passed.

Not here: which rows are made of them (demonstrations.py), the verifiers that judge a policy (verifiers).
"""

import numpy as np

from dormouse_core.encoding import Role, Span
from dormouse_core.envs.environment import Environment, StopReason
from dormouse_core.envs.registry import start
from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.files import Files, next_command, random_command
from dormouse_core.tasks.register import LETTERS, best_actions
from dormouse_core.tasks.task import Task

_TRIES = 500


def best_action(task: Task, state: Environment, rng: np.random.Generator) -> bytes:
    """An action on a shortest way to the goal, drawn evenly where there are several. Raises DormouseError for an environment without
    an expert."""
    facts = state.facts()
    if task.environment == "register_machine":
        return str(rng.choice(best_actions(task.start["machine"], facts["value"], task.start["goal"]))).encode()
    if task.environment == "file_system":
        command = next_command(Files.read(facts["listing"]), Files.read(task.start["goal"]))
        assert command is not None  # the goal stops the episode
        return command.encode()
    raise DormouseError(f"environment {task.environment} has no expert to demonstrate {task.cell}; leave the cell out of the SFT suite")


def random_action(task: Task, state: Environment, rng: np.random.Generator) -> bytes:
    """A well-formed action that says nothing of the goal."""
    if task.environment == "register_machine":
        return str(rng.choice(list(LETTERS))).encode()
    return random_command(Files.read(state.facts()["listing"]), rng).encode()


def episode(task: Task, noise: float, rng: np.random.Generator, detours: int = 0) -> list[Span] | None:
    """One episode of an expert that acts at random with probability `noise`; None where it does not solve the task.

    With detours, that many random actions come first and stand in the row as what the environment showed, not as actions: they are
    no training targets, and the episode is the recovery from them.
    """
    state = start(task)
    spans = [Span(Role.PROMPT, task.prompt)]
    for step in range(task.max_steps):
        off = step < detours or rng.random() < noise
        action = random_action(task, state, rng) if off else best_action(task, state, rng)
        result = state.step(action)
        if step >= detours:
            spans.append(Span(Role.ASSISTANT, action))
        if result.stop is not None:
            return spans if result.stop is StopReason.SOLVED and step >= detours else None
        spans.append(Span(Role.OBSERVATION, result.observation))
    return None


def passing_episode(task: Task, noise: float, rng: np.random.Generator, detours: int = 0) -> list[Span]:
    """The first of the expert's episodes that solves the task. Raises DormouseError where none of many does."""
    for _ in range(_TRIES):
        spans = episode(task, noise, rng, detours)
        if spans is not None:
            return spans
    raise DormouseError(f"no passing episode in {_TRIES} for {task.cell} at noise {noise} with {detours} detour(s); lower sft.expert_noise")
