"""A learning rate named on its own, as `--lr` does: every group that is trained moves with it, those of Muon too.

Muon's step is relative to the weight and has a key of its own, `relative_step`, which `--set SECTION.optimizer.lr=...` leaves alone. Who
lowers the rate of a stage means all of it: so here the relative steps keep their ratio to the learning rate.
"""

from typing import Literal

from dormouse_core.config.optimizer import ROWS, MuonRow
from dormouse_core.config.resolve import resolve_from
from dormouse_core.config.run import RunConfig


def at_rate(config: RunConfig, section: Literal["train", "sft", "rl"], lr: float | None) -> RunConfig:
    """The configuration with `section.optimizer.lr` at lr and each of its relative steps times lr / what it was; None changes nothing.

    Raises DormouseError where the rate or a step it leads to is out of bounds.
    """
    if lr is None:
        return config
    optimizer = {"train": config.train.optimizer, "sft": config.sft.optimizer, "rl": config.rl.optimizer}[section]
    flags = {f"{section}.optimizer.lr": lr}
    for name in ROWS:
        if isinstance(row := optimizer.row(name), MuonRow):
            flags[f"{section}.optimizer.{name}.relative_step"] = row.relative_step * (lr / optimizer.lr)
    return resolve_from(config, flags=flags)
