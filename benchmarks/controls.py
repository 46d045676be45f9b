"""The two controls: what the same CPU-seconds buy without reinforcement learning, from the same SFT base.

more_sft     goes on with SFT on the very rows the base was trained on, at a constant rate
own_passes   rejection sampling: rolls the base on tasks of the train split, keeps what the verifiers pass (exact repeats once), and
             trains on that; half the budget each

A budget of CPU-seconds becomes a number of rounds and steps once, by measuring the first few, and is stored; from then on nothing
depends on a clock, and a killed control ends in the same bits. Rolling, judging and updating are the stages' own code.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks import cpu
from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.identity import canonical, config_content
from dormouse_core.artifacts.journal import StageJournal, stage_key
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.config.stages import GroupAdvantage
from dormouse_core.config.suite import Suite, load_suite
from dormouse_core.learning.batches import epoch_order
from dormouse_core.learning.consolidation import Passes
from dormouse_core.learning.interleave import stored_rows
from dormouse_core.learning.monitor import Round
from dormouse_core.learning.rounds import Rounds
from dormouse_core.learning.rows import Rows
from dormouse_core.learning.sft import copied, text_works, within
from dormouse_core.learning.update import Fuse, update
from dormouse_core.ledger import Ledger
from dormouse_core.optim.balance import balance
from dormouse_core.optim.groups import Optimizer, build_optimizer
from dormouse_core.policy.model import Policy, load_policy
from dormouse_core.rollouts import stage, verify
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.seeding import key as stream
from dormouse_core.tasks.source import EvenSource
from dormouse_core.tasks.store import KEYS, tasks_to_table

CYCLE = "own-passes.c0000"
WARM = 2
"""Steps before the measured ones: first allocations are not the price of a step."""


class ControlRun(Record):
    """What a control made and cost."""

    name: str
    identity: str
    """Of its checkpoint; the base's where it had nothing to learn from."""
    budget: float
    """CPU-seconds it was given."""
    cpu: float
    """CPU-seconds its rounds and steps took."""
    steps: int
    rows: int
    """Rows it trained on."""
    rounds: int = 0
    trajectories: int = 0


@dataclass(frozen=True)
class Bench:
    """What both controls share."""

    config: RunConfig
    base: Artifact
    budget: float
    store: Store
    pool: WorkerPool
    ledger: Ledger
    measured_steps: int = 32
    measured_rounds: int = 4
    """The first of them also starts processes, so it is not measured."""

    def policy(self) -> Policy:
        return load_policy(self.store.read_checkpoint(self.base), self.config.policy, self.base.path)

    def key(self, name: str) -> str:
        return stage_key(name, self.base.identity, f"{self.budget:.3f}", canonical(config_content(self.config)).decode(), code_version())

    def provenance(self, name: str, kind: Kind, parents: tuple[Parent, ...] = ()) -> Provenance:
        of_base = Parent(role="base", kind=self.base.kind, identity=self.base.identity)
        return Provenance(kind=kind, stage=name, parents=(of_base, *parents), config_sha256=self.config.sha256(),
                          code_version=code_version(), seed=self.config.runtime.seed)


def more_sft(bench: Bench) -> ControlRun:
    """SFT from the base on its own training rows for the whole budget. The last weights count."""
    name = "more_sft"
    named = bench.store.read_checkpoint(bench.base).state.get("demonstrations")
    rows = stored_rows(bench.config, named, bench.store, bench.ledger)
    journal = StageJournal(bench.store, f"{bench.key(name)}-counts")
    steps = _steps(bench, name, rows, bench.budget, journal)
    of_rows = (Parent(role="demonstrations", kind=Kind.DEMONSTRATIONS, identity=named),) if named else ()
    artifact, spent = _train(bench, name, rows, steps, of_rows, journal)
    return ControlRun(name=name, identity=artifact.identity, budget=bench.budget, cpu=spent, steps=steps, rows=len(rows))


