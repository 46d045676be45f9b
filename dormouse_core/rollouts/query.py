"""SQL over stored rollouts: DuckDB views `trajectories` and `steps` on every whole shard of a store.

    connect(root).sql("select cell, avg(tokens) from trajectories where start = 'root' group by cell")

Baited episodes are no rollouts: they stand in `probes` and `probe_steps`, so that no rate is mixed with them by accident. Torn
shards are not in the views. Blobs of per-byte arrays read back with `numpy.frombuffer(blob, '<f4')`.
"""

from pathlib import Path

import duckdb
import pyarrow as pa

from dormouse_core.rollouts.schema import STEPS, TRAJECTORIES
from dormouse_core.rollouts.shards import committed, folder


def connect(root: Path, cycle: str | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the views, over one cycle or all. The files are read when a query asks for them."""
    records = committed(root, cycle)
    connection = duckdb.connect(":memory:")
    for name, schema in (("trajectories", TRAJECTORIES), ("steps", STEPS)):
        paths = [str(folder(root, r.cycle) / getattr(r, name).file) for r in records]
        if paths:
            listed = ", ".join("'" + p.replace("'", "''") + "'" for p in paths)
            connection.execute(f"create view all_{name} as select * from read_parquet([{listed}])")
        else:
            connection.register(f"no_{name}", pa.table({f.name: pa.array([], f.type) for f in schema}))
            connection.execute(f"create view all_{name} as select * from no_{name}")
    connection.execute("create view probes as select * from all_trajectories where probe")
    connection.execute("create view trajectories as select * from all_trajectories where not probe")
    for name, which in (("probe_steps", "in"), ("steps", "not in")):
        connection.execute(f"create view {name} as select * from all_steps where trajectory_id {which} (select id from probes)")
    return connection
