"""Eight easy families of the reasoning-gym library (Apache-2.0), graded by our own exact verifier.

Each comes twice: `rg_gcd` shows the problem's data alone, as short as ours (`g641,595`), `rg_gcd_text` the library's own
question. The question is kept in `params` either way. The library is imported on first use; its own scorers are not used.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import gcd
from typing import Any

import numpy as np

from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.family import Draft, Family
from dormouse_core.tasks.generators._exact import exact, wrong_number, wrong_string
from dormouse_core.tasks.task import Pool, Task

_ITEMS = 2**31 - 1
Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """One library data set as a family."""

    name: str
    about: str
    compact: Callable[[Item], str]
    settings: tuple[dict[str, Any], ...]
    """The library's settings by difficulty."""
    form: str = "number"
    worked: Callable[[Item], str | None] = lambda item: None


@cache
def _dataset(name: str, difficulty: int) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise DormouseError(f"family rg_{name} needs the package reasoning-gym, which cannot be imported ({error}); install it "
                            "(pip install reasoning-gym) or take the rg_ families out of the suite") from error
    return reasoning_gym.create_dataset(name, size=_ITEMS, seed=0, **_SOURCES[name].settings[difficulty])


def _make(name: str, text: bool, difficulty: int, rng: np.random.Generator) -> Draft:
    source = _SOURCES[name]
    item: Item = _dataset(name, difficulty)[int(rng.integers(_ITEMS))]
    compact = source.compact(item)
    data = {key: item["metadata"][key] for key in ("expression", "numbers", "binary", "number") if key in item["metadata"]}
    prompt = item["question"] if text else compact
    return exact(compact, prompt, str(item["answer"]), source.form, byte_budget=64, question=item["question"], **data)


def _worked(name: str, task: Task) -> bytes | None:
    working = _SOURCES[name].worked(dict(task.params))
    return working.encode() if working is not None else None


def _totals(params: Item) -> str | None:
    """Running totals of a chain of + and -; None for other expressions."""
    expression = _packed(params["expression"])
    if not re.fullmatch(r"\d+([+-]\d+)+", expression):
        return None
    first, *rest = re.findall(r"[+-]?\d+", expression)
    total, out = int(first), first
    for term in rest:
        total += int(term)
        out += f"{term}={total}"
    return out


def _euclid(params: Item) -> str:
    a, b = sorted(params["numbers"], reverse=True)
    out = ""
    while b:
        out += f"{a},{b}="
        a, b = b, a % b
    return out + str(gcd(*params["numbers"]))


def _bits(params: Item) -> str:
    return f"{params['binary']}={params['binary'].count('1')}"


def _packed(text: str) -> str:
    return text.replace(" ", "")


_KNOBS: tuple[tuple[int, int], ...] = ((2, 1), (3, 1), (4, 1), (3, 2), (4, 2), (4, 3))
"""(terms, digits) by difficulty."""
_LEVELS = range(6)

_SOURCES = {source.name: source for source in (
    Source("chain_sum", "the library's chain of + and -: c57+87", lambda i: "c" + _packed(i["metadata"]["expression"]),
           tuple({"min_terms": t, "max_terms": t, "min_digits": d, "max_digits": d} for t, d in _KNOBS), worked=_totals),
    Source("basic_arithmetic", "the library's arithmetic with brackets: b(3+4)*2",
           lambda i: "b" + _packed(i["metadata"]["expression"]),
           tuple({"min_terms": t, "max_terms": t, "min_digits": d, "max_digits": d, "allow_negation": False,
                  "operators": ["+", "-"] if k < 2 else ["+", "-", "*"]} for k, (t, d) in enumerate(_KNOBS)), worked=_totals),
    Source("simple_equations", "the library's equations in one unknown: e3*x+4=19", lambda i: "e" + _packed(i["metadata"]["equation"]),
           tuple({"min_terms": 2, "max_terms": 2 + k // 2, "max_value": (9, 20, 20, 50, 100, 100)[k]} for k in _LEVELS)),
    Source("count_bits", "one bits of a number: n37", lambda i: f"n{i['metadata']['number']}",
           tuple({"min_n": n // 8, "max_n": n} for n in (15, 63, 255, 1023, 65535, 2**31 - 1)), worked=_bits),
    Source("gcd", "the library's greatest common divisors (1 is common): g12,18",
           lambda i: "g" + ",".join(map(str, i["metadata"]["numbers"])),
           tuple({"max_value": n} for n in (12, 20, 50, 100, 300, 1000)), worked=_euclid),
    Source("number_sequence", "the next number: q3,6,9", lambda i: "q" + _packed(i["question"]).removesuffix(",?"),
           tuple({"min_terms": 4 + (k + 1) // 2, "max_terms": 4 + (k + 1) // 2, "min_value": -9 * (k + 1), "max_value": 9 * (k + 1),
                  "max_complexity": 1 + k // 2} for k in _LEVELS)),
    Source("spell_backward", "a word backwards: wsun", lambda i: "w" + i["metadata"]["word"],
           tuple({"min_word_len": n, "max_word_len": n} for n in (3, 4, 5, 6, 8, 10)), form="string"),
    Source("letter_counting", "how often a letter occurs: ha:banana",
           lambda i: f"h{i['metadata']['target_letter']}:{' '.join(i['metadata']['span'])}",
           tuple({"min_words": n, "max_words": n} for n in (1, 2, 3, 4, 6, 8))),
)}


def _family(source: Source, text: bool) -> Family:
    wrong = wrong_string if source.form == "string" else wrong_number
    about = f"{source.about}, in the library's own words" if text else source.about
    return Family(f"rg_{source.name}{'_text' if text else ''}", Pool.MATH, about, partial(_make, source.name, text), wrong,
                  partial(_worked, source.name), licence="Apache-2.0", source="reasoning-gym")


FAMILIES = tuple(_family(source, text) for text in (False, True) for source in _SOURCES.values())
