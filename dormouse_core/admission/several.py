"""Tasks with more than one right answer, and answers whose truth is known: what trusted checkers and loosened comparisons are tried on.

One task a way: a checker of arguments and claim, a checker that is told something besides, a list of right values, elements in any
order. Each has several right programs that claim different values, and wrong ones that nearly hold.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind


class Several(NamedTuple):
    """A task (its reference is the first right program), and programs whose truth is known."""

    task: Task
    right: tuple[str, ...]
    wrong: tuple[str, ...]


def _task(name: str, prompt: str, entry_point: str, cases: list[dict[str, Any]], right: tuple[str, ...], **trusted: Any) -> Task:
    return Task(pool=Pool.CODE, family=name, prompt=prompt.encode(), environment="answer", verifier=VerifierKind.EXEC, byte_budget=1024,
                trusted={"entry_point": entry_point, "cases": cases, **trusted}, reference=(right[0].encode(),),
                params={"alternatives": list(right[1:])}, split=Split.PUBLIC, use=Use.EVALUATION, source="several answers")


_POLYNOMIALS = ((-6, 11, -6, 1), (0, -9, 0, 1), (2, 4), (-15, 23, -9, 1), (-6, -5, 2, 1), (0, 20, -9, 1), (-12, 4, 3, -1), (9, -3),
                (24, -10, -3, 1), (30, -31, 0, 1), (-28, 12, 3, -1), (35, 5), (5, 1, 5, 1))
_ROOT_CHECKER = """
def check(args, value):
    coefficients, = args
    if len(coefficients) % 2 or not coefficients[-1] or abs(value) > 1e6:
        return False
    return abs(sum(c * value**i for i, c in enumerate(coefficients))) < 1e-4
"""
_BISECT = """
def poly(c, x):
    return sum(k * x**i for i, k in enumerate(c))
def root(c):
    low, high = {low}, {high}
    for _ in range(50):
        if poly(c, low) * poly(c, high) > 0:
            low, high = {grow}
    for _ in range(90):
        middle = (low + high) / 2
        if poly(c, low) * poly(c, middle) <= 0:
            high = middle
        else:
            low = middle
    return high
"""
_EXACT = """def root(c):
    p = lambda x: sum(k * x**i for i, k in enumerate(c))
    return {0}(n / 2 for n in range(-40, 41) if p(n / 2) == 0){1}
"""
_ROOT_RIGHT = (
    _BISECT.format(low="-1.0", high="1.0", grow="low * 2, high * 2"),
    _BISECT.format(low="0.3", high="0.4", grow="2 * low - high, 2 * high - low"),
    _EXACT.format("max", ""), _EXACT.format("min", " + 1e-9"))
_ROOT_WRONG = (
    "def root(c):\n    return 0.0\n", "def root(c):\n    return float('nan')\n", "def root(c):\n    return 1\n",
    "def root(c):\n    return -c[0] / c[1]\n", _EXACT.format("str(max", ")"), _EXACT.format("max", " + 1e-3"),
    "def root(c):\n    return complex(1, 0)\n", "def root(c):\n    c[:] = [0] * len(c)\n    return 5.0\n")
ROOT = Several(
    _task("root", "root(c): a real x with c[0] + c[1]*x + c[2]*x**2 + ... = 0, any of them; the degree is odd", "root",
          [{"args": repr((list(c),))} for c in _POLYNOMIALS], _ROOT_RIGHT[:2],
          checker={"program": _ROOT_CHECKER, "accepts": "int | float"}),
    _ROOT_RIGHT, _ROOT_WRONG)

_MAZES = ((".#..", "....", "##.#", "...."), ("....", ".##.", ".##.", "...."), (".....", "####.", "....."), ("..", ".."),
          ("...", ".#.", "..."), ("......",), (".", ".", "."), ("..#", "#..", "...", "#.."), (".#...", ".#.#.", ".#.#.", "...#."),
          ("...", "..#", "#..", "..."), ("....", "....", "....", "...."))
_WALK = """
def check(args, value, known):
    maze, = args
    if len(value) != known:
        return False
    row = column = 0
    for step in value:
        row, column = row + {'D': 1, 'U': -1}.get(step, 0), column + {'R': 1, 'L': -1}.get(step, 0)
        if step not in 'DURL' or not 0 <= row < len(maze) or not 0 <= column < len(maze[0]) or maze[row][column] == '#':
            return False
    return (row, column) == (len(maze) - 1, len(maze[0]) - 1)
"""
_SEARCH = """
from collections import deque
def path(maze):
    goal = (len(maze) - 1, len(maze[0]) - 1)
    queue, seen = deque([(0, 0, '')]), {{(0, 0)}}
    while queue:
        row, column, way = queue.popleft()
        if (row, column) == goal:
            return way{after}
        for step, down, right in {steps}:
            place = (row + down, column + right)
            if place not in seen and 0 <= place[0] <= goal[0] and 0 <= place[1] <= goal[1] and maze[place[0]][place[1]] == '.':
                seen.add(place)
                queue.append((*place, way + step))
