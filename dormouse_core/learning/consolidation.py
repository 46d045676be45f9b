"""Consolidation by rejection sampling: after the rounds, supervised steps on what the verifiers passed in this cycle.

Policy gradient moves a byte by its credit, once, and forgets it; these steps read every distinct verified pass of the cycle again
(expert iteration; ReST-EM, 2312.06585, eq. 4 with a 0/1 reward; docs/mechanisms/consolidation.md).
Not here: which trajectories pass (verifiers), the update (update.py), the rounds (rounds.py).
"""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import PassesConsolidation
from dormouse_core.learning.batches import epoch_order
from dormouse_core.learning.monitor import Round
from dormouse_core.learning.rows import Rows, observation_mask
from dormouse_core.learning.sft import text_works, within
from dormouse_core.learning.update import Fuse, Pool, update
from dormouse_core.ledger import Ledger
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import Policy
from dormouse_core.seeding import key
from dormouse_core.verifiers.verdict import VerdictClass


class Passes:
    """The distinct verified passes of a cycle's rounds, in the order they were first sampled.

    A row is the stream as the policy saw it; its targets are the bytes the policy itself wrote there (in a fork: after the fork).
    Probes and whatever is not a pass (screened rows among them) never enter.
    """

    def __init__(self) -> None:
        self._mask_of: dict[bytes, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._mask_of)

    def add(self, round: Round) -> None:
        for trajectory, verdict in zip(round.trajectories, round.verdicts, strict=True):
            if verdict.verdict is VerdictClass.PASS and not trajectory.probe:
                content, step_L, _ = trajectory.stream()
                self._mask_of.setdefault(content, step_L >= 0)

    def rows(self) -> Rows:
        streams, masks = [np.frombuffer(content, dtype=np.uint8) for content in self._mask_of], list(self._mask_of.values())
        return Rows(streams, masks, [observation_mask(s) & ~m for s, m in zip(streams, masks, strict=True)])


class Consolidation:
    """The phase: `steps` supervised updates of the policy, each on a batch of passes, with an optimizer of its own.

    Batches are a function of (seed, cycle, step): a resumed phase ends at the bits of one that was never stopped.
    """

    def __init__(self, config: RunConfig, how: PassesConsolidation, policy: Policy, cycle: str, pool: Pool, ledger: Ledger) -> None:
        self.config, self.how, self.policy, self.pool, self.ledger = config, how, policy, pool, ledger
        self.seed = key("consolidation", config.runtime.seed, cycle)
        self.optimizer = build_optimizer(policy, how.optimizer, how.steps, config.runtime.seed)
        self.passes, self.losses = Passes(), list[float]()

    def run(self, save: Callable[[], None]) -> dict[str, float]:
        """Run the steps that are owed, calling `save` every `ckpt_every`. Returns what the phase did; the expert balance stays frozen."""
        if not len(self.passes):
            self.ledger.loud("rl: no trajectory of this cycle passed, so there is nothing to consolidate")
            self.ledger.ask("consolidation", ran=False)
            return {"rows": 0.0, "steps": 0.0}
        self.ledger.ask("consolidation", ran=True)
        rows = self.passes.rows()
        rows = rows.pick(within(rows, self.config, self.ledger))
        per_epoch = -(-len(rows) // self.how.batch)
        fuse, epoch, order = Fuse("consolidation", self.ledger), -1, list[np.ndarray]()
        while len(self.losses) < self.how.steps:
            now, at = divmod(len(self.losses), per_epoch)
            if now != epoch:
                epoch, order = now, epoch_order(rows.lengths(), self.how.batch, self.seed, now)
            self.pool.set_weights(self.policy)
            works = text_works(rows.pick(order[at]), self.config, count_load=False)
            outcome = update(self.policy, self.optimizer, self.pool, works)
            fuse.check(outcome, f"step {len(self.losses)}")
            self.losses.append(outcome.report["text_sum"])
            self.ledger.progress("consolidation", len(self.losses), self.how.steps, "steps", loss=self.losses[-1])
            if len(self.losses) % self.how.ckpt_every == 0 and len(self.losses) < self.how.steps:
                save()
        return {"rows": float(len(rows)), "steps": float(self.how.steps), "epochs": self.how.steps / per_epoch,
                "first_loss": self.losses[0], "last_loss": self.losses[-1]}

    def load(self, losses: list[float], moments: dict[str, Tensor]) -> None:
        """Go on behind the steps whose losses these are."""
        self.losses = list(losses)
        self.optimizer.load(moments)
