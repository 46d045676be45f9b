"""Never RL alone: an SFT batch rides on a fixed share of RL's updates (2606.26027; docs/mechanisms/sft-interleave.md).

Which updates carry one, and which rows, are functions of (seed, update number) alone.
Not here: its loss (loss.py), and the monitor-triggered form, which is another arm.
"""

from dataclasses import dataclass

import numpy as np

from dormouse_core.artifacts.provenance import Kind
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.learning.batches import epoch_order
from dormouse_core.learning.demonstrations import build_rows
from dormouse_core.learning.rows import Rows, heldout_side, rendered, training_rows
from dormouse_core.learning.sft import text_works, within
from dormouse_core.learning.update import TextWork
from dormouse_core.ledger import Ledger
from dormouse_core.seeding import generator, key


@dataclass(frozen=True, slots=True)
class Interleave:
    """The share of updates that carry a batch, and the rows it is taken from."""

    share: float
    seed: int
    rows: Rows
    config: RunConfig

    def works(self, number: int) -> list[TextWork]:
        """The SFT micro-batches of update `number`; none where it carries none."""
        before, after = carried(self.share, self.seed, number), carried(self.share, self.seed, number + 1)
        if after == before:
            return []
        per_epoch = -(-len(self.rows) // self.config.sft.batch)
        epoch, at = divmod(before, per_epoch)
        batch = self.rows.pick(epoch_order(self.rows.lengths(), self.config.sft.batch, self.seed, epoch)[at])
        return text_works(batch, self.config, self.config.rl.sft_weight, count_load=False)


def carried(share: float, seed: int, number: int) -> int:
    """How many of the first `number` updates carry a batch: an even spread with a phase drawn by the seed."""
    phase = float(generator("interleave-phase", seed).random())
    return int(np.floor(number * share + phase)) - int(np.floor(phase))


def share_of(config: RunConfig, written: float | None, ledger: Ledger) -> float:
    """The share RL follows: its own setting, else what SFT wrote into the checkpoint. Off is said aloud, and so is a base
    that holds none."""
    share = config.rl.interleave_sft if config.rl.interleave_sft is not None else written
    if share is None:
        ledger.loud("rl: SFT interleave is off: the base holds no share (it is no SFT checkpoint) and rl.interleave_sft is not set")
        return 0.0
    if share == 0:
        ledger.loud("rl: SFT interleave is off (share 0)")
    return share


def interleave_seed(config: RunConfig, cycle: str) -> int:
    """Cycles of one run see different rows."""
    return key("interleave", config.runtime.seed, cycle)


def stored_rows(config: RunConfig, identity: str | None, store: Store, ledger: Ledger) -> Rows:
    """The rows SFT trained on, from the table it named in its checkpoint; without that table, built again from the
    configuration, which is said aloud."""
    table = store.find(Kind.DEMONSTRATIONS, identity) if identity else None
    if table is not None:
        return training_rows(store.read_table(table))
    ledger.loud("rl: the base names no stored SFT rows" if identity is None else
                f"rl: the base's SFT rows ({identity[:16]}) are not in this store")
    ledger.loud("rl: the interleaved SFT rows are built again from the configuration")
    built = build_rows(config, load_suite(config.loop.suite), config.runtime.seed)
    rows = rendered([row.segments for row in built], config.sft.mask == "all")
    rows = rows.pick(within(rows, config, ledger))
    return rows.pick(np.flatnonzero(~heldout_side(rows, config.sft.heldout_share)))
