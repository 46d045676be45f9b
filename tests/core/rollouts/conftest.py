"""A tiny policy that has learnt, in a second, to write short actions on the register machine: episodes of several steps, some right."""

import pytest
import torch
import torch.nn.functional as F

from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.encoding import Role, Span, render
from dormouse_core.envs.registry import start
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts.request import Origin
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split, Task
from tests.core.rollouts.made import changed

LENGTH = 40
SETTINGS = ["roll.temperature=1.0", "roll.fork_share=0.5", "roll.fork_entropy=0.3"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def config() -> RunConfig:
    return resolve("tiny", sets=SETTINGS)


@pytest.fixture(scope="session")
def tasks() -> list[Task]:
    return machine_tasks(6)


@pytest.fixture(scope="session")
def origin() -> Origin:
    return Origin("main.c0000", 3, "w" * 64, 11)


@pytest.fixture(scope="session")
def policy(config: RunConfig) -> Policy:
    made = build_policy(config.policy, 5)
    rows = [_demonstration(t, i) for i, t in enumerate(machine_tasks(16, root="demonstrations"))]
    ids = torch.tensor([list(stream) + [0] * (LENGTH - len(stream)) for stream, _ in rows])
    mask = torch.tensor([list(m) + [False] * (LENGTH - len(m)) for _, m in rows])
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-2)
    for _ in range(25):
        logits = made(ids[:, :-1]).logits_BLV
        loss = F.cross_entropy(logits[mask[:, 1:]], ids[:, 1:][mask[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made.eval()


def machine_tasks(n: int, root: str = "1") -> list[Task]:
    """Register-machine tasks of 3 to 5 steps with room for a few bytes an action."""
    drawn = [draw("register_machine", 1 + i % 3, Split.TRAIN, i, root) for i in range(n)]
    return [changed(t, byte_budget=4 * t.max_steps) for t in drawn]


def _demonstration(task: Task, row: int) -> tuple[bytes, list[bool]]:
    env, spans = start(task), [Span(Role.PROMPT, task.prompt)]
    for i, action in enumerate(task.reference):
        shown = action.upper() if (i + row) % 2 else action  # the machine reads both as one action
        result = env.step(shown)
        spans.append(Span(Role.ASSISTANT, shown))
        if result.stop is None:
            spans.append(Span(Role.OBSERVATION, result.observation))
    stream, mask = render(spans)
    return stream, mask.tolist()
