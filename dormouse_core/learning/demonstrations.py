"""SFT rows: a fixed budget of demonstrations a pool, of four kinds in configured shares, over train-split tasks only.

    expert     the way a family's expert does it; agent experts act at random now and then and only passing episodes are kept
    synthetic  generated at the cell's difficulty or easier, kept because it was checked to be right
    repair     something wrong that somebody else did, shown as content and never trained on, then the right way on from there
    chat       short dialogues inside the domain: what comes next, step by step, and whether a claim holds

Of the math and code rows a configured share shows a longer working instead of the bare answer.
Not here: rendering and masks (rows.py), training (sft.py).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from dormouse_core.admission.own_answers import solves
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import MixConfig, SftConfig
from dormouse_core.config.suite import Suite, SuiteCell
from dormouse_core.encoding import Role, Span
from dormouse_core.envs.registry import start
from dormouse_core.learning.experts import passing_episode, random_action
from dormouse_core.ledger import DormouseError
from dormouse_core.seeding import generator
from dormouse_core.tasks.generators._program import compile_body
from dormouse_core.tasks.registry import draw, family
from dormouse_core.tasks.splits import require_trainable
from dormouse_core.tasks.task import Pool, Split, Task, VerifierKind

SYNTHETIC_NOISE = 0.5
"""How often a synthetic agent episode acts at random; only passing ones are kept."""


class RowKind(StrEnum):
    EXPERT = "expert"
    SYNTHETIC = "synthetic"
    REPAIR = "repair"
    CHAT = "chat"
    DATA = "data"  # a conversation of the user's own (conversations.py)


@dataclass(frozen=True, slots=True)
class SftRow:
    """One conversation; only its assistant spans are trained on."""

    segments: tuple[Span, ...]
    kind: RowKind
    pool: Pool | None
    cell: str
    task_id: str
    long: bool = False  # shows a longer working


def build_rows(config: RunConfig, suite: Suite, seed: int) -> list[SftRow]:
    """`config.sft.rows_per_pool` rows for each pool that the suite trains, in a fixed order. Deterministic in its arguments.

    Raises DormouseError when the suite trains nothing, or a task is not of the train split.
    """
    pools = suite.pools("train")
    if not pools:
        raise DormouseError(f"suite {suite.name} has no cell of role `train`: there is nothing to demonstrate")
    return [row for pool, cells in pools.items() for row in _pool_rows(Pool(pool), cells, config.sft, seed)]


def shares(mix: MixConfig, n: int) -> dict[RowKind, int]:
    """n rows split by the mix, by largest remainder, so the parts always sum to n. Raises DormouseError for a mix of nothing."""
    weight: dict[RowKind, float] = {kind: float(getattr(mix, kind.value)) for kind in RowKind if kind is not RowKind.DATA}
    total = sum(weight.values())
    if total <= 0:
        raise DormouseError("sft.mix gives every kind of row a share of 0; give one of expert, synthetic, repair, chat a positive share")
    exact = {kind: n * w / total for kind, w in weight.items()}
    parts = {kind: int(v) for kind, v in exact.items()}
    for kind in sorted(exact, key=lambda k: parts[k] - exact[k])[: n - sum(parts.values())]:
        parts[kind] += 1
    return parts


def _pool_rows(pool: Pool, cells: Sequence[SuiteCell], config: SftConfig, seed: int) -> list[SftRow]:
    parts = shares(config.mix, config.rows_per_pool)
    plan = [(kind, number) for kind, count in parts.items() for number in range(count)]
    answers = len(plan) - parts[RowKind.CHAT]
    wanted = 0 if pool is Pool.AGENT else min(round(config.long_share * len(plan)), answers)
    long_rows = {int(p) for p in generator("sft long rows", seed, pool.value).permutation(answers)[:wanted]}
    rows = []
    for place, (kind, number) in enumerate(plan):
        cell = cells[number % len(cells)]
        rng = generator("sft row", seed, pool.value, kind.value, number)
        level = int(rng.integers(0, cell.difficulty + 1)) if kind is RowKind.SYNTHETIC else cell.difficulty
        task = draw(cell.family, level, Split.TRAIN, number, f"sft-{kind.value}-{seed}")
        require_trainable([task], "sft")
        spans, long = _BUILD[kind](task, place in long_rows, config, rng)
        rows.append(SftRow(tuple(spans), kind, pool, cell.name, task.id, long))
    return rows


def _answer(task: Task, long: bool) -> tuple[bytes, bool]:
    """(the answer, True where it is the long form). Raises DormouseError where our own answer is not right."""
    working = family(task.family).worked(task) if long else None
    action = working or task.reference[0]
    if not solves(task, (action,)):
        raise DormouseError(f"the demonstrated answer {action!r} to {task.prompt!r} ({task.cell}) is not right; the family is broken")
    return action, working is not None


def _expert(task: Task, long: bool, config: SftConfig, rng: np.random.Generator) -> tuple[list[Span], bool]:
    if task.verifier is VerifierKind.ENV_STEP:
        return passing_episode(task, config.expert_noise, rng), False
    action, long = _answer(task, long)
    return [Span(Role.PROMPT, task.prompt), Span(Role.ASSISTANT, action)], long


def _synthetic(task: Task, long: bool, config: SftConfig, rng: np.random.Generator) -> tuple[list[Span], bool]:
    if task.verifier is VerifierKind.ENV_STEP:
        return passing_episode(task, max(config.expert_noise, SYNTHETIC_NOISE), rng), False
    return _expert(task, long, config, rng)


def _repair(task: Task, long: bool, config: SftConfig, rng: np.random.Generator) -> tuple[list[Span], bool]:
    if task.verifier is VerifierKind.ENV_STEP:
        return passing_episode(task, 0.0, rng, detours=1), False
    action, long = _answer(task, long)
    wrong = family(task.family).wrong(task, rng)
    return [Span(Role.PROMPT, task.prompt), Span(Role.PROMPT, b"!" + wrong), Span(Role.ASSISTANT, action)], long


def _chat(task: Task, long: bool, config: SftConfig, rng: np.random.Generator) -> tuple[list[Span], bool]:
    if task.verifier is VerifierKind.ENV_STEP:
        return _next_states(task, rng), False
    if task.verifier is VerifierKind.EXEC:
        turns = _evaluations(task, rng)
    else:
        turns = _steps(task) or _check(task, rng)
    return [Span(role, text) for question, reply in turns for role, text in ((Role.PROMPT, question), (Role.ASSISTANT, reply))], False


def _next_states(task: Task, rng: np.random.Generator) -> list[Span]:
    """Next-state prediction in dialogue: an action is named, the reply is what the environment would show."""
    state, spans = start(task), []
    shown = task.prompt.split(b">")[0]
    for turn in range(int(rng.integers(1, 4))):
        action = random_action(task, state, rng)
        result = state.step(action)
        question = (shown + b":" if turn == 0 else b"") + action + b"?"
        spans += [Span(Role.PROMPT, question), Span(Role.ASSISTANT, result.observation)]
        if result.stop is not None:
            break
    return spans


def _steps(task: Task) -> list[tuple[bytes, bytes]]:
    """The working as questions and replies: `7+5=12+9=21` becomes 7+5? 12, +9? 21. Empty where it has no such steps."""
    working = (family(task.family).worked(task) or b"").decode()
    turns: list[tuple[bytes, bytes]] = []
    for asked, replied in pairwise(working.split("=")):
        reply = re.match(r"\d+", replied)
        question = asked if not turns else re.sub(r"^\d+", "", asked)
        if reply is None or not re.fullmatch(r"\d*[-+*/]\d+", question):
            return []
        turns.append((f"{question}?".encode(), reply.group().encode()))
    return turns


def _check(task: Task, rng: np.random.Generator) -> list[tuple[bytes, bytes]]:
    """Whether a claimed answer holds: y or n."""
    right = bool(rng.integers(2))
    claim = task.reference[0] if right else family(task.family).wrong(task, rng)
    return [(task.prompt + b"=" + claim + b"?", b"y" if right else b"n")]


def _evaluations(task: Task, rng: np.random.Generator) -> list[tuple[bytes, bytes]]:
    """What the function returns on small arguments; for strings and lists, whether a claimed body is right."""
    arguments = task.params["arguments"].split(",")
    if not set(arguments) <= {"x", "y"}:
        return _check(task, rng)
    function: Callable[..., object] = compile_body(task.params["arguments"], task.reference[0].decode())
    turns = []
    for turn in range(2):
        values = [int(v) for v in rng.integers(0, 10, len(arguments))]
        question = (task.prompt.decode() + ":" if turn == 0 else "") + ",".join(map(str, values)) + "?"
        turns.append((question.encode(), str(function(*values)).encode()))
    return turns


_BUILD: dict[RowKind, Callable[[Task, bool, SftConfig, np.random.Generator], tuple[list[Span], bool]]] = {
    RowKind.EXPERT: _expert, RowKind.SYNTHETIC: _synthetic, RowKind.REPAIR: _repair, RowKind.CHAT: _chat}
