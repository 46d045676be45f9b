"""What a task's own text decides, without running anything: novelty, budget, leaks, guesses.

Each function says why a task is refused, or "" where the rule holds, or None where the task has nothing to check it by.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dormouse_core.encoding import escape
from dormouse_core.tasks.task import Task, VerifierKind
from dormouse_core.verifiers.hack_screen_visible import prompted_examples, visible_examples

SHORT = 4
"""Bytes from which an answer in the prompt is no coincidence."""
GUESS, LUCK = 0.5, 1e-3
"""Highest share of one answer, and highest chance that guesses of that share get every hidden case."""
WORDS, ALIKE = 5, 0.8
"""Words a shingle, and the Jaccard similarity from which two prompts are one task."""
FEWEST_SHINGLES = 20
"""Prompts with fewer shingles are compared whole: a short notation says everything in every word."""
TEMPLATE, TEMPLATE_TASKS = 0.2, 10
"""Share of a family's tasks, and number of them, from which a word sequence belongs to the family and not to a task."""
FEWEST_TASKS = 20
"""Tasks of a family below which the share of its commonest answer says nothing."""
_MARKED = r"(?:\banswers?\b\s*(?:is|:|=+|->)?|\b(?:solution|expected|result|output)\s*(?:is|:|=+|->)|####|\bA:)\s*[\"'(\[]?\s*"
"""What stands before an answer that a prompt gives away."""


def canonical(task: Task) -> str:
    """What makes two tasks one: the problem itself, whatever its hidden cases."""
    return f"{task.family}\0{task.params['canonical']}" if "canonical" in task.params else task.prompt.decode("utf-8", "replace").strip()


class Known:
    """The tasks seen so far, for novelty. What many tasks of a family have in common is its template and makes no two of them alike."""

    def __init__(self, tasks: Sequence[Task] = ()) -> None:
        """tasks: all that will be asked about, and all that were admitted before: what their templates are read from."""
        self._exact: dict[str, str] = {}
        self._holders: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._sizes: list[int] = []
        self._names: list[str] = []
        self._template = _templates(tasks)

    def novelty(self, task: Task) -> str:
        """Remembers the task where it is new."""
        key, name = canonical(task), task.source if task.source != "generated" else f"{task.cell} {task.id[:8]}"
        if key in self._exact:
            return f"the same problem as {self._exact[key]}"
        template = self._template.get(task.family, frozenset())
        pieces = {} if "canonical" in task.params else {piece: None for piece in _shingles(key) if piece not in template}
        if len(pieces) >= FEWEST_SHINGLES:
            shared = Counter(i for piece in pieces for i in self._holders.get(piece, ()))
            for i, n in shared.most_common(1):
                if (alike := n / (len(pieces) + self._sizes[i] - n)) >= ALIKE:
                    return f"{alike:.0%} of its word sequences are those of {self._names[i]}"
            for piece in pieces:
                self._holders[piece].append(len(self._sizes))
            self._sizes.append(len(pieces))
            self._names.append(name)
        self._exact[key] = name
        return ""


def _templates(tasks: Sequence[Task]) -> dict[str, frozenset[tuple[str, ...]]]:
    """For each family, the word sequences that more than TEMPLATE of its tasks have, and TEMPLATE_TASKS at least."""
    counts: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    sizes: Counter[str] = Counter()
    for task in {canonical(t): t for t in tasks if "canonical" not in t.params}.values():
        sizes[task.family] += 1
        counts[task.family].update(set(_shingles(canonical(task))))
    return {family: frozenset(piece for piece, n in found.items() if n >= max(TEMPLATE_TASKS, TEMPLATE * sizes[family]))
            for family, found in counts.items()}


