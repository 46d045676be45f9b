"""Where the rounds of a cycle come from: the stored one, and those rolled and judged from the live weights.

A shard is judged while the others still roll. A round that was rolled here is committed whole (tasks, shards, verdicts, and the baited
episodes that rode with it), so that a resumed stage reads it back; its files are written beside the update that learns from it, and
`settle` waits for them: before the next round, a resume file and the stage's checkpoint. A run that dies between owes the round again.
Not here: learning (rl.py), sampling and judging themselves (rollouts, verifiers).
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dormouse_core.admission.honeypots import HackRate, rate_of
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.journal import StageJournal
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.learning.monitor import Round
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts import honeypots, stage, verify
from dormouse_core.rollouts.request import Origin
from dormouse_core.rollouts.stage import RolloutSet, roll_round, rollout_set
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.sandbox.runner import Runners
from dormouse_core.tasks.source import TaskSource
from dormouse_core.tasks.splits import require_trainable
from dormouse_core.tasks.store import KEYS, tasks_from_table, tasks_to_table
from dormouse_core.tasks.task import Task, VerifierKind
from dormouse_core.verifiers import report
from dormouse_core.verifiers.verdict import Verdict

STAGE = "rl_checkpoint"


class Rounds:
    """Rounds of one stage run. Runner processes of the exec verifier start with the first program and stay for all rounds."""

    def __init__(self, config: RunConfig, inputs: dict[str, Artifact], store: Store, journal: StageJournal, pool: WorkerPool,
                 ledger: Ledger, run_id: str) -> None:
        self.config, self.inputs, self.store, self.journal = config, inputs, store, journal
        self.pool, self.ledger, self.run_id = pool, ledger, run_id
        self.cycle = store.read_record(inputs["rollouts"], RolloutSet).cycle
        self._runners: Runners | None = None
        self._writer = ThreadPoolExecutor(1, "dormouse-commit")
        self._owed: Future[None] | None = None

    def close(self) -> None:
        """Finish what is being committed; end the runners."""
        self._writer.shutdown()
        if self._runners is not None:
            self._runners.close()
            self._runners = None

    def settle(self) -> None:
        """Wait until the last round is committed. Raises DormouseError when its files could not be written: it is then still owed."""
        owed, self._owed = self._owed, None
        if owed is not None:
            owed.result()

    def first(self) -> Round:
        """Round 0, as stored. Raises DormouseError where trajectories, tasks and verdicts do not belong together."""
        tasks = tasks_from_table(self.store.read_table(self.inputs["tasks"]))
        return self._judged(0, stage.load(self.store, self.inputs["rollouts"]), verify.load(self.store, self.inputs["verdicts"]), tasks,
                            self._proved(0))

    def roll(self, number: int, policy: Policy, identity: str, source: TaskSource) -> Round:
        """Round `number` from the live weights: read back where it was committed, else drawn, rolled, judged and committed."""
        committed = self.stored(number)
        self.ledger.ask("rounds rolled (the rest were committed already)", ran=committed is None)
        return self._make(number, policy, identity, source) if committed is None else committed

    def stored(self, number: int) -> Round | None:
        """A round as it was committed; None while it is owed."""
        if number == 0:
            return self.first()
        done = self.journal.done(_unit(number))
        if done is None:
            return None
        stored = {role: Artifact.model_validate(a) for role, a in done.items()}
        return self._judged(number, stage.load(self.store, stored["rollouts"]), verify.load(self.store, stored["verdicts"]),
                            tasks_from_table(self.store.read_table(stored["tasks"])), self._proved(number))

    def baited(self, number: int) -> Artifact | None:
        """The baited episodes of a committed round; None where it had none."""
        if number == 0:
            return honeypots.kept_beside(self.store, self.inputs["rollouts"], self.ledger)
        done = self.journal.done(_unit(number)) or {}
        return Artifact.model_validate(done[honeypots.ROLE]) if honeypots.ROLE in done else None

    def _proved(self, number: int) -> HackRate | None:
        kept = self.baited(number)
        return rate_of(kept.provenance.counters) if kept is not None else None

    def _make(self, number: int, policy: Policy, identity: str, source: TaskSource) -> Round:
        """Draw, roll and judge; leave the rest of the commit to the writer."""
        self.settle()
        began, judging = time.perf_counter(), self.ledger.seconds["rl.verify"]
        tasks = source.draw(number, self.config.roll.prompts)
        require_trainable(tasks, "rl")
        drawn = self._writer.submit(self.store.put_table, tasks_to_table(tasks), KEYS, self._provenance(Kind.TASKS, ()))
        named, judges, verdicts = {t.id: t for t in tasks}, self._judges(tasks), list[Verdict]()

        def judged(trajectories: Sequence[Trajectory]) -> None:
            started = time.perf_counter()
            verdicts.extend(verify.verify(trajectories, named, self.config.verify, self.ledger, judges))
            self.ledger.seconds["rl.verify"] += time.perf_counter() - started

        origin = Origin(self.cycle, number, identity, self.config.runtime.seed, policy.lfb_version)
        laid = honeypots.lay(tasks, self.config, origin, self.ledger) if self.config.honeypots.share else []
        rolled = roll_round(policy, tasks, self.config, cycle=self.cycle, round=number, policy_identity=identity, pool=self.pool,
                            store=self.store, ledger=self.ledger, on_shard=judged, baits=laid)
        bait = honeypots.prove(laid, rolled, origin, self.config.verify, Ledger(on_line=self.ledger.loud), judges)
        self._owed = self._writer.submit(self._commit, number, drawn, rollout_set(rolled, self.cycle, number, identity), verdicts, bait)
        self.ledger.seconds["rl.roll"] += time.perf_counter() - began - (self.ledger.seconds["rl.verify"] - judging)
        return self._judged(number, rolled.trajectories, {v.trajectory_id: v for v in verdicts}, tasks, bait.rate if bait else None)

    def _commit(self, number: int, drawn: Future[Artifact], rolled: RolloutSet, verdicts: Sequence[Verdict],
                bait: honeypots.Baited | None) -> None:
        """Rollouts, verdicts and baited episodes, then the journal's line. Runs in the writer, behind the round's tasks."""
        tasks, base = drawn.result(), self.inputs["base"]
        of_tasks = Parent(role="tasks", kind=tasks.kind, identity=tasks.identity)
        of_base = Parent(role="base", kind=base.kind, identity=base.identity)
        rollouts = self.store.put_record(rolled, self._provenance(Kind.ROLLOUTS, (of_tasks, of_base)), stage.VOLATILE)
        of_rollouts = Parent(role="rollouts", kind=rollouts.kind, identity=rollouts.identity)
        judged = self.store.put_table(report.verdicts_to_table(verdicts), report.KEYS,
                                      self._provenance(Kind.VERDICTS, (of_rollouts, of_tasks)), report.VOLATILE)
        made = {"tasks": tasks, "rollouts": rollouts, "verdicts": judged}
        if bait is not None:
            made[honeypots.ROLE] = honeypots.keep(self.store, bait, self.config, base, self.run_id)
        self.journal.commit(_unit(number), {role: a.model_dump(mode="json") for role, a in made.items()})

    def parents(self, rounds: int) -> tuple[Parent, ...]:
        """Tasks, rollouts, verdicts and baited episodes of every round below `rounds` that was rolled here."""
        self.settle()
        out = []
        for number in range(1, rounds):
            for role, artifact in (self.journal.done(_unit(number)) or {}).items():
                out.append(Parent(role=f"{role} of round {number}", kind=Kind(artifact["kind"]), identity=artifact["identity"]))
        return tuple(out)

    # --- inside

    def _judged(self, number: int, trajectories: Sequence[Trajectory], of: Mapping[str, Verdict], tasks: Sequence[Task],
                hacks: HackRate | None) -> Round:
        require_trainable(tasks, "rl")
        probes = sum(t.probe for t in trajectories)
        if probes:
            raise DormouseError(f"round {number}: {probes} of {len(trajectories)} trajectories are probes (baited episodes): they are "
                                "measured and never trained on. Give the rollouts they rode beside.")
        named = {t.id: t for t in tasks}
        unjudged = [t for t in trajectories if t.id not in of]
        unknown = [t for t in trajectories if t.task_id not in named]
        if unjudged or unknown or not trajectories:
            what = f"{len(unjudged)} of {len(trajectories)} trajectories have no row in the verdict table" if unjudged else (
                f"{len(unknown)} of {len(trajectories)} trajectories are of tasks that are not in the task table" if unknown
                else "the rollouts hold no trajectory")
            raise DormouseError(f"round {number}: {what}. Rollouts, verdicts and tasks must be of one run: judge these rollouts "
                                "(dormouse post-train verify) and give the verdicts it writes.")
        return Round(number, trajectories, [of[t.id] for t in trajectories], named, hacks)

    def _judges(self, tasks: Sequence[Task]) -> Runners | None:
        if self._runners is None and any(t.verifier is VerifierKind.EXEC for t in tasks):
            self._runners = Runners(self.config.verify, self.ledger)
        return self._runners

    def _provenance(self, kind: Kind, parents: tuple[Parent, ...]) -> Provenance:
        return Provenance(kind=kind, stage=STAGE, parents=parents, config_sha256=self.config.sha256(), code_version=code_version(),
                          seed=self.config.runtime.seed, run_id=self.run_id)


def _unit(number: int) -> str:
    return f"round {number}"
