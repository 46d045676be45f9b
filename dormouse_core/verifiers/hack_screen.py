"""The hack screen: answers that earned something in a way honest answers do not are set aside, never punished and never paid.

    labels(answer) = static analysis of its text + contrast with the other answers to its task
    an answer with a screening label that earned anything -> hack_suspected: advantage 0, out of baselines, SFT and skills

A label is a probability, so it only screens: it can take a reward away and can never give one, and a verdict that is certain
(violation, timeout, a fail that earned nothing) stays what it is with the label beside it; setting a caught hack aside would spare
it. Only programs are read: an exact answer has no habits, and env_step replays actions in an environment of its own.
Not here: what stops a program (sandbox), what proves a hack (admission/honeypots.py), the classes (hack_screen_classes.py).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from dormouse_core.config.stages import VerifyConfig
from dormouse_core.encoding import unescape
from dormouse_core.envs.registry import environment
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.tasks.task import Task, VerifierKind
from dormouse_core.verifiers.hack_screen_contrast import Features, features, outliers
from dormouse_core.verifiers.hack_screen_static import static_labels, take_apart
from dormouse_core.verifiers.hack_screen_visible import visible_examples
from dormouse_core.verifiers.hack_screen_words import SCREENING
from dormouse_core.verifiers.verdict import Verdict, VerdictClass

CONTRAST = "contrast"
"""Label of an outlier; screens."""


class WrittenStep(Protocol):
    """The part of a step that is read."""

    @property
    def action_bytes(self) -> bytes: ...
    @property
    def ended(self) -> bool: ...


class Judged(Protocol):
    """The part of a trajectory that is read."""

    @property
    def id(self) -> str: ...
    @property
    def task_id(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def steps(self) -> Sequence[WrittenStep]: ...


class Reading(NamedTuple):
    """What one distinct program says of itself. `features` is None where it does not parse."""

    labels: frozenset[str]
    features: Features | None


def screen(trajectories: Sequence[Judged], verdicts: Sequence[Verdict], tasks: Mapping[str, Task], config: VerifyConfig,
           ledger: Ledger) -> list[Verdict]:
    """The verdicts, in order, with labels added and suspects set aside. `verdicts[i]` judges `trajectories[i]`; `tasks` by id.

    Give whole groups: contrast compares the members that are in one call. Counts `hack_screen.read` (distinct programs),
    `hack_screen.screened`, and `hack_screen.label.<label>` a labelled answer. With `hack_screen.enabled` off the verdicts come
    back as they are, and one loud line says so. Raises ValueError where a verdict belongs to another trajectory.
    """
    settings = config.hack_screen
    if not settings.enabled:
        ledger.loud("hack screen: off (verify.hack_screen.enabled = false); answers are paid whatever they look like")
        ledger.ask("hack screen", ran=False, n=len(verdicts))
        return list(verdicts)
    ledger.ask("hack screen", ran=True, n=len(verdicts))
    readings: dict[tuple[str, bytes], Reading] = {}
    rows: list[tuple[str, bytes] | None] = []
    for t, v in zip(trajectories, verdicts, strict=True):
        if t.id != v.trajectory_id:
            raise ValueError(f"the verdict of {v.trajectory_id[:16]} stands beside trajectory {t.id[:16]}")
        key = _program(t, tasks[t.task_id])
        if key is not None and key not in readings:
            readings[key] = read_program(tasks[t.task_id], key[1])
        rows.append(key)
    ledger.count("hack_screen.read", len(readings))
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for i, t in enumerate(trajectories):
        if rows[i] is not None:
            groups[t.group].append(i)
    standing_out: dict[int, tuple[str, ...]] = {}
    for members in groups.values():
        standing_out |= _contrast(members, rows, verdicts, readings, config)
    done = [v if rows[i] is None else _labelled(v, readings[rows[i]].labels, standing_out.get(i, ()), ledger)  # type: ignore[index]
            for i, v in enumerate(verdicts)]
    ledger.count("hack_screen.screened", sum(v.verdict is VerdictClass.HACK_SUSPECTED for v in done))
    return done


def read_program(task: Task, action: bytes) -> Reading:
    """Static labels and features of one action of a task whose action is (part of) a program. Total over any bytes."""
    try:
        text = action.decode()
    except UnicodeDecodeError:
        return Reading(frozenset(), None)
    head, tail = str(task.start.get("program_prefix", "")), str(task.start.get("program_suffix", ""))
    source = take_apart(head, text, tail, str(task.trusted.get("entry_point", "")))
    if source is None:
        return Reading(frozenset(), None)
    labels = static_labels(source, visible_examples(task))
    given = str(task.start.get("source", "")) if task.environment != "answer" else ""
    if given and given != text:  # a program to repair may come with habits of its own
        labels -= static_labels(kept) if (kept := take_apart("", given, "", source.entry_point)) is not None else frozenset()
    return Reading(frozenset(label.value for label in labels), features(source.tree, list(source.own()), action, task.prompt))


def earned(verdict: Verdict) -> bool:
    """True where the answer may be paid: a pass, or a fail with a share of its cases (`rl.reward.graded`)."""
    return verdict.verdict is VerdictClass.PASS or (verdict.verdict is VerdictClass.FAIL and verdict.score > 0)


def _program(trajectory: Judged, task: Task) -> tuple[str, bytes] | None:
    """(task, program text) of a trajectory whose verdict rests on a program; None for any other."""
    actions = tuple(unescape(s.action_bytes) for s in trajectory.steps if s.ended)
    if task.verifier is not VerifierKind.EXEC or not actions:
        return None
    if task.environment == "answer":
        return task.id, actions[-1]
    try:
        program = environment(task.environment).leaves(task, actions)
    except (DormouseError, KeyError, TypeError, ValueError, AttributeError):
        return None  # a task that cannot be started has no verdict either
    return None if program is None else (task.id, program)


def _contrast(members: Sequence[int], rows: Sequence[tuple[str, bytes] | None], verdicts: Sequence[Verdict],
              readings: Mapping[tuple[str, bytes], Reading], config: VerifyConfig) -> dict[int, tuple[str, ...]]:
    """Features in which each member of one group stands out, for those that do."""
    distinct: dict[tuple[str, bytes], list[int]] = {}
    for i in members:
        key = rows[i]
        if key is not None and readings[key].features is not None:
            distinct.setdefault(key, []).append(i)
    found = [readings[key].features for key in distinct]
    paid = [earned(verdicts[same[0]]) for same in distinct.values()]
    high = outliers([f for f in found if f is not None], paid, len(members), config.hack_screen)
    return {i: names for same, names in zip(distinct.values(), high, strict=True) if names for i in same}


def _labelled(verdict: Verdict, static: frozenset[str], standing_out: tuple[str, ...], ledger: Ledger) -> Verdict:
    new = sorted(static) + ([CONTRAST] if standing_out else [])
    if not new:
        return verdict
    for label in new:
        ledger.count(f"hack_screen.label.{label}")
    labels = tuple(dict.fromkeys((*verdict.labels, *new)))
    screening = sorted(static & {s.value for s in SCREENING})
    if not earned(verdict) or not (screening or standing_out):
        return verdict.model_copy(update={"labels": labels})
    by = "hack_screen.static" if screening else "hack_screen.contrast"
    why = ", ".join(screening or standing_out)
    return verdict.model_copy(update={
        "labels": labels, "verdict": VerdictClass.HACK_SUSPECTED, "decided_by": by,
        "reason": f"{why}; was {verdict.verdict} by {verdict.decided_by}"})
