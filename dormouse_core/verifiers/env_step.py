"""env_step: replay the actions in a fresh environment and compare the state they lead to with the task's trusted target.

trusted = {"target": {fact: value}, "milestones": [{fact: value}, ...]} in the terms of the environment's `facts()`: a value is met by
an equal fact, a list by any of its members, None by a fact that is absent. The trajectory's own record of rewards and
stops is not believed; only its action bytes count. Milestones reached at any step give the partial score.
"""

from typing import Any

from dormouse_core.envs import registry
from dormouse_core.envs.environment import StopReason
from dormouse_core.verifiers.attempt import Attempt, BadTask, Finding
from dormouse_core.verifiers.verdict import VerdictClass


def judge(attempt: Attempt) -> Finding:
    """The finding on one attempt. Raises BadTask where the trusted data cannot be used."""
    trusted = attempt.task.trusted
    target, milestones = trusted.get("target"), trusted.get("milestones", [])
    if not isinstance(target, dict) or not target or not isinstance(milestones, list | tuple):
        raise BadTask("env_step needs a target of at least one fact, and a list of milestones")
    environment = registry.start(attempt.task)
    facts = environment.facts()
    if met(target, facts):
        raise BadTask("the start state already meets the target")
    open_marks = list(milestones)
    replayed = 0
    for action in attempt.actions:
        result = environment.step(action)
        replayed += 1
        facts = environment.facts()
        open_marks = [m for m in open_marks if not met(m, facts)]
        if result.stop is not None:
            break
    total = len(milestones)
    passed = total - len(open_marks)
    if met(target, facts):
        return Finding(VerdictClass.PASS, "env_step.state", score=1.0, milestones_passed=passed, milestones_total=total)
    score = passed / (total + 1)
    if attempt.stop in (StopReason.BYTE_BUDGET, StopReason.MAX_STEPS):
        return Finding(VerdictClass.TRUNCATED, "env_step.stop", f"ended by {attempt.stop} after {replayed} actions", score,
                       milestones_passed=passed, milestones_total=total)
    if not attempt.actions:
        return Finding(VerdictClass.UNPARSEABLE, "env_step.stop", "no action", milestones_total=total)
    return Finding(VerdictClass.FAIL, "env_step.state", f"{_first_difference(target, facts)} after {replayed} actions", score,
                   milestones_passed=passed, milestones_total=total)


def met(wanted: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Every fact wanted is as wanted. Types count: True is not 1."""
    return all(_is(facts.get(name), value) for name, value in wanted.items())


def _is(fact: Any, wanted: Any) -> bool:
    if isinstance(wanted, list | tuple):
        return any(_is(fact, w) for w in wanted)
    return type(fact) is type(wanted) and bool(fact == wanted)


def _first_difference(target: dict[str, Any], facts: dict[str, Any]) -> str:
    return next(f"{name} is not as it should be" for name, value in target.items() if not _is(facts.get(name), value))
