"""The collapse report: does the candidate still read its prompt, and does it still vary, compared with what it was trained from?

A pool at a time: N prompts, K first actions each, sampled by base and candidate with the same random numbers on the same tasks, scored by
`entropy` and `mutual_information`. Regimes, worst pool first (docs/mechanisms/collapse.md derives the limits):

    ERROR  template collapse: answers cannot be told apart by prompt (null_z < 3, or accuracy at chance) or the gap fell below a fifth of
           the base's, and even the upper end of the gap is below half of it (one look has to be sure); or low-entropy collapse: entropy
           below a fifth of the base's, answers all alike, and fewer of them solved
    WARN   template drift: gap below half the base's at an entropy still alike; or noise: entropy doubled while the gap fell
    OK     none of these; also where the base itself could not be told apart, which is said
Not here: what stops (promotion refuses on ERROR).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.encoding import END
from dormouse_core.ledger import Ledger
from dormouse_core.monitors.entropy import score_pairs
from dormouse_core.monitors.mutual_information import Dependence, dependence
from dormouse_core.policy.model import Policy, load_policy
from dormouse_core.rollouts.engine import roll
from dormouse_core.rollouts.request import Origin, group_requests
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.rollouts.verify import attempts_of
from dormouse_core.seeding import key
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split, Task
from dormouse_core.verifiers.judge import judge
from dormouse_core.verifiers.verdict import VerdictClass

STAGE = "collapse_report"
PROMPTS, ANSWERS, FEWEST_PROMPTS = 8, 4, 4
COLLAPSED, DRIFTED, ALIKE, LOW, NOISY, DISTINCT, TOLD_APART = 0.2, 0.5, 0.25, 0.2, 2.0, 0.3, 3.0
_WORST = ("ok", "warn", "error")


class Regime(StrEnum):
    """What the monitor makes of a policy."""

    OK = "ok"  # reads its prompt and varies as it did
    WARN = "warn"  # drifting: look at it
    ERROR = "error"  # collapsed: not to be promoted


class Reading(Record):
    """One policy on the prompts of one pool."""

    dependence: Dependence
    entropy: float
    """Nats a byte where the policy wrote."""
    distinct: float
    """Distinct first actions a prompt, as a share of those sampled."""


class PoolCollapse(Record):
    pool: str
    base: Reading
    candidate: Reading
    regime: Regime
    reason: str


class CollapseReport(Record):
    cycle: str
    base: str
    candidate: str
    """Identities of the two checkpoints."""
    regime: Regime
    """The worst of the pools."""
    reason: str
    pools: tuple[PoolCollapse, ...]
    skipped: tuple[str, ...]
    """Pools with too few prompts or answers to say anything, and why."""


class Sample(NamedTuple):
    """First actions to distinct prompts: what is scored."""

    prompts: list[bytes]
    answers: list[bytes]
    own: list[int]


def first_actions(trajectories: Sequence[Trajectory], answers: int = ANSWERS) -> Sample:
    """Of whole episodes, rolled now or read from the store: up to `answers` first actions a prompt, in row order. Equal prompts are one;
    episodes that wrote nothing are left out."""
    by_prompt: dict[bytes, list[bytes]] = {}
    for t in sorted((t for t in trajectories if t.fork_step < 0 and t.steps), key=lambda t: (t.task_id, t.row)):
        wrote = t.steps[0].action_bytes + (END if t.steps[0].ended else b"")
        mine = by_prompt.setdefault(t.prompt, [])
        if wrote and len(mine) < answers:
            mine.append(wrote)
    kept = {p: a for p, a in by_prompt.items() if a}
    return Sample(list(kept), [a for group in kept.values() for a in group], [j for j, group in enumerate(kept.values()) for _ in group])


def read(policy: Policy, sample: Sample, *names: str | int) -> Reading:
    """The reading of a policy on answers of its own. Raises ValueError with fewer than two prompts."""
    scored = score_pairs(policy, sample.prompts, sample.answers, sample.own)
    groups = [[a for a, j in zip(sample.answers, sample.own, strict=True) if j == i] for i in range(len(sample.prompts))]
    return Reading(dependence=dependence(scored.log_RN, np.array(sample.own), scored.length_R, *names),
                   entropy=float((scored.entropy_R * scored.length_R).sum() / scored.length_R.sum()),
                   distinct=float(np.mean([len(set(g)) / len(g) for g in groups])))


def regime_of(base: Reading, now: Reading, solved_change: float = 0.0) -> tuple[Regime, str]:
    """The regime and the number that puts it there. solved_change: pass rate of the candidate minus the base's."""
    d, d0 = now.dependence, base.dependence
    chance = d.chance + 2 * np.sqrt(d.chance * (1 - d.chance) / d.answers)
    if d0.null_z < TOLD_APART:
        return Regime.OK, f"not judged: the base's own answers could not be told apart by prompt (z {d0.null_z:.1f})"
    alike = d.null_z < TOLD_APART or d.accuracy <= chance
    if (alike or d.gap < COLLAPSED * d0.gap) and d.gap_high < DRIFTED * d0.gap:
        told = f"z {d.null_z:.1f}, accuracy {d.accuracy:.2f} where chance is {d.chance:.2f}"
        return Regime.ERROR, f"template collapse: gap {d0.gap:.3f} -> {d.gap:.3f} [{d.gap_low:.3f}, {d.gap_high:.3f}] nats a byte; {told}"
    if now.entropy < LOW * base.entropy and now.distinct < DISTINCT and solved_change < 0:
        alone = f"distinct {now.distinct:.2f}, solved {solved_change:+.3f}"
        return Regime.ERROR, f"low-entropy collapse: entropy {base.entropy:.3f} -> {now.entropy:.3f}, {alone}"
    if d.gap < DRIFTED * d0.gap and abs(now.entropy / base.entropy - 1) < ALIKE:
        return Regime.WARN, f"template drift: gap {d0.gap:.3f} -> {d.gap:.3f} at entropy {base.entropy:.3f} -> {now.entropy:.3f}"
    if now.entropy > NOISY * base.entropy and d.gap < d0.gap:
        return Regime.WARN, f"noise: entropy {base.entropy:.3f} -> {now.entropy:.3f} while the gap fell {d0.gap:.3f} -> {d.gap:.3f}"
    return Regime.OK, f"gap {d0.gap:.3f} -> {d.gap:.3f} nats a byte, entropy {base.entropy:.3f} -> {now.entropy:.3f}"