def own_passes(bench: Bench) -> ControlRun:
    """SFT on what the base itself gets right: half the budget for sampling and judging, half for training."""
    name = "own_passes"
    journal = StageJournal(bench.store, f"{bench.key(name)}-counts")
    rounds, parents, spent = _sample(bench, name, journal)
    passes, trajectories = Passes(), sum(len(r.trajectories) for r in rounds)
    made = {"name": name, "budget": bench.budget, "rounds": len(rounds), "trajectories": trajectories}
    for round in rounds:
        passes.add(round)
    if not len(passes):
        bench.ledger.loud(f"own_passes: not one of {trajectories} trajectories of the base passed; the control is the base itself")
        return ControlRun(identity=bench.base.identity, cpu=spent, steps=0, rows=0, **made)
    rows = passes.rows()
    rows = rows.pick(within(rows, bench.config, bench.ledger))
    steps = _steps(bench, name, rows, bench.budget / 2, journal)
    artifact, trained = _train(bench, name, rows, steps, parents, journal)
    return ControlRun(identity=artifact.identity, cpu=spent + trained, steps=steps, rows=len(rows), **made)


def even_pools(suite: Suite) -> list[tuple[str, int]]:
    """The suite's train cells in a rotation that visits every pool equally often, and the cells of a pool in turn."""
    pools = list(suite.pools("train").values())
    turns = int(np.lcm.reduce([len(cells) for cells in pools]))
    return [(cells[i % len(cells)].family, cells[i % len(cells)].difficulty) for i in range(turns) for cells in pools]


# --- sampling


def _sample(bench: Bench, name: str, journal: StageJournal) -> tuple[list[Round], tuple[Parent, ...], float]:
    """(the judged rounds, everything stored of them, their CPU-seconds). How many there are is settled after the first few."""
    config = bench.config.model_copy(update={"rl": bench.config.rl.model_copy(update={"advantage": GroupAdvantage()})})  # no forks
    source = EvenSource(even_pools(load_suite(config.loop.suite)), f"control-{config.runtime.seed}")
    policy, began = bench.policy(), cpu.seconds()
    inputs = _first_round(bench, name, config, source)
    rolled = Rounds(config, inputs, bench.store, StageJournal(bench.store, bench.key(name)), bench.pool, bench.ledger, "")
    try:
        rounds = [rolled.first()]
        _commit_once(journal, "round 0", {"cpu": cpu.seconds() - began})
        while len(rounds) < (journal.done("rounds") or bench.measured_rounds):
            began, number = cpu.seconds(), len(rounds)
            rounds.append(rolled.roll(number, policy, bench.base.identity, source))
            rolled.settle()
            _commit_once(journal, f"round {number}", {"cpu": cpu.seconds() - began})
            if len(rounds) == bench.measured_rounds and journal.done("rounds") is None:
                first, so_far = _spent(journal, 1), _spent(journal, len(rounds))
                more = (bench.budget / 2 - so_far) * number / (so_far - first)
                journal.commit("rounds", len(rounds) + max(0, round_half_up(more)))
            bench.ledger.progress(name, len(rounds), journal.done("rounds") or 0, "rounds")
        of_first = tuple(Parent(role=f"{role} of round 0", kind=inputs[role].kind, identity=inputs[role].identity)
                         for role in ("tasks", "rollouts", "verdicts"))
        return rounds, of_first + rolled.parents(len(rounds)), _spent(journal, len(rounds))
    finally:
        rolled.close()


def _first_round(bench: Bench, name: str, config: RunConfig, source: EvenSource) -> dict[str, Artifact]:
    """Round 0 by the stages that the loop runs as assets."""
    drawn = source.draw(0, config.roll.prompts)
    tasks = bench.store.put_table(tasks_to_table(list({t.id: t for t in drawn}.values())), KEYS, bench.provenance(name, Kind.TASKS))
    rollouts = stage.run(config, tasks, bench.base, cycle=CYCLE, store=bench.store, ledger=bench.ledger, pool=bench.pool)
    verdicts = verify.run(config, rollouts, tasks, store=bench.store, ledger=bench.ledger)
    return {"base": bench.base, "tasks": tasks, "rollouts": rollouts, "verdicts": verdicts}


def _commit_once(journal: StageJournal, unit: str, payload: dict[str, float]) -> None:
    """A resumed control reads its rounds back: what they cost is what they cost when they were rolled."""
    if journal.done(unit) is None:
        journal.commit(unit, payload)


