"""The one IO manager: what flows between assets is an `Artifact` record, the bytes are in the content-addressed store.

Nothing is copied. On the way out the file is re-read and its hash compared with the record; on the way in the materialisation
that counts (see `lineage`) is looked up in the event log, and its file is hashed again. A mismatch is never retried.
"""

from typing import TYPE_CHECKING

import dagster as dg

from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.ledger import DormouseError
from dormouse_pipeline import lineage

if TYPE_CHECKING:
    from dormouse_core.artifacts.store import Store


def verified(store: "Store", artifact: Artifact, what: str) -> Artifact:
    """The artifact, after reading its file whole. Raises dg.Failure when the file is gone, damaged or another one."""
    try:
        found = store.open(store.path(artifact))
    except DormouseError as error:
        raise dg.Failure(f"{what}: {error}", allow_retries=False) from error
    if found.identity != artifact.identity or found.file_sha256 != artifact.file_sha256:
        raise dg.Failure(
            f"{what}: {store.path(artifact)} is not the file that was recorded (recorded sha256 {artifact.file_sha256[:16]}, found "
            f"{found.file_sha256[:16]}). Restore the file, or materialise the asset again.", allow_retries=False)
    return artifact


class StoreIOManager(dg.IOManager):
    """Hands `Artifact` records from asset to asset."""

    def __init__(self, store: "Store") -> None:
        self.store = store

    def handle_output(self, context: dg.OutputContext, obj: Artifact) -> None:
        verified(self.store, obj, f"{context.asset_key.to_user_string()} wrote a file that does not verify")

    def load_input(self, context: dg.InputContext) -> Artifact:
        asset = context.asset_key.to_user_string()
        partition = context.asset_partition_key if context.has_asset_partitions else None
        made = lineage.latest(context.instance, asset, partition, current=context.step_context.run_id)
        where = asset if partition is None else f"{asset} of {partition}"
        if made is None:
            raise dg.Failure(f"{where} does not exist yet, or only in a run that failed: materialise it first.", allow_retries=False)
        return verified(self.store, made.artifact, where)


@dg.io_manager(required_resource_keys={"workshop"}, description="Artifact records by content-addressed path; hashes checked both ways.")
def store_io_manager(context: dg.InitResourceContext) -> StoreIOManager:
    return StoreIOManager(context.resources.workshop.store)
