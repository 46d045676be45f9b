"""Assert-style suites turned into cases, once, by recording: inputs and what is accepted instead of code that judges.

A public code task may come with a `check(candidate)` function instead of literal cases. Its asserts are rewritten to note the
arguments they would pass and the value they would accept (recorder.py); the rewritten suite runs once beside the task's own
reference, in the runner like any program. Asserts that accept more than one value become cases of a trusted checker, made of the
suite's own expressions. What cannot be noted leaves the task as it is: its verdicts then carry `in_child_asserts`.
"""

import ast
from collections.abc import Sequence
from typing import Any, NamedTuple

from dormouse_core.admission.recorder import HEAD, TAIL, Recorder, Site, function_name
from dormouse_core.envs.registry import environment
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox import wire
from dormouse_core.sandbox.runner import End, Job, Outcome, Runners
from dormouse_core.tasks.task import Task, VerifierKind
from dormouse_core.verifiers.attempt import BadTask


class Recording(NamedTuple):
    """A suite ready to be recorded."""

    program: bytes
    sites: list[Site]
    behind: str
    """What stands behind the asserts' expressions: the reference, the suite's own helpers and imports."""


def convert(tasks: Sequence[Task], runners: Runners, ledger: Ledger) -> list[Task]:
    """Tasks in order; those judged by `test_src` alone come back with cases where every assert could be recorded.
    Counts `admission.asserts_converted` (of them `admission.asserts_checked` with a checker) and `admission.asserts_kept`."""
    suites: dict[int, Recording] = {}
    done = list(tasks)
    for index, task in enumerate(tasks):
        if task.verifier is VerifierKind.EXEC and "cases" not in task.trusted and task.trusted.get("test_src"):
            try:
                suites[index] = _recording(task)
            except (BadTask, SyntaxError, RecursionError):
                ledger.count("admission.asserts_kept")
    jobs = [Job(suite.program, "__claim__", (wire.encode(()),)) for suite in suites.values()]
    for (index, suite), outcome in zip(suites.items(), runners.run(jobs)[0], strict=True):
        try:
            judged_by = _cases(suite, outcome)
        except (BadTask, ValueError, SyntaxError):
            ledger.count("admission.asserts_kept")
            continue
        ledger.count("admission.asserts_converted")
        ledger.count("admission.asserts_checked", "checker" in judged_by)
        trusted = {k: v for k, v in tasks[index].trusted.items() if k != "test_src"} | judged_by | {"typing": "python"}
        done[index] = tasks[index].model_copy(update={"trusted": trusted})
        done[index].__dict__.pop("id", None)  # the id is a function of the content just changed
    return done


def _recording(task: Task) -> Recording:
    """The reference, then the suite with every assert recording. Raises BadTask where an assert has another form."""
    if not task.reference:
        raise BadTask("no reference to record with")
    tree = ast.parse(task.trusted["test_src"])
    checks = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check" and len(n.args.args) == 1]
    if len(checks) != 1:
        raise BadTask("no single check(candidate) in the suite")
    head, tail = str(task.start.get("program_prefix", "")), str(task.start.get("program_suffix", ""))
    program = environment(task.environment).leaves(task, task.reference)
    if program is None:
        raise BadTask("the reference leaves no program")
    reference = head + program.decode("utf-8", "replace") + tail + "\n"
    helpers = [ast.unparse(n) for n in tree.body if n is not checks[0] and not isinstance(n, ast.Expr)]
    recorder = Recorder(checks[0])
    checks[0].body = [recorder.visit(statement) for statement in checks[0].body]
    source = reference + HEAD + ast.unparse(ast.fix_missing_locations(tree)) + TAIL
    return Recording(source.encode(), recorder.sites, reference + "\n".join([*helpers, *recorder.imports]) + "\n")


def _cases(suite: Recording, outcome: Outcome) -> dict[str, Any]:
    """Cases, and the checker where some need one. Raises BadTask or ValueError where what was noted cannot be used."""
    if outcome.end is not End.CLEAN or len(outcome.claims) != 1 or outcome.claims[0].kind != b"V":
        raise BadTask("the reference did not get through its own suite")
    rows = wire.decode(outcome.claims[0].payload)
    if not isinstance(rows, list) or not rows:
        raise BadTask("no assert was reached")
    places = [_places(site, [row for row in rows if row[3:] == ("check",) and row[1] == number]) for number, site in enumerate(suite.sites)]
    cases = [_checked(row, suite.sites, places) if row[3:] == ("check",) else _valued(row) for row in rows]
    if not any("check" in case for case in cases):
        return {"cases": cases}
    functions = "".join(site.function(number, places[number]) for number, site in enumerate(suite.sites))
    return {"cases": cases, "checker": {"program": suite.behind + functions, "accepts": "any"}}


def _places(site: Site, rows: list[Any]) -> dict[str, int]:
    """Names that are one and the same argument in every row: the checker reads them there, so it can be asked about other inputs too."""
    found: dict[str, int] = {}
    for name in site.names:
        for place in range(min((len(args) for args, *_ in rows), default=0)):
            if all(repr(known[name]) == repr(args[place]) for args, _, known, _ in rows):
                found[name] = place
                break
    return found


def _checked(row: Any, sites: Sequence[Site], places: Sequence[dict[str, int]]) -> dict[str, Any]:
    args, number, known, _ = row
    told = {name: known[name] for name in sites[number].names if name not in places[number]}
    case: dict[str, Any] = {"args": repr(args), "check": function_name(number)} | ({"known": repr(told)} if told else {})
    return _literal(case, "args", *(["known"] if told else []))


def _valued(row: Any) -> dict[str, Any]:
    args, expected, extra = row
    return _literal({"args": repr(args), "expected": repr(expected), **extra}, "args", "expected")


def _literal(case: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        ast.literal_eval(str(case[name]))
    return case
