"""Promotion: the checkpoint the next cycle starts from, every cycle: the candidate, or the incumbent carried over.

A promoted checkpoint is a new file without optimizer moments, whose parents are the candidate and the verdict that let it through.
Not here: the verdict itself (evaluation.holdout) and the collapse monitor (monitors.collapse); either can say no.
"""

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.base import Record
from dormouse_core.config.run import RunConfig
from dormouse_core.evaluation.holdout import HoldoutVerdict
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.monitors.collapse import CollapseReport, Regime

STAGE = "promoted_checkpoint"
CARRIED = ("lfb_version", "interleave_rl", "demonstrations")
"""State a promoted checkpoint keeps of its candidate: what later stages read. Curves and positions stay with the candidate."""


class Promotion(Record):
    cycle: str
    promoted: bool
    checkpoint: Parent
    """What the next cycle starts from."""
    reason: str


def run(config: RunConfig, candidate: Artifact, holdout: Artifact, collapse: Artifact | None = None, *, cycle: str = "", store: Store,
        ledger: Ledger, run_id: str = "") -> Artifact:
    """Promote the candidate of a HOLDOUT_VERDICT, or carry the incumbent over. Returns the PROMOTION record.

    collapse: the candidate's COLLAPSE_REPORT; its regime ERROR refuses. Raises DormouseError when verdict or report are of another
    checkpoint than `candidate`.
    """
    verdict = store.read_record(holdout, HoldoutVerdict)
    report = store.read_record(collapse, CollapseReport) if collapse is not None else None
    for what, identity in (("holdout verdict", verdict.candidate.identity), ("collapse report", report.candidate if report else None)):
        if identity is not None and identity != candidate.identity:
            raise DormouseError(f"the {what} is of checkpoint {identity[:16]}, not of the candidate {candidate.identity[:16]}; run the "
                                "stage that makes it for this candidate")
    collapsed = report is not None and report.regime is Regime.ERROR
    promoted = verdict.promote and not collapsed
    reason = f"not promoted, the policy collapsed: {report.reason}" if report and collapsed else verdict.reason
    inputs = [("candidate", candidate), ("holdout", holdout)] + ([("collapse", collapse)] if collapse is not None else [])
    parents = tuple(Parent(role=role, kind=a.kind, identity=a.identity) for role, a in inputs)
    made = {"stage": STAGE, "config_sha256": config.sha256(), "code_version": code_version(), "seed": config.runtime.seed, "run_id": run_id}
    ledger.ask("promotion", ran=promoted)
    ledger.count("promoted", int(promoted))
    if promoted:
        made_now = _without_moments(candidate, Provenance(kind=Kind.CHECKPOINT, parents=parents, **made), verdict, store)
        checkpoint = Parent(role="checkpoint", kind=made_now.kind, identity=made_now.identity)
    else:
        checkpoint = verdict.incumbent.model_copy(update={"role": "checkpoint"})
        ledger.loud(f"promotion: the incumbent stays; {reason}")
    record = Promotion(cycle=cycle or verdict.cycle, promoted=promoted, checkpoint=checkpoint, reason=reason)
    return store.put_record(record, Provenance(kind=Kind.PROMOTION, parents=(*parents, checkpoint), counters=ledger.counters(), **made))


def _without_moments(candidate: Artifact, provenance: Provenance, verdict: HoldoutVerdict, store: Store) -> Artifact:
    """The candidate's weights as a checkpoint of their own."""
    trained = store.read_checkpoint(candidate)
    carried = {k: trained.state[k] for k in CARRIED if k in trained.state}
    state = {**carried, "promoted_from": candidate.identity, "cycle": verdict.cycle, "reason": verdict.reason}
    return store.put_checkpoint(Checkpoint(trained.config, trained.model, {}, state), provenance)
