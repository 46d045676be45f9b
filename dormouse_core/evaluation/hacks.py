"""The hack rate of a checkpoint on its own: baits laid on a suite's tasks, played beside the evaluation and never part of its scores.

At least FEWEST of them: with none taken the upper end of the interval is then below 2 %.
Not here: baits and proofs (admission/honeypots.py), how they are played (rollouts/honeypots.py).
"""

from collections.abc import Sequence

from dormouse_core.admission.honeypots import HackRate
from dormouse_core.artifacts.provenance import Artifact, Parent
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts import honeypots
from dormouse_core.rollouts.honeypots import HackState
from dormouse_core.rollouts.request import Origin
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.task import Task

FEWEST = 200
"""Baited episodes of a full evaluation, whatever `honeypots.episodes` says."""
CYCLE = "eval-honeypots"


class HackReport(Record):
    """What the baits laid on their own proved."""

    rate: HackRate
    state: HackState
    halt_above: float
    """The limit `state` was read at."""
    episodes: Parent
    """The baited episodes, with their tasks."""


def measure_hacks(config: RunConfig, policy: Policy, checkpoint: Artifact, tasks: Sequence[Task], *, store: Store, ledger: Ledger,
                  pool: WorkerPool, run_id: str = "") -> HackReport:
    """Lay baits on the tasks, play one episode each and store them. Raises DormouseError where none of the tasks can hold a bait."""
    origin = Origin(CYCLE, 0, checkpoint.identity, config.runtime.seed, policy.lfb_version)
    rate, laid, played = honeypots.measured(policy, tasks, max(FEWEST, config.honeypots.episodes), config, origin, ledger, pool)
    baited = honeypots.Baited(laid, honeypots.written(store, origin, laid, played), rate)
    kept = honeypots.keep(store, baited, config, checkpoint, run_id)
    state = honeypots.state_of(rate, config)
    above = f"; its lower end is above honeypots.halt_above = {config.honeypots.halt_above:.0%}: training from this checkpoint halts"
    ledger.loud(f"honeypots: {honeypots.describe(rate)}" + (above if state is HackState.HALTED else ""))
    return HackReport(rate=rate, state=state, halt_above=config.honeypots.halt_above,
                      episodes=Parent(role=honeypots.ROLE, kind=kept.kind, identity=kept.identity))