def _shingles(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return [tuple(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)]


def solvable(task: Task) -> str | None:
    """The reference fits the byte budget (END counted) and the step limit."""
    if not task.reference:
        return None
    need = sum(len(escape(action)) + 1 for action in task.reference)
    if need > task.byte_budget:
        return f"its reference needs {need} bytes, the budget is {task.byte_budget}"
    return f"its reference takes {len(task.reference)} steps, the limit is {task.max_steps}" if len(task.reference) > task.max_steps else ""


def leak(task: Task) -> str:
    """No answer stands in the prompt: a hidden case with its value, a hidden value that is neither an input nor shown for another input,
    a marked answer, or the reference itself. The faulty program of a repair task is given, not told."""
    prompt = task.prompt.decode("utf-8", "replace")
    solution = b"".join(task.reference).decode("utf-8", "replace").strip()
    if task.verifier is VerifierKind.EXEC:
        if len(solution) >= 4 * SHORT and solution in prompt.replace(str(task.params.get("given", "\0")), ""):
            return "its reference stands in the prompt"
        return _told(task, prompt)
    if task.verifier is VerifierKind.REPO:
        shown = [path for path, text in task.trusted["tests"].items() if len(text.strip()) >= 4 * SHORT and text.strip() in prompt]
        return f"its hidden tests {shown[0]} stand in the prompt" if shown else \
            "its reference stands in the prompt" if solution and solution in prompt else ""
    if task.verifier is VerifierKind.ENV_STEP:
        told = len(task.reference) > 1 and len(solution) >= SHORT and solution in prompt
        return "its reference actions stand in the prompt" if told else ""
    answer = str(task.trusted.get("answer", "")).strip()
    if len(answer) >= SHORT and re.search(_MARKED + re.escape(answer) + r"(?!\w)", prompt, re.IGNORECASE):
        return "the prompt says which answer is right"
    return ""


def _told(task: Task, prompt: str) -> str:
    cases = task.trusted.get("cases", ())
    examples = prompted_examples(task)
    shown, text = {repr(e.args) for e in examples}, "".join(prompt.split())
    told = [i for i, case in enumerate(cases) if repr(_args(case)) in shown or _in_words(case, text)]
    if told:
        return f"{len(told)} of its {len(cases)} hidden cases are shown in the prompt (the first is case {told[0]})"
    counts = Counter(value for case in cases for value in right_values(case))
    if len(counts) < len(cases) and all(value in prompt for value in counts):
        return ""  # the answers there are, named; which of them is right is not
    known = {"None", "True", "False"} | {repr(e.expected) for e in examples} | {value for value, n in counts.items() if n > 1}
    inputs = " ".join(str(case["args"]) for case in cases)
    for index, case in enumerate(cases):
        for value in map(str.strip, right_values(case)):
            if len(value) >= SHORT and value in prompt and value not in inputs and value not in known:
                return f"the value of hidden case {index} stands in the prompt"
    return ""


def _args(case: Mapping[str, Any]) -> Any:
    return ast.literal_eval(str(case["args"]))


def _in_words(case: Mapping[str, Any], text: str) -> bool:
    """Its arguments stand in the prompt (blanks taken out), one after the other, and soon behind them one of its values."""
    args = ["".join(repr(a).split()) for a in _args(case)]
    if sum(map(len, args)) < SHORT:
        return False
    before, values = ".{0,24}?".join(map(re.escape, args)), [re.escape("".join(v.split())) for v in right_values(case)]
    return any(re.search(rf"(?<![\d.]){before}(?!\d|\.\d)\D{{0,48}}?(?<![\d.]){value}(?!\d|\.\d)", text) for value in values)


def right_values(case: Mapping[str, Any]) -> list[str]:
    """The right values a hidden case lists, as text; none where a checker decides it."""
    listed = case.get("any_of", [case["expected"]] if "expected" in case else [])
    return [str(value) for value in (listed if isinstance(listed, list | tuple) else ())]


def hidden_behind_shown(task: Task) -> str | None:
    """Some hidden case must not be shown. Nothing tells which assertions a repository's own tests already show."""
    if task.verifier is not VerifierKind.EXEC:
        return None if task.verifier is VerifierKind.REPO else ""
    shown = {repr(e.args) for e in visible_examples(task)}
    cases = task.trusted.get("cases", ())
    if shown and cases and all(repr(ast.literal_eval(str(c["args"]))) in shown for c in cases):
        return f"all {len(cases)} hidden cases are shown in the prompt"
    return ""


def lucky(most: int, cases: int) -> str:
    """Whether one value that is right in `most` of the hidden cases is right too often."""
    share = most / cases if cases else 1.0
    if share > GUESS:
        return f"{share:.0%} of its {cases} hidden cases have one value (limit {GUESS:.0%})"
    return "" if share**cases <= LUCK else f"{cases} hidden cases are guessed with chance {share**cases:.1g} (limit {LUCK:g})"


class Guesses:
    """Shares of the commonest answer, over the tasks of one call."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._answers: defaultdict[str, Counter[Any]] = defaultdict(Counter)
        for task in tasks:
            if task.verifier is VerifierKind.EXACT:
                self._answers[task.family][str(task.trusted.get("answer", ""))] += 1

    def bound(self, task: Task) -> str | None:
        """A policy that knows nothing is right at most GUESS of the time on one value, and with LUCK at most on all hidden cases."""
        if task.verifier is VerifierKind.EXEC:
            cases = task.trusted.get("cases", ())
            values = Counter(value for case in cases for value in dict.fromkeys(right_values(case)))
            return lucky(max(values.values()), len(cases)) if values else None
        share = task.guess_bound
        if share >= 1:  # not measured
            if sum(self._answers[task.family].values()) < FEWEST_TASKS:
                return None
            share = max(self._answers[task.family].values()) / sum(self._answers[task.family].values())
        return "" if share <= GUESS else f"one answer is right in {share:.0%} of {task.family} (limit {GUESS:.0%})"
