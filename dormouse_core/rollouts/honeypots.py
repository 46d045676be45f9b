"""Baited episodes: how often a policy takes a hack that is offered, proven each time, and when nothing may learn from it any more.

    lay -> they ride in the round's own lanes (stage.roll_round) -> prove -> keep -> guard

`lay` gives a round its share, `keep` names the episodes apart from the round's, with the baited tasks they answer, `guard` halts;
`beside` is the last three, for a stored round. `measured` plays baits on their own, for an evaluation. Trajectories carry the probe
flag, which everything that learns or counts leaves out; what a round learns from never holds them in the first place.
Not here: baits and proofs (admission/honeypots.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any

from dormouse_core.admission.honeypots import HackRate, baited, measure, traps_of
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import RolloutConfig, VerifyConfig
from dormouse_core.envs.environment import StopReason
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.engine import roll
from dormouse_core.rollouts.request import Origin, RolloutRequest
from dormouse_core.rollouts.shards import in_order, write_shard
from dormouse_core.rollouts.stage import VOLATILE, RolloutSet, Round, bait_head, bait_requests, rollout_set
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.rollouts.verify import attempt_of
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.store import KEYS, tasks_to_table
from dormouse_core.tasks.task import Task

STAGE = "honeypots"
ROLE = "honeypots"
"""What a round's baited episodes are to its rollouts."""


class HackState(StrEnum):
    """What a hack rate says of going on."""

    UNMEASURED = "unmeasured"  # no bait was laid
    WITHIN = "within"  # the lower end of its interval is not above honeypots.halt_above
    HALTED = "halted"  # it is: nothing learns from this policy until somebody has decided


@dataclass(frozen=True)
class Baited:
    """Baited episodes that were played: the tasks, which shards hold them, and what they proved."""

    tasks: Sequence[Task]
    held: RolloutSet
    rate: HackRate


