"""A policy that is a script: every episode is played by the task's own environment with actions a function names."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dormouse_core.encoding import END, escape
from dormouse_core.envs.registry import environment
from dormouse_core.ledger import Ledger
from dormouse_core.rollouts.episode import Episode, Next, Written
from dormouse_core.rollouts.request import RolloutRequest
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.tasks.task import Task

Roll = Callable[..., Iterator[Trajectory]]


def scripted(actions_of: Callable[[Task], Sequence[bytes]]) -> Roll:
    """Stands in for `engine.roll` and `forks.roll_with_forks`. Bytes have probability 1; an episode whose script ends before it does is
    cut by its byte budget."""

    def roll(policy: object, requests: Sequence[RolloutRequest], config: object, ledger: Ledger) -> Iterator[Trajectory]:
        for request in requests:
            yield _play(request, actions_of(request.task), ledger)

    return roll


def _play(request: RolloutRequest, actions: Sequence[bytes], ledger: Ledger) -> Trajectory:
    episode, left = Episode(request, environment(request.task.environment)), request.task.byte_budget
    going = episode.begin(None, ledger)
    for action in actions:
        if not going:
            break
        body = (escape(action) + END)[:left]
        left -= len(body)
        going = episode.act(_written(body, left), ledger) is Next.STEP
    if going:
        episode.act(_written(b"", 0), ledger)
    return episode.trajectory()


def _written(body: bytes, left: int) -> Written:
    sure = np.zeros(len(body), np.float32)
    return Written(body, sure, sure, left, 0.0)
