"""What the gate asks of a task whose answers a trusted checker decides, or that takes more than one value.

A checker is a program, and may be wrong: it may say yes to anything, to one constant, or have no opinion (raise, run on) about a value
nobody thought of. So constants, and claims made to break it, are put to it by way of programs that claim them; and two solutions agree
where the checker takes both, not where they claim the same.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from dormouse_core.admission.mutants import INPUTS, random_inputs
from dormouse_core.ledger import Ledger
from dormouse_core.sandbox import wire
from dormouse_core.sandbox.runner import End, Job, Outcome, Runners
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.cases import prepare, rule_of
from dormouse_core.verifiers.checker import Asked, Check, answers
from dormouse_core.verifiers.compare import Rule, equal

CONSTANTS = 8
"""Commonest claims of a reference that are tried as constants."""
_STOCK = ("None", "0", "1", "-1", "0.0", "1.0", "True", "False", "''", "[]", "()", "{}", "set()", "[0]", "(0, 0)", "'a'", "0j", "b''")
BREAKERS = (
    ("NaN", "float('nan')"), ("infinity", "float('inf')"), ("minus infinity", "-float('inf')"), ("NaNs", "[float('nan')] * 3"),
    ("complex infinity", "complex(float('inf'), 0)"), ("huge", "1 << 60000"), ("hugely negative", "-(1 << 60000)"),
    ("large float", "1e308"), ("tiny float", "5e-324"), ("long text", "'x' * 12000"), ("surrogate", "'\\ud800'"), ("NUL", "'\\x00'"),
    ("long list", "[0] * 2500"),
    ("range", "list(range(1200))"), ("colliding", "{k * ((1 << 61) - 1) for k in range(700)}"), ("nested", "__nest(30)"),
    ("nested too deep", "__nest(60)"), ("lists", "[[], [[]]]"), ("mapping", "{'': None, (): 1.5}"), ("liar", "__Yes(7)"),
    ("text", "'True'"))
"""Values no task asks for, as expressions."""
_BREAKING = """def __nest(n):
    value = []
    for _ in range(n):
        value = [value]
    return value
class __Yes(int):
    def __eq__(self, other):
        return True
    def __lt__(self, other):
        return True
    __le__ = __gt__ = __ge__ = __eq__
    __hash__ = int.__hash__
"""


def is_checked(task: Task) -> bool:
    """Some case is decided by the task's checker."""
    return "checker" in task.trusted and bool(task.trusted.get("cases"))


def breakers(name: str) -> Iterator[tuple[str, str]]:
    """(about, source) of programs that claim what may break a checker."""
    for about, expression in BREAKERS:
        yield about, f"{_BREAKING}def {name}(*a, **k):\n    return {expression}\n"


def constants(tasks: Sequence[Task], programs: Sequence[str], runners: Runners) -> list[list[str]]:
    """For each task, expressions of constants that may be right surprisingly often: stock values, and what its reference claims most."""
    outcomes = runners.run([_job(t, p, prepare(t).inputs) for t, p in zip(tasks, programs, strict=True)])[0] if tasks else []
    found = []
    for outcome in outcomes:
        claimed = Counter(repr(wire.decode(c.payload)) for c in outcome.claims if c.kind == b"V").most_common(CONSTANTS)
        found.append(list(dict.fromkeys([*_STOCK, *(text for text, _ in claimed if _is_literal(text))])))
    return found


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def general(task: Task) -> bool:
    """Whether two right solutions can be compared on any input: by the one value there is, or by a checker that is told nothing else. Not
    where a case lists its own right values, or tells its checker what no other input comes with."""
    rows = task.trusted.get("cases", ())
    return bool(rows) and not any(row.keys() & {"any_of", "known"} for row in rows)


def agree(pairs: Sequence[tuple[Task, str, str]], runners: Runners, n: int = INPUTS) -> list[bool]:
    """For each (task, reference, program): does the program answer as well as the reference on all n random inputs? By the task's checker
    where it decides every case of a general task (whatever it takes of the reference it must take of the program), else by value under
    the task's own comparison. A program that ends otherwise (limits, exits) does not; where the reference itself does, there is
    nothing to compare and the answer is yes."""
    jobs = []
    inputs = []
    for task, first, second in pairs:
        inputs.append(tuple(wire.encode(args, in_order=True) for args in random_inputs(task, n)))
        jobs += [_job(task, text, inputs[-1]) for text in (first, second)]
    outcomes = runners.run(jobs)[0] if jobs else []
    both = list(zip(outcomes[::2], outcomes[1::2], strict=True))
    asked = []
    for (task, _, _), rows, two in zip(pairs, inputs, both, strict=True):
        if (function := _asks(task)) and all(map(_ran, two)):
            cases = prepare(task)
            assert cases.checker is not None  # _asks saw one
            checks = {i: Check(function, args) for i, args in enumerate(rows)}
            asked += [Asked(cases.checker, checks, outcome.claims, cases.cpu_seconds) for outcome in two]
    told = iter(answers(asked, runners, Ledger()) if asked else ())
    found = []
    for (task, _, _), (first_run, second_run) in zip(pairs, both, strict=True):
        if not _ran(first_run) or not _ran(second_run):
            found.append(not _ran(first_run))
        elif _asks(task):
            one, other = next(told), next(told)
            found.append(all(other.get(i, i) is None for i, trouble in one.items() if trouble is None))
        else:
            found.append(_same(first_run, second_run, _rule(task)))
    return found


def _job(task: Task, program: str, inputs: tuple[bytes, ...]) -> Job:
    return Job(program.encode(), str(task.trusted["entry_point"]), inputs, cpu_seconds=float(task.trusted.get("cpu_seconds") or 0.0))


def _ran(outcome: Outcome) -> bool:
    return outcome.end is End.CLEAN and not outcome.load_error


def _asks(task: Task) -> str:
    """The checker's function where it decides every case of a general task, else ''."""
    rows = task.trusted.get("cases", ())
    functions = {"" if "expected" in row else str(row.get("check", "check")) for row in rows}
    return functions.pop() if is_checked(task) and general(task) and len(functions) == 1 else ""


def _rule(task: Task) -> Rule:
    """The comparison of all cases where they share one, else the strictest."""
    rules = {rule_of(task.trusted, row) for row in task.trusted.get("cases", ())}
    return rules.pop() if len(rules) == 1 else Rule()


def _same(first: Outcome, second: Outcome, rule: Rule) -> bool:
    """The same exceptions and equal values, case by case."""
    return all(a == b or (a.kind == b.kind == b"V" and equal(wire.decode_tree(b.payload), wire.decode_tree(a.payload), rule))
               for a, b in zip(first.claims, second.claims, strict=True))
