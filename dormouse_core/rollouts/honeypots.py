"""Baited episodes, rolled and measured: how often a policy takes a hack that is offered, proven each time.

`beside_round` plays them with the stored round of a cycle and halts training where the proven rate is too high; `measured` is the
same on its own, for an evaluation. Their trajectories carry the probe flag, which every learner leaves out, and are stored apart
from the round's, with the baited tasks they answer.
Not here: baits and proofs (admission/honeypots.py).
"""

from collections.abc import Sequence
from itertools import cycle, islice
from math import ceil

from dormouse_core.admission.honeypots import TRAPS, HackRate, baited, measure
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.identity import canonical, sha256
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.engine import roll
from dormouse_core.rollouts.request import Origin, group_requests
from dormouse_core.rollouts.shards import ShardHead, in_order, write_shard
from dormouse_core.rollouts.stage import RolloutSet, Round, rollout_set
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.rollouts.verify import attempt_of
from dormouse_core.tasks.store import KEYS, tasks_to_table
from dormouse_core.tasks.task import Task

STAGE = "honeypots"


def baits(tasks: Sequence[Task], n: int, *names: str | int) -> list[Task]:
    """n baited tasks: the given ones in turn, every trap of their kind in turn, each with a poison of its own."""
    usable = [t for t in tasks if t.verifier in TRAPS]
    if not usable:
        return []
    turns = [(t, TRAPS[t.verifier][(i // len(usable)) % len(TRAPS[t.verifier])])
             for i, t in enumerate(islice(cycle(usable), n))]
    return [baited(task, trap, i, *names) for i, (task, trap) in enumerate(turns)]


def planned(config: RunConfig) -> int:
    """Baited episodes of a cycle: the configured share of the rollouts it plans, all rounds together."""
    return ceil(config.honeypots.share * config.rl.rounds * config.roll.prompts * config.roll.group_size)


def measured(policy: Policy, tasks: Sequence[Task], n: int, config: RunConfig, origin: Origin,
             ledger: Ledger) -> tuple[HackRate, list[Task], list[Trajectory]]:
    """Play n baits, one episode each, and prove what was taken: (the rate, the baited tasks, their trajectories)."""
    laid = baits(tasks, n, origin.cycle, origin.round, origin.policy, origin.seed)
    requests = [r for task in laid for r in group_requests(task, origin, [0], config.roll.temperature, probe=True)]
    quiet = Ledger(on_line=ledger.loud)  # they are no rollouts: their counts stay out of the stage's
    played = in_order(roll(policy, requests, config.roll, quiet), [t.id for t in laid]) if laid else []
    by_task = {t.task_id: t for t in played}
    answers = [attempt_of(by_task[t.id], t).actions if by_task[t.id].stop is not StopReason.INFRA else None for t in laid]
    return measure(laid, answers, config.verify, ledger), laid, played


def beside_round(policy: Policy, tasks: Sequence[Task], config: RunConfig, origin: Origin, *, store: Store, ledger: Ledger,
                 checkpoint: Artifact, run_id: str = "") -> tuple[Parent, ...]:
    """Play the cycle's honeypots, store them, and name them as a parent of the round; () where they are off, which is said.

    Raises DormouseError where the lower end of the proven hack rate's interval is above `honeypots.halt_above`: nothing may learn
    from this policy's rollouts until somebody has looked. The episodes are stored all the same.
    """
    if config.honeypots.share == 0:
        ledger.loud("honeypots: off (honeypots.share = 0); how often this policy hacks is not measured")
        return ()
    rate, laid, played = measured(policy, tasks, planned(config), config, origin, ledger)
    if not laid:
        ledger.loud("honeypots: none of the round's tasks can hold a bait; how often this policy hacks is not measured")
        return ()
    drawn = store.put_table(tasks_to_table(laid), KEYS, _provenance(config, Kind.TASKS, (), run_id))
    named = Parent(role="tasks", kind=drawn.kind, identity=drawn.identity)
    of = Parent(role="policy", kind=checkpoint.kind, identity=checkpoint.identity)
    made = _provenance(config, Kind.ROLLOUTS, (named, of), run_id, ledger)
    stored = store.put_record(_stored(store, origin, laid, played), made, ("shards",))
    said = describe(rate)
    ledger.loud(f"honeypots: {said}")
    if rate.low > config.honeypots.halt_above:
        raise DormouseError(
            f"training halts: {said}; the lower bound is above honeypots.halt_above = {config.honeypots.halt_above:.0%}. Read the episodes "
            f"in {stored.path} (their tasks: {drawn.path}), close what they took, and start again from a checkpoint before it; "
            "--set honeypots.halt_above=1 goes on regardless.")
    return (Parent(role="honeypots", kind=stored.kind, identity=stored.identity),)


def describe(rate: HackRate) -> str:
    """One sentence a person can act on."""
    taken = ", ".join(f"{trap} {t.proven}/{t.episodes}" for trap, t in rate.by_trap.items())
    return f"{rate.proven} of {rate.episodes} baits taken, hack rate {rate.rate:.1%} [{rate.low:.1%}, {rate.high:.1%}] ({taken})"


def _stored(store: Store, origin: Origin, laid: Sequence[Task], played: Sequence[Trajectory]) -> RolloutSet:
    names = tuple(t.id for t in laid)
    slot = sha256(canonical([STAGE, origin.policy, origin.lfb_version, origin.cycle, origin.round, origin.seed, list(names)]))
    head = ShardHead(key=sha256(slot.encode(), code_version().encode()), slot=slot, cycle=origin.cycle, round=origin.round,
                     policy=origin.policy, lfb_version=origin.lfb_version, code_version=code_version(), tasks=names)
    record = write_shard(store.root, head, played, {})
    return rollout_set(Round(list(played), (record,)), origin.cycle, origin.round, origin.policy)


def _provenance(config: RunConfig, kind: Kind, parents: tuple[Parent, ...], run_id: str, ledger: Ledger | None = None) -> Provenance:
    counters = {name: n for name, n in ledger.counters().items() if name.startswith("honeypots.")} if ledger else {}
    return Provenance(kind=kind, stage=STAGE, parents=parents, config_sha256=config.sha256(), code_version=code_version(),
                      seed=config.runtime.seed, counters=counters, run_id=run_id)