def _spent(journal: StageJournal, rounds: int) -> float:
    return float(sum(journal.done(f"round {i}")["cpu"] for i in range(rounds)))  # type: ignore[index]


# --- training


def _steps(bench: Bench, name: str, rows: Rows, budget: float, journal: StageJournal) -> int:
    """How many updates the budget buys: measured once on a copy of the base, then read back."""
    stored = journal.done("steps")
    if stored is None:
        policy, n = bench.policy(), bench.measured_steps
        updates = _updates(bench, name, policy, _optimizer(bench, policy, n), rows, 0, WARM + n)
        for _ in range(WARM):
            next(updates)
        began = cpu.seconds()
        for _ in updates:
            pass
        stored = max(1, round_half_up(budget / max((cpu.seconds() - began) / n, 1e-6)))
        journal.commit("steps", stored)
    return int(stored)


def round_half_up(value: float) -> int:
    return int(np.floor(value + 0.5))


def _optimizer(bench: Bench, policy: Policy, steps: int) -> Optimizer:
    """SFT's optimizer at its constant rate: the controls go on from where SFT stopped, they do not anneal again."""
    return build_optimizer(policy, bench.config.sft.optimizer.model_copy(update={"decay": "constant"}), steps, bench.config.runtime.seed)


def _updates(bench: Bench, name: str, policy: Policy, optimizer: Optimizer, rows: Rows, first: int, last: int) -> Iterator[int]:
    """SFT updates number `first` to `last`, as the SFT stage makes them; yields the number done after each."""
    config, seed, fuse = bench.config, stream("control", name, bench.config.runtime.seed), Fuse(name, bench.ledger)
    per_epoch = -(-len(rows) // config.sft.batch)
    bench.pool.set_weights(policy)
    order: tuple[int, list[np.ndarray]] = (-1, [])
    for step in range(first, last):
        epoch, at = divmod(step, per_epoch)
        if order[0] != epoch:
            order = (epoch, epoch_order(rows.lengths(), config.sft.batch, seed, epoch))
        fuse.check(update(policy, optimizer, bench.pool, text_works(rows.pick(order[1][at]), config)), f"step {step}")
        balance(policy, config.policy.lfb_step)
        bench.pool.set_weights(policy)
        yield step + 1


def _train(bench: Bench, name: str, rows: Rows, steps: int, parents: tuple[Parent, ...], journal: StageJournal) -> tuple[Artifact, float]:
    """`steps` updates from the base, resumed where a kill stopped them. Returns (checkpoint, CPU-seconds of all updates)."""
    done = journal.done("trained")
    if done is not None:
        artifact = bench.store.find(Kind.CHECKPOINT, done["identity"])
        if artifact is not None:
            return artifact, float(done["cpu"])
    key, policy = f"{bench.key(name)}-train", bench.policy()
    optimizer, first, spent = _optimizer(bench, policy, steps), 0, 0.0
    resumed = bench.store.load_resume(key, bench.ledger)
    if resumed is not None:
        policy.load_state_dict(resumed.model)
        optimizer.load(resumed.optimizer)
        first, spent = int(resumed.state["step"]), float(resumed.state["cpu"])
    began = cpu.seconds()
    for step in _updates(bench, name, policy, optimizer, rows, first, steps):
        if step % bench.config.train.ckpt_every == 0:
            state = {"step": step, "cpu": spent + cpu.seconds() - began}
            bench.store.save_resume(key, Checkpoint(bench.config, copied(policy), optimizer.state(), state),
                                    bench.provenance(name, Kind.CHECKPOINT))
        bench.ledger.progress(name, step, steps, "steps")
    spent += cpu.seconds() - began
    final = Checkpoint(bench.config, copied(policy), state={"stage": name, "steps": steps, "lfb_version": policy.lfb_version})
    artifact = bench.store.put_checkpoint(final, bench.provenance(name, Kind.CHECKPOINT, parents))
    if done is None:
        journal.commit("trained", {"identity": artifact.identity, "cpu": spent})
    bench.store.drop_resume(key)
    return artifact, spent
