"""The roll stage: tasks and weights -> committed shards of trajectories, groups complete, forks included.

A round is cut into shards of a fixed number of groups (a function of the tasks alone); each shard is rolled, written and
committed by whichever worker takes it, and found again by a run that resumes. `run` is round 0 of a cycle; `roll_round` is the
same work from the live weights, for the rounds inside RL. Baited episodes (honeypots.py) ride in the same lanes and change no byte of
the others; they are committed in shards of their own, and a round's trajectories never hold one.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.identity import canonical, sha256
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import RolloutConfig
from dormouse_core.kernels.seen import report
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import Policy, load_policy
from dormouse_core.rollouts.engine import roll
from dormouse_core.rollouts.forks import roll_with_forks
from dormouse_core.rollouts.request import Origin, RolloutRequest, group_requests
from dormouse_core.rollouts.shards import ShardHead, ShardRecord, find_shard, in_order, read_shards, write_shard
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.store import tasks_from_table
from dormouse_core.tasks.task import Task

STAGE = "rollouts"
GROUPS_PER_SHARD = 8
"""With G = 8, one shard fills 64 lanes."""
BAITS_PER_SHARD = 16
"""Baited episodes that ride with one shard at least, before the next takes some: a shard of its own for each is dear."""
_SPEED = {"lanes", "workers"}


VOLATILE = ("shards",)
"""Fields of a RolloutSet that vary from run to run: file hashes cover timings."""


class RolloutSet(Record):
    """Payload of a ROLLOUTS artifact: which shards hold the trajectories."""

    cycle: str
    round: int
    policy: str
    """Identity of the weights that sampled them."""
    content: tuple[str, ...]
    """Identities of the shards' contents: what this set is. `shards` also says when and by which files, which varies."""
    shards: tuple[ShardRecord, ...]
    trajectories: int
    forks: int
    bytes: int
    """New bytes the policy wrote."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round left: trajectories in canonical order (tasks as given, rows, then their forks), and its shards; apart from them
    the baited episodes and theirs."""

    trajectories: list[Trajectory]
    shards: tuple[ShardRecord, ...]
    baited: tuple[Trajectory, ...] = ()
    bait_shards: tuple[ShardRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class _Shard:
    """One owed shard, as it travels to a worker."""

    root: Path
    head: ShardHead
    tasks: tuple[Task, ...]
    origin: Origin
    config: RolloutConfig
    forks: bool
    baits: tuple[Task, ...]


class _Played(NamedTuple):
    """The episodes of one shard, before they are written."""

    trajectories: list[Trajectory]
    baited: list[Trajectory]


class _Standing(NamedTuple):
    """The commit records of one shard and of its baited episodes (None: it has none)."""

    record: ShardRecord
    baits: ShardRecord | None


@dataclass(frozen=True, slots=True)
class _Rolled:
    """What is left to tell of a shard once it is committed."""

    stands: _Standing
    seconds: dict[str, float]
    asked: dict[str, int]
    ran: dict[str, int]
    lines: list[str]


def roll_round(policy: Policy, tasks: Sequence[Task], config: RunConfig, *, cycle: str, round: int, policy_identity: str, pool: WorkerPool,
               store: Store, ledger: Ledger, on_shard: Callable[[Sequence[Trajectory]], None] | None = None,
               baits: Sequence[Task] = ()) -> Round:
    """Roll one round from the live weights and commit its shards. Sets the pool's weights. Repeated tasks are rolled once, and
    counted; a shard that stands already (same weights, tasks, settings, seed and code) is read, not rolled.

    policy_identity: names the weights; every trajectory carries it.
    on_shard: given each shard's trajectories as soon as they are played, while others still roll and before they are committed.
    baits: baited tasks, played once each beside the round.
    """
    distinct = list({t.id: t for t in tasks}.values())
    ledger.count("rollouts.repeated_tasks", len(tasks) - len(distinct))
    origin = Origin(cycle, round, policy_identity, config.runtime.seed, policy.lfb_version)
    owed = _shards(distinct, config, origin, store.root, baits)
    standing = {s.head.key: found for s in owed if (found := _standing(s)) is not None}
    missing = [s for s in owed if s.head.key not in standing]
    pool.set_weights(policy)
    progress = _Progress(ledger, cycle, sum(len(s.tasks) for s in owed) * config.roll.group_size,
                         sum(len(s.tasks) for s in owed if s.head.key in standing) * config.roll.group_size)
    played: dict[str, _Played] = {}

    def arrived(key: str, part: _Played) -> None:
        played[key] = part
        if on_shard is not None:
            on_shard(part.trajectories)

    rolled = {r.stands.record.key: r for r in pool.map(
        roll_shard, missing, on_done=partial(progress.shard, missing, config.roll.group_size),
        on_part=lambda i, part: arrived(missing[i].head.key, part))}
    for key, found in standing.items():
        arrived(key, _Played(read_shards(store.root, [found.record]), read_shards(store.root, [found.baits] if found.baits else [])))
    for r in rolled.values():
        _absorb(ledger, r)
    stands = [rolled[s.head.key].stands if s.head.key in rolled else standing[s.head.key] for s in owed]
    for found in stands:
        for name, n in found.record.counts.items():
            ledger.count(name, n)
    ledger.ask("shards rolled (the rest stood already)", ran=True, n=len(missing))
    ledger.ask("shards rolled (the rest stood already)", ran=False, n=len(standing))
    return Round([t for s in owed for t in played[s.head.key].trajectories], tuple(found.record for found in stands),
                 tuple(t for s in owed for t in played[s.head.key].baited), tuple(found.baits for found in stands if found.baits))


def run(config: RunConfig, tasks: Artifact, checkpoint: Artifact, *, cycle: str, round: int = 0, store: Store, ledger: Ledger,
        run_id: str = "", pool: WorkerPool | None = None) -> Artifact:
    """Roll `roll.group_size` trajectories of every task from a checkpoint, and the round's baited episodes beside them. Resumes by shard.
    Raises DormouseError on bad inputs, a full disk, a dead worker, or a policy that takes bait; whatever was committed stays."""
    drawn = tasks_from_table(store.read_table(tasks))
    policy = load_policy(store.read_checkpoint(checkpoint), config.policy, checkpoint.path)
    from dormouse_core.rollouts import honeypots  # they are rounds of their own, built on this module

    origin = Origin(cycle, round, checkpoint.identity, config.runtime.seed, policy.lfb_version)
    laid = honeypots.lay(drawn, config, origin, ledger)
    own = pool is None
    crew = pool or WorkerPool(config.roll.workers, config.runtime.threads)
    try:
        done = roll_round(policy, drawn, config, cycle=cycle, round=round, policy_identity=checkpoint.identity, pool=crew, store=store,
                          ledger=ledger, baits=laid)
    finally:
        if own:
            crew.close()
    beside = honeypots.beside(done, laid, config, origin, checkpoint, store=store, ledger=ledger, run_id=run_id)
    payload = rollout_set(done, cycle, round, checkpoint.identity)
    parents = (Parent(role="tasks", kind=tasks.kind, identity=tasks.identity),
               Parent(role="policy", kind=checkpoint.kind, identity=checkpoint.identity), *beside)
    return store.put_record(payload, Provenance(
        kind=Kind.ROLLOUTS, stage=STAGE, parents=parents, config_sha256=config.sha256(), code_version=code_version(),
        seed=config.runtime.seed, counters=ledger.counters(), run_id=run_id), VOLATILE)


def rollout_set(done: Round, cycle: str, round: int, policy_identity: str) -> RolloutSet:
    """The payload that names a round's shards."""
    return RolloutSet(cycle=cycle, round=round, policy=policy_identity, content=tuple(r.identity for r in done.shards),
                      shards=done.shards, trajectories=len(done.trajectories),
                      forks=sum(t.parent_id != "" for t in done.trajectories),
                      bytes=sum(s.tokens for t in done.trajectories for s in t.sampled_steps))


def load(store: Store, rollouts: Artifact) -> list[Trajectory]:
    """Every trajectory of a ROLLOUTS artifact, in canonical order, files verified. Raises DormouseError on a missing or changed shard."""
    return read_shards(store.root, store.read_record(rollouts, RolloutSet).shards)


def roll_shard(policy: Policy, shard: _Shard) -> Generator[_Played, None, _Rolled]:
    """Roll one shard, hand its trajectories over, then write and commit it, baited episodes first: a shard that stands has them. Runs in
    a worker."""
    ledger = Ledger()
    rows = range(shard.config.group_size)
    requests = [r for task in shard.tasks for r in group_requests(task, shard.origin, rows, shard.config.temperature)]
    requests += bait_requests(shard.baits, shard.origin, shard.config)
    played = list((roll_with_forks if shard.forks else roll)(policy, requests, shard.config, ledger))
    trajectories = in_order([t for t in played if not t.probe], shard.head.tasks)
    baited = in_order([t for t in played if t.probe], [t.id for t in shard.baits])
    yield _Played(trajectories, baited)
    started = time.perf_counter()
    baits = write_shard(shard.root, bait_head(shard.baits, shard.origin), baited, {}) if shard.baits else None
    record = write_shard(shard.root, shard.head, trajectories, ledger.counters())
    ledger.seconds["rollouts.write"] += time.perf_counter() - started
    report(ledger)
    return _Rolled(_Standing(record, baits), dict(ledger.seconds), dict(ledger.asked), dict(ledger.ran), ledger.lines)


def bait_requests(baits: Sequence[Task], origin: Origin, config: RolloutConfig) -> list[RolloutRequest]:
    """One episode a baited task, with the probe flag."""
    return [r for task in baits for r in group_requests(task, origin, [0], config.temperature, probe=True)]


def bait_head(baits: Sequence[Task], origin: Origin) -> ShardHead:
    """What names a shard of baited episodes."""
    names = tuple(t.id for t in baits)
    slot = sha256(canonical(["honeypots", origin.policy, origin.lfb_version, origin.cycle, origin.round, origin.seed, names]))
    return _head(slot, origin, names)


def _head(slot: str, origin: Origin, names: tuple[str, ...]) -> ShardHead:
    return ShardHead(key=sha256(slot.encode(), code_version().encode()), slot=slot, cycle=origin.cycle, round=origin.round,
                     policy=origin.policy, lfb_version=origin.lfb_version, code_version=code_version(), tasks=names)


def _standing(shard: _Shard) -> _Standing | None:
    """The shard as it stands, baited episodes included; None while some of it is owed."""
    cycle = shard.head.cycle
    record = find_shard(shard.root, cycle, shard.head.key)
    baits = find_shard(shard.root, cycle, bait_head(shard.baits, shard.origin).key) if record and shard.baits else None
    return None if record is None or (shard.baits and baits is None) else _Standing(record, baits)


def _shards(tasks: Sequence[Task], config: RunConfig, origin: Origin, root: Path, baits: Sequence[Task]) -> list[_Shard]:
    """The round, cut every GROUPS_PER_SHARD tasks; its baits ride with the first shards."""
    forks = config.rl.advantage.kind == "fork-replay" and config.roll.fork_share > 0
    settings = config.roll.model_dump(mode="json", exclude=_SPEED | set() if forks else _SPEED | {"fork_share", "fork_entropy"})
    shards: list[_Shard] = []
    each = max(-(-len(baits) * GROUPS_PER_SHARD // max(len(tasks), 1)), BAITS_PER_SHARD)
    for i in range(0, len(tasks), GROUPS_PER_SHARD):
        part = tuple(tasks[i : i + GROUPS_PER_SHARD])
        names = tuple(t.id for t in part)
        slot = sha256(canonical([origin.policy, origin.lfb_version, origin.cycle, origin.round, origin.seed, names, settings, forks]))
        mine = tuple(baits[len(shards) * each : (len(shards) + 1) * each])
        shards.append(_Shard(root, _head(slot, origin, names), part, origin, config.roll, forks, mine))
    return shards


class _Progress:
    """Says how far a round is, with its rate, as shards arrive."""

    def __init__(self, ledger: Ledger, cycle: str, total: int, done: int) -> None:
        self.ledger, self.cycle, self.total, self.done = ledger, cycle, total, done
        self.started, self.at_start = time.perf_counter(), done

    def shard(self, missing: Sequence[_Shard], group_size: int, index: int, _: _Rolled) -> None:
        self.done += len(missing[index].tasks) * group_size
        rate = (self.done - self.at_start) / max(time.perf_counter() - self.started, 1e-9)
        self.ledger.progress(STAGE, self.done, self.total, "trajectories", rate=rate, cycle=self.cycle)


def _absorb(ledger: Ledger, rolled: _Rolled) -> None:
    """What a worker's ledger held beside its counts (those stand in the shard's record)."""
    for name, seconds in rolled.seconds.items():
        ledger.seconds[name] += seconds
    for name, n in rolled.asked.items():
        ledger.ask(name, ran=True, n=rolled.ran.get(name, 0))
        ledger.ask(name, ran=False, n=n - rolled.ran.get(name, 0))
    for line in rolled.lines:
        ledger.loud(line)