def worst(pools: Sequence[PoolCollapse]) -> tuple[Regime, str]:
    """The report's regime and reason; OK where nothing could be read."""
    if not pools:
        return Regime.OK, "not judged: no pool had enough prompts and answers"
    bad = max(pools, key=lambda p: _WORST.index(p.regime))
    return bad.regime, f"{bad.pool}: {bad.reason}"


def monitor_tasks(config: RunConfig, pool: str, cycle: str) -> list[Task]:
    """Up to PROMPTS training tasks of one family of the pool, which changes with the cycle: prompts that differ in their operands
    alone are the ones a collapsed policy confuses first."""
    cells = load_suite(config.loop.suite).pools()[pool]
    families = sorted({c.family for c in cells})
    chosen = [c for c in cells if c.family == families[key("collapse family", pool, cycle) % len(families)]]
    tasks: dict[bytes, Task] = {}
    for i in range(4 * PROMPTS):
        cell = chosen[i % len(chosen)]
        task = draw(cell.family, cell.difficulty, Split.TRAIN, key("collapse", cycle, i), str(config.runtime.seed))
        tasks.setdefault(task.prompt, task)
        if len(tasks) == PROMPTS:
            break
    return list(tasks.values())


def played(policy: Policy, identity: str, tasks: Sequence[Task], config: RunConfig, cycle: str) -> list[Trajectory]:
    """ANSWERS episodes a task, temperature 1. Draws do not depend on the weights: base and candidate share them."""
    origin = Origin(f"collapse:{cycle}", 0, identity, config.runtime.seed, policy.lfb_version)
    return list(roll(policy, [r for t in tasks for r in group_requests(t, origin, range(ANSWERS), 1.0)], config.roll, Ledger()))


def solved(trajectories: Sequence[Trajectory], tasks: Sequence[Task], config: RunConfig, ledger: Ledger) -> float:
    """Share of the episodes that passed."""
    known = {t.id: t for t in tasks}
    verdicts = judge(attempts_of(trajectories, known), config.verify, ledger)
    return float(np.mean([v.verdict is VerdictClass.PASS for v in verdicts]))


def run(config: RunConfig, base: Artifact, candidate: Artifact, *, cycle: str = "", store: Store, ledger: Ledger,
        run_id: str = "") -> Artifact:
    """Compare a candidate with what it was trained from. Returns the COLLAPSE_REPORT."""
    policies = [(a.identity, load_policy(c := store.read_checkpoint(a), c.config.policy, a.path)) for a in (base, candidate)]
    pools, skipped = [], []
    for pool in load_suite(config.loop.suite).pools():
        tasks = monitor_tasks(config, pool, cycle)
        episodes = [played(policy, identity, tasks, config, cycle) for identity, policy in policies]
        samples = [first_actions(e) for e in episodes]
        enough = min(len(s.prompts) for s in samples) >= FEWEST_PROMPTS
        ledger.ask("collapse monitor, pools read", ran=enough)
        if not enough:
            skipped.append(f"{pool}: {min(len(s.prompts) for s in samples)} prompts with answers, {FEWEST_PROMPTS} needed")
            continue
        before, now = (read(policy, s, cycle, pool) for (_, policy), s in zip(policies, samples, strict=True))
        rates = [solved(e, tasks, config, ledger) for e in episodes]
        regime, reason = regime_of(before, now, rates[1] - rates[0])
        pools.append(PoolCollapse(pool=pool, base=before, candidate=now, regime=regime, reason=reason))
    regime, reason = worst(pools)
    if regime is not Regime.OK:
        ledger.loud(f"collapse monitor {regime.value.upper()}: {reason}")
    report = CollapseReport(cycle=cycle, base=base.identity, candidate=candidate.identity, regime=regime, reason=reason, pools=tuple(pools),
                            skipped=tuple(skipped))
    return store.put_record(report, Provenance(
        kind=Kind.COLLAPSE_REPORT, stage=STAGE, parents=tuple(Parent(role=r, kind=a.kind, identity=a.identity) for r, a in (
            ("base", base), ("candidate", candidate))), config_sha256=config.sha256(), code_version=code_version(),
        seed=config.runtime.seed, counters=ledger.counters(), run_id=run_id))
