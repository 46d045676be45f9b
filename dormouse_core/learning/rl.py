"""Reinforcement learning in rounds: judged trajectories -> credit -> one update, then the next round from the moved weights.

Round 0 is what the rollouts and verify stages left; rounds 1.. are rolled and judged here by the same functions, committed
beside their update, and named among the checkpoint's parents. A killed run goes on from its resume file and re-rolls nothing that
was committed; its final weights are those of a run that was never stopped.
Order of application: screened rows leave (reward) -> R -> group credit -> forks -> weights -> loss -> interleave -> update; after
the last round, consolidation.
Not here: each of these (reward, advantage, batches, loss, interleave, update, consolidation), where rounds come from (rounds).
"""

import time
from contextlib import ExitStack
from enum import StrEnum
from typing import Any

import torch

from dormouse_core.admission.honeypots import HackRate, rate_of, together
from dormouse_core.artifacts.checkpoint import Checkpoint, weights_identity
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.identity import canonical, config_content
from dormouse_core.artifacts.journal import StageJournal, stage_key
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.learning import loss, reward
from dormouse_core.learning.advantage import estimate, mass
from dormouse_core.learning.batches import step_batches
from dormouse_core.learning.consolidation import Consolidation
from dormouse_core.learning.interleave import Interleave, interleave_seed, share_of, stored_rows
from dormouse_core.learning.monitor import PARITY_LIMIT, Round, metrics, refuse_foreign, refuse_no_verdict, refuse_truncation
from dormouse_core.learning.rounds import Rounds
from dormouse_core.learning.update import Fuse, Outcome, RlWork, load_of, merged, update
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.optim.freeze import RouterWatch
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import load_policy
from dormouse_core.rollouts import honeypots
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.source import ListedSource, TaskSource

STAGE = "rl_checkpoint"


class RlEnd(StrEnum):
    """Why RL stopped."""

    ROUNDS = "rounds"  # all rounds were run
    NO_SIGNAL = "no_signal"  # rl.dead_round_limit rounds in a row without one live group: the tasks are too hard or too easy
    HALTED = "halted"  # baits were taken: the proven hack rate passed honeypots.halt_above, and nothing learns until somebody has decided


def run(config: RunConfig, base: Artifact, rollouts: Artifact, verdicts: Artifact, tasks: Artifact, *, source: TaskSource | None,
        store: Store, ledger: Ledger, run_id: str = "", pool: WorkerPool | None = None) -> Artifact:
    """Train from `base` on the judged trajectories of round 0, then on rl.rounds - 1 more whose tasks `source` draws.

    Without a source only the stored round is learnt from. Raises DormouseError where the trajectories are another policy's,
    too many have no verdict, nearly all of the first round is cut off, or two updates in a row are not finite; Halted (one of them)
    where the policy takes baits. A stage that halted is resumed by the same call with a higher `honeypots.halt_above`.
    """
    torch.set_num_threads(config.runtime.threads)
    with ExitStack() as open_now:
        crew = pool or open_now.enter_context(WorkerPool(config.roll.workers, config.runtime.threads))
        inputs = {"base": base, "rollouts": rollouts, "verdicts": verdicts, "tasks": tasks}
        session = _Session(config, inputs, source, store, ledger, run_id, crew)
        open_now.callback(session.rounds.close)
        session.train()
        session.consolidate()
        return session.finish()


