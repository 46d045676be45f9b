"""Rules of the register machine: one number from 0 to 99, four operations, all shortest distances.

Shared by the generators (which need plans) and the environment (which executes). Pure functions, nothing held.
"""

from functools import cache

SIZE = 100
MACHINES = {"walk": ("+1", "-1", "+10", "-10"), "mix": ("+3", "*2", "-7", "swap")}
"""Operations of each machine; the action bytes are a, b, c, d in this order."""
LETTERS = "abcd"


def show(value: int) -> str:
    """Two digits, always."""
    return f"{value:02d}"


def apply(operation: str, value: int) -> int | None:
    """The number after one operation; None where `walk` would leave 0..99 (the operation is refused). `mix` counts modulo 100."""
    if operation == "swap":
        return value % 10 * 10 + value // 10
    if operation[0] == "*":
        return value * int(operation[1:]) % SIZE
    moved = value + int(operation)
    if operation in MACHINES["walk"]:
        return moved if 0 <= moved < SIZE else None
    return moved % SIZE


def successors(machine: str, value: int) -> list[int | None]:
    """The number after each of the machine's operations, in the order of their letters."""
    return [apply(operation, value) for operation in MACHINES[machine]]


@cache
def _edges(machine: str) -> tuple[tuple[int | None, ...], ...]:
    return tuple(tuple(successors(machine, value)) for value in range(SIZE))


@cache
def distances(machine: str, goal: int) -> tuple[int | None, ...]:
    """Fewest steps from each number to the goal; None where it cannot be reached."""
    before: list[list[int]] = [[] for _ in range(SIZE)]
    for value, after in enumerate(_edges(machine)):
        for target in after:
            if target is not None:
                before[target].append(value)
    found: list[int | None] = [None] * SIZE
    found[goal], edge, depth = 0, [goal], 0
    while edge:
        depth += 1
        reached = sorted({v for target in edge for v in before[target] if found[v] is None})
        for value in reached:
            found[value] = depth
        edge = reached
    return tuple(found)


@cache
def pairs(machine: str, fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """Every (start, goal) whose shortest plan has `fewest` to `most` steps."""
    return tuple((start, goal) for goal in range(SIZE) for start, steps in enumerate(distances(machine, goal))
                 if steps is not None and fewest <= steps <= most)


def best_actions(machine: str, value: int, goal: int) -> list[str]:
    """Letters of every operation that lies on a shortest path; empty at the goal and where it cannot be reached."""
    to_goal = distances(machine, goal)
    here = to_goal[value]
    if not here:
        return []
    return [letter for letter, after in zip(LETTERS, _edges(machine)[value], strict=True)
            if after is not None and to_goal[after] == here - 1]


def plan(machine: str, value: int, goal: int) -> list[str]:
    """One shortest plan, first letters first. Raises ValueError where the goal cannot be reached."""
    if distances(machine, goal)[value] is None:
        raise ValueError(f"machine {machine} cannot reach {goal} from {value}")
    letters: list[str] = []
    while value != goal:
        letters.append(best_actions(machine, value, goal)[0])
        after = _edges(machine)[value][LETTERS.index(letters[-1])]
        assert after is not None  # best_actions names no refused operation
        value = after
    return letters


def milestones(machine: str, value: int, goal: int) -> list[dict[str, list[int]]]:
    """Marks on the way, at most three: {"value": numbers that are within d steps of the goal}, d falling by quarters of the way.

    A mark is a set of states, so every shortest path earns it, and being near by another path does too.
    """
    to_goal = distances(machine, goal)
    whole = to_goal[value] or 0
    marks = sorted({whole * quarter // 4 for quarter in (3, 2, 1)} - {0, whole}, reverse=True)
    return [{"value": [v for v, d in enumerate(to_goal) if d is not None and d <= mark]} for mark in marks]
