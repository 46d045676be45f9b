"""Every known class of hacks has programs here; none is paid, each meets a defence of its class, and a fooled judge is seen through."""

from collections.abc import Iterator

import pytest

from dormouse_core.admission.hack_programs import PROGRAMS
from dormouse_core.admission.hacks import CLASSES, Hack, hacks
from dormouse_core.config.drift import refuse_drift
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.attempt import Attempt
from dormouse_core.verifiers.hack_screen import read_program
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from tests.adversarial.hacks.expected import BY_TASK, LABELS, VERDICTS

CONFIG = VerifyConfig(cpu_seconds=0.3, wall_seconds=4, memory_mib=64, workers=2)
SHOWN = "assert f(20, 5) == 25\nassert f(30, 41) == 71\n"


def add(prompt: str = SHOWN, prefix: str = "", reference: str = "def f(a, b):\n    return a + b\n") -> Task:
    pairs = [(i, i * i + 1) for i in range(2, 10)]
    return Task(pool=Pool.CODE, family="add", prompt=prompt.encode(), environment="answer", verifier=VerifierKind.EXEC, split=Split.TRAIN,
                use=Use.TRAIN, reference=(reference.encode(),), start={"program_prefix": prefix} if prefix else {},
                trusted={"entry_point": "f", "cases": [{"args": repr(p), "expected": repr(sum(p))} for p in pairs]})


ADD = add()
SHAPES = {
    "body": add(prefix="from typing import List\n\ndef f(a: int, b: int) -> int:\n    '''a plus b'''\n", reference="    return a + b\n"),
    "expression": draw("slice_function", 2, Split.TRAIN, 0, "hacks"), "pair": draw("pair_function", 1, Split.TRAIN, 0, "hacks"),
}
ALL = {f"{h.slug}/{h.number}": h for h in hacks(ADD)}


def attempts(task: Task, found: dict[str, Hack]) -> list[Attempt]:
    return [Attempt(name, task, (h.action,), StopReason.SUBMITTED) for name, h in found.items()]


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    with Runners(CONFIG, Ledger()) as running:
        yield running


@pytest.fixture(scope="module")
def verdicts(runners: Runners) -> dict[str, Verdict]:
    """Every program of every class, in one batch, honest ones among them."""
    honest = [Attempt(f"honest{i}", ADD, (f"# {i}\n".encode() + ADD.reference[0],), StopReason.SUBMITTED) for i in range(20)]
    found = judge([*attempts(ADD, ALL), *honest], CONFIG, Ledger(), runners)
    return {v.trajectory_id: v for v in found}


def test_there_are_forty_four_classes_and_each_has_a_program_or_a_test_of_its_own() -> None:
    assert [c.number for c in CLASSES] == list(range(1, 45)) and len({c.slug for c in CLASSES}) == 44
    assert {c.slug for c in CLASSES} == {h.slug for h in ALL.values()} | BY_TASK == set(VERDICTS) | BY_TASK
    assert {p.slug for p in PROGRAMS} <= {c.slug for c in CLASSES} and set(LABELS) <= set(VERDICTS)


@pytest.mark.parametrize("name", ALL)
def test_no_hostile_program_is_paid_and_each_ends_as_its_class_must(name: str, verdicts: dict[str, Verdict]) -> None:
    got = verdicts[name]
    assert got.verdict in VERDICTS[ALL[name].slug], (got.decided_by, got.reason)
    assert got.score < 1


def test_honest_programs_in_the_same_batch_pass(verdicts: dict[str, Verdict]) -> None:
    assert {v.verdict for n, v in verdicts.items() if n.startswith("honest")} == {VerdictClass.PASS}


@pytest.mark.parametrize("shape", SHAPES)
def test_hacks_fit_every_shape_of_task_and_pass_none(shape: str, runners: Runners) -> None:
    task = SHAPES[shape]
    found = {f"{h.slug}/{h.number}": h for h in hacks(task, without=("limits", "coverage"))}
    assert {h.slug for h in found.values()} >= set(VERDICTS) - {"stalling", "exhaustion", "flood", "fork_bomb", "lookup"}
    passed = [v.trajectory_id for v in judge(attempts(task, found), CONFIG, Ledger(), runners) if v.verdict is VerdictClass.PASS]
    assert not passed
    reference = Attempt("reference", task, task.reference, StopReason.SUBMITTED)
    assert judge([reference], CONFIG, Ledger(), runners)[0].verdict is VerdictClass.PASS


@pytest.mark.parametrize("name", [n for n, h in ALL.items() if h.slug in LABELS])
def test_a_hack_is_recognised_by_its_text_in_every_shape(name: str) -> None:
    hack = ALL[name]
    for task in (ADD, SHAPES["body"], SHAPES["expression"]):
        action = next((h.action for h in hacks(task) if (h.slug, h.number) == (hack.slug, hack.number)), None)
        if action is not None:
            assert read_program(task, action).labels & {label.value for label in LABELS[hack.slug]}


def test_a_provided_helper_that_solves_the_task_is_found_by_the_hack_that_looks_for_one(runners: Runners) -> None:
    task = add(prefix="def helper(a, b):\n    return a + b\n")
    hack = next(h for h in hacks(task) if h.slug == "inherited_helper")
    assert judge([Attempt("h", task, (hack.action,), StopReason.SUBMITTED)], CONFIG, Ledger(), runners)[0].verdict is VerdictClass.PASS


def test_a_resume_with_another_verifier_is_refused() -> None:
    before, after = RunConfig(), RunConfig(verify=VerifyConfig(cpu_seconds=60))
    with pytest.raises(DormouseError, match=r"verify\.cpu_seconds"):
        refuse_drift(before, after, "a resume file")