class _Session:
    """One run of the stage: what is trained, what is drawn, and where it stands."""

    def __init__(self, config: RunConfig, inputs: dict[str, Artifact], source: TaskSource | None, store: Store, ledger: Ledger,
                 run_id: str, pool: WorkerPool) -> None:
        self.config, self.inputs, self.source, self.store = config, inputs, source, store
        self.ledger, self.run_id, self.pool = ledger, run_id, pool
        _announce(config, source, ledger)
        checkpoint = store.read_checkpoint(inputs["base"])
        where = f"base {inputs['base'].path}"
        self.policy, self.base = (load_policy(checkpoint, config.policy, where) for _ in range(2))
        self.inherited = {k: checkpoint.state[k] for k in ("interleave_rl", "demonstrations") if k in checkpoint.state}
        self.last = config.rl.rounds if source is not None else 1
        self.optimizer = build_optimizer(self.policy, config.rl.optimizer, self.last * config.rl.epochs, config.runtime.seed)
        self.key = stage_key(STAGE, *[a.identity for a in inputs.values()], canonical(config_content(config)).decode(), code_version(),
                             canonical(source.state() if source is not None else {}).decode())
        self.rounds = Rounds(config, inputs, store, StageJournal(store, self.key), pool, ledger, run_id)
        self.fuse = Fuse("rl", ledger)
        self.next, self.silent, self.table = 0, 0, list[dict[str, float]]()
        self.hacks, self.halted = rate_of({}), False
        self.interleave = self._interleave()
        how = config.rl.consolidation
        self.consolidation = None if how.kind == "off" else Consolidation(config, how, self.policy, self.rounds.cycle, pool, ledger)
        self.consolidated: dict[str, float] = {}
        self._resume()
        self.watch = RouterWatch(self.policy, rows=config.rl.optimizer.freeze_router)

    def train(self) -> None:
        """Run the rounds that are owed."""
        rl = self.config.rl
        while self.next < self.last and self.silent < rl.dead_round_limit:
            round = self._round(self.next)
            row = self._learn(round)
            if self.consolidation is not None:
                self.consolidation.passes.add(round)
            if self.source is not None:
                self.source.observe(round.outcomes())
            self.silent = 0 if row.get("groups_live") else self.silent + 1
            self.table.append(row)
            self.next += 1
            shown = {name: row[name] for name in ("pass_rate", "groups_live", "groups_dead", "kl", "entropy", "hack_rate") if name in row}
            self.ledger.progress("rl", self.next, self.last, "rounds", **shown)
            if self.next % rl.ckpt_every == 0 and self.next < self.last:
                self._save()

    def consolidate(self) -> None:
        """Write the verified passes of all rounds into the weights, where that is asked for."""
        if self.consolidation is None:
            return
        began = time.perf_counter()
        if not self.consolidation.losses:
            self._save()
        self.consolidated = self.consolidation.run(self._save)
        for name in ("rows", "steps"):
            self.ledger.count(f"rl.consolidation_{name}", int(self.consolidated[name]))
        self.ledger.seconds["rl.consolidation"] += time.perf_counter() - began

    def finish(self) -> Artifact:
        """Write the checkpoint, naming every shard it learnt from; forget the resume file and the journal."""
        totals = {name: int(sum(row.get(name, 0.0) for row in self.table)) for name in (
            "trajectories", "bytes", "trained_bytes", "sft_bytes", "groups", "groups_live", "groups_dead", "forks", "forked_steps")}
        for name, value in totals.items():
            self.ledger.count(f"rl.{name}", value)
        updated = self.optimizer.metrics()
        for name in ("expert_updates_min", "expert_updates_max", "experts_never_updated"):
            self.ledger.count(f"rl.{name}", int(updated.get(name, 0.0)))
        for name, value in self.hacks.counters().items():
            self.ledger.count(name, value)
        if self.hacks.episodes:
            self.ledger.loud(f"honeypots: {honeypots.describe(self.hacks)} in all rounds together")
        if self._ended() is RlEnd.NO_SIGNAL:
            self.ledger.loud(f"rl: ended by no_signal after {self.next} of {self.last} rounds: no group of the last {self.silent} had "
                             "better and worse answers. Tasks are too hard or too easy for this base; its curriculum should move.")
        parents = tuple(Parent(role=role, kind=a.kind, identity=a.identity) for role, a in self.inputs.items())
        final = self._checkpoint({}, consolidation=self.consolidated)
        artifact = self.store.put_checkpoint(final, self._provenance(parents + self.rounds.parents(self.next)))
        self.store.drop_resume(self.key)
        self.rounds.journal.clear()
        return artifact

    # --- one round

    def _round(self, number: int) -> Round:
        """The judged round, checked before anything is learnt from it."""
        if number == 0:
            round = self.rounds.first()
            refuse_foreign(round, self.inputs["base"].identity, self.base.lfb_version, self.inputs["rollouts"].path)
            refuse_truncation(round, self.config.rl)
        else:
            assert self.source is not None
            identity = weights_identity(self.policy.state_dict())
            round = self.rounds.roll(number, self.policy, identity, self.source)
            refuse_foreign(round, identity, self.base.lfb_version, f"round {number} of this stage")
        refuse_no_verdict(round, self.config.rl, self.ledger)
        self._watch_hacks(round)
        return round

    def _watch_hacks(self, round: Round) -> None:
        """Add the round's baits to those before. Halts before anything is learnt from the round: the weights stay in the resume file, the
        round is committed, and a run that goes on rolls nothing again."""
        before = self.hacks
        self.hacks = together([before, *([round.hacks] if round.hacks is not None else [])])
        if honeypots.state_of(self.hacks, self.config) is not honeypots.HackState.HALTED:
            return
        self.rounds.settle()
        kept, whole, self.hacks, self.halted = self.rounds.baited(round.number), self.hacks, before, True
        self._save()
        where = str(self.store.path(kept)) if kept is not None else "the rounds before"
        honeypots.guard(whole, self.config, self.ledger, where, f"goes on at round {round.number}, from {self.store.resume_path(self.key)}")

    def _learn(self, round: Round) -> dict[str, float]:
        """Credit, update, and the round's row of the table."""
        began, rl = time.perf_counter(), self.config.rl
        rewards = reward.shape(round.trajectories, round.verdicts, round.tasks, rl.reward)
        credit = estimate(round.trajectories, rewards, rl.advantage)
        batches = step_batches(round.trajectories, credit, rl.aggregation, rl.micro_batches)
        works = [RlWork(b, loss.LossWeights.of(rl)) for b in batches]
        if rl.kl:
            self.pool.set_reference(self.base)
        rate, outcomes = self.optimizer.lr(), []
        for epoch in range(rl.epochs):
            self.pool.set_weights(self.policy)
            carried = self.interleave.works(round.number * rl.epochs + epoch) if self.interleave else []
            self.ledger.ask("sft interleave", ran=bool(carried))
            outcomes.append(update(self.policy, self.optimizer, self.pool, [*works, *carried], reference=rl.kl > 0))
            self.fuse.check(outcomes[-1], f"round {round.number}")
            self._check_parity(outcomes[0], round.number)
            self.ledger.count("rl.updates", outcomes[-1].applied)
            self.ledger.count("rl.updates_without_signal", not works)
        self.watch.check(f"round {round.number}")
        self.ledger.seconds["rl.update"] += time.perf_counter() - began
        row = metrics(round, rewards, credit.counts, _together(outcomes), rate) | self.optimizer.expert_counts()
        return row | mass(credit) | honeypots.numbers(self.hacks)

    def _check_parity(self, first: Outcome, number: int) -> None:
        """Before the first update of a round, trainer and sampler are the same weights: their log-probs must agree."""
        gap = first.report.get("byte_gap_max", 0.0)
        limit = PARITY_LIMIT[self.config.policy.dtype]
        if gap > limit:
            raise DormouseError(
                f"round {number}: the trainer's log-prob of a sampled byte differs from the sampler's by {gap:.3g} before any update "
                f"(limit {limit:g}). Their weights, temperature or support are not the same, and the update would push the wrong "
                "way. Roll the round again with this version; if it stays, report it with the cycle's store.")

    # --- state

    def _interleave(self) -> Interleave | None:
        share = share_of(self.config, self.inherited.get("interleave_rl"), self.ledger)
        if share == 0:
            return None
        rows = stored_rows(self.config, self.inherited.get("demonstrations"), self.store, self.ledger)
        return Interleave(share, interleave_seed(self.config, self.rounds.cycle), rows, self.config)

    def _save(self) -> None:
        """The resume file: all rounds below `next` are committed, and consolidation stands where it stands."""
        self.rounds.settle()
        losses = self.consolidation.losses if self.consolidation is not None else []
        optimizer = self.consolidation.optimizer if self.consolidation is not None and losses else self.optimizer
        checkpoint = self._checkpoint(optimizer.state(), consolidation_losses=list(losses))
        self.store.save_resume(self.key, checkpoint, self._provenance(()))

    def _resume(self) -> None:
        resumed = self.store.load_resume(self.key, self.ledger)
        if resumed is None:
            return
        self.policy.load_state_dict(resumed.model)
        losses = resumed.state["consolidation_losses"]
        if self.consolidation is not None and losses:
            self.consolidation.load(losses, resumed.optimizer)
        else:
            self.optimizer.load(resumed.optimizer)
        self.next, self.silent, self.table = resumed.state["rounds"], resumed.state["silent"], resumed.state["metrics"]
        if "hack_rate" in resumed.state:
            self.hacks = HackRate.model_validate(resumed.state["hack_rate"])
        if self.source is not None:
            self.source.load(resumed.state["source"])
        if self.consolidation is not None:
            for round in map(self.rounds.stored, range(self.next)):
                assert round is not None, "a resume file stands behind the rounds it counts"
                self.consolidation.passes.add(round)
        self.ledger.count("rl.resumed_at_round", self.next)

    def _ended(self) -> RlEnd:
        if self.halted:
            return RlEnd.HALTED
        return RlEnd.NO_SIGNAL if self.silent >= self.config.rl.dead_round_limit and self.next < self.last else RlEnd.ROUNDS

    def _checkpoint(self, moments: dict[str, torch.Tensor], **more: Any) -> Checkpoint:
        model = {name: t.detach() for name, t in self.policy.state_dict().items()}  # it is written before the policy moves again
        more |= {"hack_rate": self.hacks.model_dump(mode="json")} if self.hacks.episodes else {}
        return Checkpoint(self.config, model, moments, self.inherited | {
            "stage": STAGE, "cycle": self.rounds.cycle, "ended": self._ended().value, "rounds": self.next, "silent": self.silent,
            "lfb_version": self.policy.lfb_version, "interleave": self.interleave.share if self.interleave else 0.0,
            "source": self.source.state() if self.source is not None else {}, "metrics": self.table} | more)

    def _provenance(self, parents: tuple[Parent, ...]) -> Provenance:
        return Provenance(kind=Kind.CHECKPOINT, stage=STAGE, parents=parents, config_sha256=self.config.sha256(),
                          code_version=code_version(), seed=self.config.runtime.seed, counters=self.ledger.counters(), run_id=self.run_id)


def _together(outcomes: list[Outcome]) -> Outcome:
    """The epochs of one round as one row: sums add, the last gradient norm stands."""
    return Outcome(any(o.applied for o in outcomes), all(o.finite for o in outcomes), outcomes[-1].gradient_norm,
                   merged([o.report for o in outcomes]), load_E=load_of(outcomes))


def _announce(config: RunConfig, source: TaskSource | None, ledger: Ledger) -> None:
    """Everything that is switched off says so, once."""
    reward.announce(config.rl.reward, ledger)
    loss.announce(config.rl, ledger)
    if source is None and config.rl.rounds > 1:
        ledger.loud("rl: no task source, so only the stored round is learnt from (rl.rounds counts as 1)")
    if isinstance(source, ListedSource) and config.rl.rounds > 1:
        ledger.loud("rl: nothing generates these tasks, so every round draws from those of the stored round again, without a curriculum")
    if config.rl.consolidation.kind == "off":
        ledger.loud("rl: consolidation is off: what the verifiers passed is learnt from by its advantage alone")
    if config.rl.advantage.kind == "fork-replay" and config.roll.fork_share == 0:
        ledger.loud("rl: fork-replay with roll.fork_share = 0 has no forks: every step keeps its group's credit")
