"""Tasks as a table: one row a task, plain columns for queries and the whole record beside them.

Reading checks that every record still has the id it was stored under. Not here: writing files (artifacts).
"""

from collections.abc import Sequence

import pyarrow as pa
from pydantic import ValidationError

from dormouse_core.ledger import DormouseError
from dormouse_core.tasks.task import Task

KEYS = ("id",)
"""Columns that name a row: what an artifact's identity sorts by."""
SCHEMA = pa.schema([
    pa.field("id", pa.string(), nullable=False),
    pa.field("pool", pa.string()),
    pa.field("family", pa.string()),
    pa.field("difficulty", pa.int32()),
    pa.field("cell", pa.string()),
    pa.field("split", pa.string()),
    pa.field("use", pa.string()),
    pa.field("prompt", pa.binary()),
    pa.field("environment", pa.string()),
    pa.field("verifier", pa.string()),
    pa.field("byte_budget", pa.int32()),
    pa.field("max_steps", pa.int32()),
    pa.field("guess_bound", pa.float64()),
    pa.field("licence", pa.string()),
    pa.field("source", pa.string()),
    pa.field("task", pa.string(), nullable=False),  # the whole record, JSON
])
_PLAIN = [name for name in SCHEMA.names if name not in ("id", "cell", "task")]


def tasks_to_table(tasks: Sequence[Task]) -> pa.Table:
    """Distinct tasks, in the order of their first appearance."""
    distinct = list({t.id: t for t in tasks}.values())
    columns = {name: [getattr(t, name) for t in distinct] for name in _PLAIN}
    columns |= {"id": [t.id for t in distinct], "cell": [t.cell for t in distinct], "task": [t.model_dump_json() for t in distinct]}
    return pa.table([pa.array([_plain(v) for v in columns[f.name]], f.type) for f in SCHEMA], schema=SCHEMA)


def tasks_from_table(table: pa.Table) -> list[Task]:
    """The tasks of a table, in row order. Raises DormouseError where a row is no task or is not the one it says it is."""
    missing = {"id", "task"} - set(table.column_names)
    if missing:
        raise DormouseError(f"this is no table of tasks: it lacks the column(s) {', '.join(sorted(missing))}")
    tasks = []
    for row, (name, text) in enumerate(zip(table["id"].to_pylist(), table["task"].to_pylist(), strict=True)):
        try:
            task = Task.model_validate_json(text)
        except ValidationError as error:
            raise DormouseError(f"row {row} of the task table is no task: {error.errors()[0]['msg']}; draw the tasks again") from error
        if task.id != name:
            raise DormouseError(f"row {row} of the task table holds task {task.id[:12]} under the name {str(name)[:12]}: the record was "
                                f"changed, or was written by another version; draw the tasks again")
        tasks.append(task)
    return tasks


def _plain(value: object) -> object:
    return str(value) if isinstance(value, str) else value