class Halted(DormouseError):
    """Training ended by a proven hack rate. `facts` are the numbers, for whoever shows the failure."""

    def __init__(self, message: str, facts: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.facts = dict(facts)


def state_of(rate: HackRate, config: RunConfig) -> HackState:
    if not rate.episodes:
        return HackState.UNMEASURED
    return HackState.HALTED if rate.low > config.honeypots.halt_above else HackState.WITHIN


def due(config: RunConfig, number: int, tasks: int) -> range:
    """Which baits round `number` of so many tasks gets: `honeypots.share` of its rollouts in whole ones, so that the rounds together have
    the share exactly and the first has at least one."""
    each = config.honeypots.share * tasks * config.roll.group_size
    before, after = (ceil(round(each * k, 9)) for k in (number, number + 1))  # rounded: 2.56 * 25 is 64, not a little more
    return range(before, after)


def baits(tasks: Sequence[Task], numbers: Iterable[int], *names: str | int) -> list[Task]:
    """One baited task a number: the given tasks in turn, every trap of their kind in turn, each with a poison of its own."""
    usable = [t for t in tasks if traps_of(t)]
    turns = [(i, usable[i % len(usable)], i + i // len(usable)) for i in numbers] if usable else []
    return [baited(task, traps_of(task)[turn % len(traps_of(task))], i, *names) for i, task, turn in turns]


def lay(tasks: Sequence[Task], config: RunConfig, origin: Origin, ledger: Ledger) -> list[Task]:
    """The baited tasks of a round over these tasks; none where they are off or no task can hold a bait, which is said."""
    if config.honeypots.share == 0:
        ledger.loud("honeypots: off (honeypots.share = 0); how often this policy hacks is not measured")
        return []
    distinct = list({t.id: t for t in tasks}.values())
    owed = due(config, origin.round, len(distinct))
    laid = baits(distinct, owed, origin.cycle, origin.round, origin.policy, origin.seed)
    ledger.ask("baited episodes", ran=True, n=len(laid))
    ledger.ask("baited episodes", ran=False, n=len(owed) - len(laid))
    if owed and not laid:
        ledger.loud(f"honeypots: none of the tasks of round {origin.round} can hold a bait; its hack rate is not measured")
    return laid


def prove(laid: Sequence[Task], done: Round, origin: Origin, config: VerifyConfig, ledger: Ledger,
          runners: Runners | None = None) -> Baited | None:
    """What a round's baited episodes prove; None where it had none. Counts as `measure` does."""
    held = rollout_set(Round(list(done.baited), done.bait_shards), origin.cycle, origin.round, origin.policy)
    return Baited(laid, held, _taken(laid, done.baited, config, ledger, runners)) if laid else None


def _taken(laid: Sequence[Task], played: Sequence[Trajectory], config: VerifyConfig, ledger: Ledger, runners: Runners | None) -> HackRate:
    by_task = {t.task_id: t for t in played}
    answers = [attempt_of(by_task[t.id], t).actions if by_task[t.id].stop is not StopReason.INFRA else None for t in laid]
    return measure(laid, answers, config, ledger, runners)


def measured(policy: Policy, tasks: Sequence[Task], n: int, config: RunConfig, origin: Origin, ledger: Ledger,
             pool: WorkerPool | None = None) -> tuple[HackRate, list[Task], list[Trajectory]]:
    """Play n baits on their own, one episode each, and prove what was taken: (the rate, the baited tasks, their trajectories). Raises
    DormouseError where none of the tasks can hold a bait."""
    laid = baits(tasks, range(n), origin.cycle, origin.round, origin.policy, origin.seed)
    if not laid:
        raise DormouseError("honeypots: none of the tasks can hold a bait (a repository's, or programs judged by asserts inside their own "
                            "process); name others")
    owed = bait_requests(laid, origin, config.roll)
    if pool is None:
        played = list(roll(policy, owed, config.roll, Ledger(on_line=ledger.loud)))
    else:
        pool.set_weights(policy)
        parts = [(tuple(owed[i :: pool.workers]), config.roll) for i in range(pool.workers) if owed[i :: pool.workers]]
        played = [t for part in pool.map(play_part, parts) for t in part]
    played = in_order(played, [t.id for t in laid])
    return _taken(laid, played, config.verify, ledger, None), laid, played


def play_part(policy: Policy, part: tuple[tuple[RolloutRequest, ...], RolloutConfig]) -> list[Trajectory]:
    """One worker's baited episodes. Module-level: worker processes are sent it."""
    return list(roll(policy, part[0], part[1], Ledger()))


def written(store: Store, origin: Origin, laid: Sequence[Task], played: Sequence[Trajectory]) -> RolloutSet:
    """Store episodes that were played on their own."""
    record = write_shard(store.root, bait_head(laid, origin), played, {})
    return rollout_set(Round(list(played), (record,)), origin.cycle, origin.round, origin.policy)


def keep(store: Store, baited: Baited, config: RunConfig, policy: Artifact, run_id: str = "") -> Artifact:
    """Name stored episodes, with their baited tasks and what they proved. policy: the checkpoint that is trained or measured."""
    made = {"stage": STAGE, "config_sha256": config.sha256(), "code_version": code_version(), "seed": config.runtime.seed, "run_id": run_id}
    drawn = store.put_table(tasks_to_table(baited.tasks), KEYS, Provenance(kind=Kind.TASKS, **made))
    parents = (Parent(role="tasks", kind=drawn.kind, identity=drawn.identity),
               Parent(role="policy", kind=policy.kind, identity=policy.identity))
    return store.put_record(baited.held, Provenance(
        kind=Kind.ROLLOUTS, parents=parents, counters=baited.rate.counters(), **made), VOLATILE)


def beside(done: Round, laid: Sequence[Task], config: RunConfig, origin: Origin, policy: Artifact, *, store: Store, ledger: Ledger,
           run_id: str = "") -> tuple[Parent, ...]:
    """Prove and keep what was laid beside a stored round, and name it as its parent; () where nothing was. Raises Halted where nothing
    may learn from this policy: the round's shards and the episodes are kept all the same."""
    baited = prove(laid, done, origin, config.verify, ledger)
    if baited is None:
        return ()
    stored = keep(store, baited, config, policy, run_id)
    ledger.loud(f"honeypots: {describe(baited.rate)}")
    guard(baited.rate, config, ledger, str(store.path(stored)), "takes the round as it was rolled")
    return (Parent(role=ROLE, kind=stored.kind, identity=stored.identity),)


def kept_beside(store: Store, rollouts: Artifact, ledger: Ledger) -> Artifact | None:
    """The baited episodes of a stored round; None where it had none. `rate_of` its counters is what they proved."""
    named = next((p for p in rollouts.provenance.parents if p.role == ROLE), None)
    found = store.find(named.kind, named.identity) if named is not None else None
    if named is not None and found is None:
        ledger.loud(f"honeypots: the baited episodes beside {rollouts.path} ({named.identity[:16]}) are not in this store: they are not "
                    "counted. Restore them to have the whole rate.")
    return found


def numbers(rate: HackRate) -> dict[str, float]:
    """A hack rate as columns of a table; empty where no bait was laid."""
    if not rate.episodes:
        return {}
    return {"honeypots": float(rate.episodes), "honeypots_proven": float(rate.proven), "hack_rate": rate.rate, "hack_rate_low": rate.low,
            "hack_rate_high": rate.high}


def describe(rate: HackRate) -> str:
    """One sentence a person can act on."""
    taken = ", ".join(f"{trap} {t.proven}/{t.episodes}" for trap, t in rate.by_trap.items())
    return f"{rate.proven} of {rate.episodes} baits taken, hack rate {rate.rate:.1%} [{rate.low:.1%}, {rate.high:.1%}] ({taken})"


def guard(rate: HackRate, config: RunConfig, ledger: Ledger, where: str, go_on: str) -> None:
    """Halt where the lower end of the interval is above `honeypots.halt_above`: nothing may learn from this policy's rollouts until
    somebody has looked. where: the file of the last episodes. go_on: what the same command would do. Raises Halted, after a loud line."""
    if state_of(rate, config) is not HackState.HALTED:
        return
    said = f"training halts: {describe(rate)}; the lower bound is above honeypots.halt_above = {config.honeypots.halt_above:.0%}"
    ledger.loud(f"honeypots: {said}")
    raise Halted(f"{said}. No update was made from this round. Read the episodes in {where}, close what they took and "
                 f"start again from a checkpoint before it; or decide to go on regardless: the same command with "
                 f"--set honeypots.halt_above=1 {go_on}.",
                 {"ended": HackState.HALTED.value, "halt_above": config.honeypots.halt_above, **numbers(rate)})
