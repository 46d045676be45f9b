"""Asset checks: what guards an edge of the loop.

In one run a failed blocking check stops everything downstream. In a later run that selects the downstream asset alone it would
not, so each blocking rule also stands in the code of the stage it protects, over the same counters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from dormouse_core.artifacts.provenance import Artifact, Kind
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError, Ledger

if TYPE_CHECKING:
    from dormouse_core.artifacts.store import Store


@dataclass(frozen=True)
class Made:
    """What a stage has just made."""

    artifact: Artifact
    store: "Store"
    ledger: Ledger
    config: RunConfig

    def counter(self, name: str) -> int:
        """A counter of the artifact; 0 where the stage never counted it."""
        return self.artifact.provenance.counters.get(name, 0)


class Outcome(NamedTuple):
    """passed, one sentence for a person, and the numbers it rests on."""

    passed: bool
    sentence: str
    numbers: dict[str, Any]


@dataclass(frozen=True)
class Edge:
    """One rule at the edge of one asset."""

    name: str
    description: str
    judge: Callable[[Made], Outcome]
    blocking: bool = True

    def spec(self, asset: str) -> dg.AssetCheckSpec:
        return dg.AssetCheckSpec(name=self.name, asset=asset, blocking=self.blocking, description=self.description)

    def result(self, made: Made) -> dg.AssetCheckResult:
        outcome = self.judge(made)
        severity = dg.AssetCheckSeverity.ERROR if self.blocking else dg.AssetCheckSeverity.WARN
        return dg.AssetCheckResult(check_name=self.name, passed=outcome.passed, severity=severity,
                                   description=outcome.sentence, metadata=outcome.numbers)


def _share(made: Made, *names: str, of: str = "verdicts.") -> tuple[int, int]:
    """(sum of the named verdict counters, sum of all)."""
    counts = {name: n for name, n in made.artifact.provenance.counters.items() if name.startswith(of)}
    return sum(counts.get(name, 0) for name in names), sum(counts.values())


def _no_verdict(made: Made) -> Outcome:
    without, total = _share(made, "verdicts.undecided", "verdicts.verifier_error")
    limit = made.config.rl.no_verdict_limit
    if not total and made.artifact.kind is Kind.CHECKPOINT:
        return Outcome(True, "no round was rolled here: the stored one was checked where it was judged", {"no_verdict": 0, "verdicts": 0})
    share = without / total if total else 1.0
    return Outcome(total > 0 and share <= limit, f"{without} of {total} trajectories have no verdict ({share:.1%}, limit {limit:.0%})",
                   {"no_verdict": without, "verdicts": total, "share": share})


def _canaries(made: Made) -> Outcome:
    failed = made.counter("exec.canary_failures")
    ran = made.counter("exec.programs_run")
    return Outcome(failed == 0, f"{failed} exec batches had a canary judged wrongly" if failed
                   else f"right, wrong and liar were told apart in every batch ({ran} programs ran)", {"failures": failed, "programs": ran})


def _verifier_bench(made: Made) -> Outcome:
    from dormouse_core.admission.bench import require

    try:
        report = require(made.config.verify, made.ledger)
    except DormouseError as error:
        return Outcome(False, str(error), {})
    return Outcome(True, f"{report.judged} answers whose truth is known were judged as what they are ({report.seconds:.1f} s)",
                   {"judged": report.judged, "seconds": report.seconds})


def _admission(made: Made) -> Outcome:
    from dormouse_core.admission.gate import certify
    from dormouse_core.tasks.plan import CyclePlan

    plan = made.store.read_record(made.artifact, CyclePlan)
    found = certify([(cell.family, cell.difficulty) for cell in plan.cells], made.config.verify, made.ledger, per_cell=1)
    refused = [a for a in found if a.refused_by is not None]
    why = "; ".join(f"{a.cell} by {a.refused_by}: {a.reason}" for a in refused[:3])
    return Outcome(not refused, f"{len(refused)} of {len(found)} tasks of the plan's cells are refused: {why}" if refused
                   else f"{len(found)} tasks of the plan's cells pass the admission gate", {"tasks": len(found), "refused": len(refused)})


def _hack_rate(made: Made) -> Outcome:
    from dormouse_core.verifiers.rates import wilson_bounds

    episodes, proven = made.counter("honeypots.episodes"), made.counter("honeypots.proven")
    low, high = wilson_bounds(proven, episodes)
    limit = made.config.honeypots.halt_above
    said = (f"{proven} of {episodes} baits taken, 95 % interval {low:.1%} to {high:.1%} (training halts when its lower end passes "
            f"{limit:.0%})")
    return Outcome(low <= limit, said if episodes else "no bait was laid (honeypots.share = 0): the hack rate is not measured",
                   {"episodes": episodes, "proven": proven, "low": low, "high": high})


def _below_uniform(made: Made) -> Outcome:
    bits = made.store.read_checkpoint(made.artifact).state["bits_per_byte"]
    return Outcome(bits["model"] < bits["uniform"], f"{bits['model']:.3f} bits a byte; counting bytes alone gives {bits['unigram']:.3f}, "
                   f"five bytes of context {bits['five_gram']:.3f}", {name: float(value) for name, value in bits.items()})


def _bounds(made: Made) -> Outcome:
    from dormouse_core.evaluation.holdout import HoldoutVerdict

    broken = made.store.read_record(made.artifact, HoldoutVerdict).reports["candidate"].broken
    return Outcome(not broken, "; ".join(broken) or "no policy that knows nothing beats its bound, and the oracle passes everything",
                   {"broken": len(broken)})


def _collapse(made: Made) -> Outcome:
    from dormouse_core.monitors.collapse import CollapseReport, Regime

    report = made.store.read_record(made.artifact, CollapseReport)
    return Outcome(report.regime is not Regime.ERROR, f"{report.regime}: {report.reason}",
                   {f"gap_{pool.pool}": pool.candidate.dependence.gap for pool in report.pools})


def _parity(made: Made) -> Outcome:
    from dormouse_core.learning.monitor import PARITY_LIMIT

    checkpoint = made.store.read_checkpoint(made.artifact)
    limit = PARITY_LIMIT[checkpoint.config.policy.dtype]
    gap = max((float(row.get("byte_gap_max", 0.0)) for row in checkpoint.state["metrics"]), default=0.0)
    return Outcome(gap <= limit, f"trainer and sampler log-probs differ by at most {gap:.2g} a byte (limit {limit:g})",
                   {"largest_gap": gap})


def _dead(made: Made) -> Outcome:
    dead, groups = made.counter("rl.groups_dead"), made.counter("rl.groups")
    share = dead / groups if groups else 1.0
    return Outcome(share < DEAD_LIMIT, f"{dead} of {groups} groups had answers all alike in reward ({share:.0%}): they teach nothing",
                   {"dead": dead, "groups": groups, "share": share})


DEAD_LIMIT = 0.9
log_prob_parity = Edge("log_prob_parity", "Before an update, trainer and sampler must give a sampled byte the same log-prob.", _parity)
dead_groups = Edge("dead_group_share", "Groups without spread in reward add nothing: tasks are too easy or too hard.", _dead,
                   blocking=False)
no_verdict_share = Edge("no_verdict_share", "Too many trajectories without a verdict mean a broken verifier or machine, not a bad policy.",
                        _no_verdict)
verifier_bench = Edge("verifier_bench", "Before anything is rolled: answers whose truth is known must be judged as what they are.",
                      _verifier_bench)
admission = Edge("admission", "Tasks of every cell of the plan must pass the admission gate.", _admission)
hack_rate = Edge("hack_rate", "A policy that takes bait is not trained: the stage itself halts before it learns from another round.",
                 _hack_rate)
canaries = Edge("canaries", "A right, a wrong and a lying program ride in every exec batch; each must be judged as what it is.", _canaries)
below_uniform = Edge("below_uniform", "The base must have learned something: fewer bits a byte than a uniform guess.", _below_uniform,
                     blocking=False)
suite_bounds = Edge("suite_bounds", "Policies that know nothing and the one that knows everything bound every suite.", _bounds,
                    blocking=False)
collapse_regime = Edge("collapse_regime", "A collapsed candidate is not promoted: promotion itself refuses it and carries the incumbent "
                       "over.", _collapse, blocking=False)