"""
_STEPS = (("D", 1, 0), ("U", -1, 0), ("R", 0, 1), ("L", 0, -1))
_PATH_RIGHT = tuple(_SEARCH.format(after="", steps=order) for order in (_STEPS, _STEPS[::-1]))
_PATH_WRONG = (
    _SEARCH.format(after=" + 'LR'", steps=_STEPS), _SEARCH.format(after="[:-1]", steps=_STEPS),
    _SEARCH.format(after=".lower()", steps=_STEPS),
    "def path(maze):\n    return 'R' * (len(maze[0]) - 1) + 'D' * (len(maze) - 1)\n", "def path(maze):\n    return list('DR')\n",
    "def path(maze):\n    return ''\n")
_LENGTHS = (6, 6, 6, 2, 4, 5, 2, 5, 13, 5, 6)
PATH = Several(
    _task("path", "path(maze): a shortest way from the upper left to the lower right over dots, as letters D U R L", "path",
          [{"args": repr((list(maze),)), "known": repr(n)} for maze, n in zip(_MAZES, _LENGTHS, strict=True)], _PATH_RIGHT,
          checker={"program": _WALK, "accepts": "str"}), _PATH_RIGHT, _PATH_WRONG)

_NUMBERS = (12, 16, 35, 77, 1001, 2310, 49, 97, 221, 30030, 143, 65, 187)
_FACTORS = {n: [p for p in range(2, n + 1) if n % p == 0 and all(p % d for d in range(2, p))] for n in _NUMBERS}
_FACTOR_RIGHT = (
    "def factor(n):\n    p = 2\n    while n % p:\n        p += 1\n    return p\n",
    "def factor(n):\n    p = 2\n    while n > 1:\n        p, n = (p, n // p) if n % p == 0 else (p + 1, n)\n    return p\n")
_FACTOR_WRONG = ("def factor(n):\n    return n\n", "def factor(n):\n    return 2 if n % 2 == 0 else 7\n", "def factor(n):\n    return 1\n",
                 "def factor(n):\n    p = 2\n    while n % p:\n        p += 1\n    return float(p)\n",
                 "def factor(n):\n    return [p for p in range(2, n + 1) if n % p == 0]\n")
FACTOR = Several(
    _task("factor", "factor(n): a prime that divides n, any of them", "factor",
          [{"args": repr((n,)), "any_of": [repr(p) for p in primes]} for n, primes in _FACTORS.items()], _FACTOR_RIGHT),
    _FACTOR_RIGHT, _FACTOR_WRONG)

_LISTS: tuple[tuple[list[int], list[int]], ...] = (
    ([1, 2, 3, 4], [4, 2, 9]), ([5, 5, 1], [5, 7]), ([], [1]), ([-3, 0, 8, 6], [6, -3, 8]), ([9, 8, 7, 6], [6, 7, 8, 9]), ([7], [7]),
    ([2, 4, 6, 8, 10], [1, 4, 9, 2]), ([3, 1, 4, 1, 5, 9], [9, 5, 1]), ([12, 15, 11], [11, 13, 15]), ([0, 1], [1, 0]), ([21, 22], [22, 23]))
_COMMON_RIGHT = (
    "def common(a, b):\n    return sorted(set(a) & set(b))\n", "def common(a, b):\n    return sorted(set(b) & set(a), reverse=True)\n",
    "def common(a, b):\n    return list(dict.fromkeys(x for x in b if x in a))\n")
_COMMON_WRONG = (
    "def common(a, b):\n    return [x for x in a if x in b]\n", "def common(a, b):\n    return set(a) & set(b)\n",
    "def common(a, b):\n    return tuple(sorted(set(a) & set(b)))\n", "def common(a, b):\n    return sorted(set(a) & set(b))[:3]\n",
    "def common(a, b):\n    return sorted(set(a) | set(b))\n", "def common(a, b):\n    return [float(x) for x in set(a) & set(b)]\n")
COMMON = Several(
    _task("common", "common(a, b): the numbers that are in both lists, each once, in any order", "common",
          [{"args": repr(pair), "expected": repr(sorted(set(pair[0]) & set(pair[1])))} for pair in _LISTS], _COMMON_RIGHT, relax="order"),
    _COMMON_RIGHT, _COMMON_WRONG)

SEVERAL = (ROOT, PATH, FACTOR, COMMON)


def answers() -> Iterator[tuple[str, Task, str, bool]]:
    """(name, task, program, whether it is right)."""
    for each in SEVERAL:
        for right, programs in ((True, each.right), (False, each.wrong)):
            for i, program in enumerate(programs):
                yield f"{each.task.family} {'right' if right else 'wrong'} {i}", each.task, program, right
