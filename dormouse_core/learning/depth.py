"""What the depth arms add to the next-byte loss, and how they say that they ran (docs/mechanisms/depth-*.md).

fixed    nothing: loss.py as it stands
random   the micro-batch runs a drawn number of iterations; the draw is a function of its bytes, so no worker or resume changes it
mor      + weight * BCE(score, 1 for the k best scores of the byte); moves the router alone
skip     + price * iterations run a byte, the first one free
q_stop   + weight * BCE(Q_n, probability of the byte read out after iteration n); moves the Q head alone
ponder   sum_n p_n CE_n in place of CE, + beta * KL(p || truncated geometric prior)

All are sums over target bytes with the batch's weights, so micro-batches add up. `text_sum` is always the loss of the distribution
that samples: under ponder that of the mixture, so that a collapsed halt cannot make a held-out number look good.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dormouse_core.config.depth import Depth, MorDepth, PonderDepth, QStopDepth, SkipDepth
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.learning import loss as plain
from dormouse_core.learning.batches import TextBatch
from dormouse_core.ledger import Ledger
from dormouse_core.policy.depth import LEAST_SHARE, Trace, halting, is_slot, truncated_geometric
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, PolicyOutput
from dormouse_core.seeding import generator

_OFF = {"mor": ("weight", "the router is not trained"), "skip": ("price", "nothing rewards a skipped iteration"),
        "q_stop": ("weight", "the Q head is not trained"), "ponder": ("beta", "no prior holds the halting distribution")}
"""The setting of each arm that may be 0, and what that means."""


def text_loss(policy: Policy, batch: TextBatch, deep_weight: float, train: bool = True) -> tuple[Tensor, dict[str, float]]:
    """Next-byte loss of a micro-batch under the policy's depth arm, and its report (`depth_*_sum` where an arm ran).

    With train False it is the held-out loss: the distribution that samples, at the depth that samples, nothing added.
    """
    arm = policy.config.depth
    if arm.kind == "fixed":
        return plain.text_loss(policy, batch, deep_weight)
    row_X, position_X = np.nonzero(batch.weight_BL + batch.observation_BL)
    weight_X = torch.from_numpy((batch.weight_BL + batch.observation_BL)[row_X, position_X])
    at_X1 = torch.from_numpy(batch.ids_BL[row_X, position_X]).long()[:, None]
    row, before = torch.from_numpy(row_X), torch.from_numpy(position_X - 1)
    reads_deep = deep_weight > 0 or (train and arm.kind in ("q_stop", "ponder"))
    drawn = drawn_depth(policy.config, batch) if train and arm.kind == "random" else None
    out: PolicyOutput = policy(torch.from_numpy(batch.ids_BL).long(), deep=reads_deep, depth=drawn)
    assert out.depth is not None

    def of_byte(logits_BLV: Tensor) -> Tensor:
        return action_log_probs(logits_BLV[row, before]).gather(1, at_X1)[:, 0]

    trace = out.depth.at(row, before)
    loss = -(weight_X * of_byte(out.logits_BLV)).sum()
    report = {"text_sum": loss.item(), "text_bytes_sum": float(np.count_nonzero(batch.weight_BL))} | shares(trace)
    if out.deep_TBLV is None:
        byte_TX = None
    else:
        byte_TX = torch.stack([of_byte(logits_BLV) for logits_BLV in out.deep_TBLV])
    if train:
        loss = loss + added(arm, loss, trace, byte_TX, weight_X, report)
    if deep_weight and byte_TX is not None:
        loss = loss - deep_weight * (weight_X * byte_TX.mean(0)).sum()
    return loss, report


def added(arm: Depth, loss: Tensor, trace: Trace, byte_TX: Tensor | None, weight_X: Tensor, report: dict[str, float]) -> Tensor:
    """What the arm adds to the loss of the sampling distribution. byte_TX: log-prob of the target by each iteration's own readout."""
    match arm:
        case MorDepth() if trace.score is not None:
            term = _bce(trace.score, is_slot(trace.score.detach(), arm.slots).float(), weight_X)
            return _noted(arm.weight, term, "depth_router_sum", report)
        case SkipDepth():
            return _noted(arm.price, (weight_X * trace.run[1:].sum(0)).sum(), "depth_price_sum", report)
        case QStopDepth() if trace.score is not None and byte_TX is not None:
            return _noted(arm.weight, _bce(trace.score, byte_TX.detach().exp(), weight_X), "depth_q_sum", report)
        case PonderDepth() if trace.score is not None and byte_TX is not None:
            p_TX = halting(trace.score)
            kl = (weight_X * halting_kl(p_TX, arm.prior)).sum()
            return -(weight_X * (p_TX * byte_TX).sum(0)).sum() - loss + _noted(arm.beta, kl, "depth_kl_sum", report)
    return torch.zeros(())


def _bce(score_TX: Tensor, target_TX: Tensor, weight_X: Tensor) -> Tensor:
    return (weight_X * F.binary_cross_entropy_with_logits(score_TX, target_TX, reduction="none").mean(0)).sum()


def _noted(weight: float, term: Tensor, name: str, report: dict[str, float]) -> Tensor:
    report[name] = term.item()
    return weight * term


def halting_kl(p_TX: Tensor, prior: float) -> Tensor:
    """KL(p || truncated geometric) of each byte, nats [X]."""
    prior_T1 = truncated_geometric(prior, len(p_TX)).unsqueeze(1)
    return (p_TX * (p_TX.clamp_min(LEAST_SHARE).log() - prior_T1.log())).sum(0)


def drawn_depth(config: PolicyConfig, batch: TextBatch) -> int:
    """The depth of a micro-batch under random depth: evenly from least .. max_iter, by its bytes alone."""
    assert config.depth.kind == "random"
    return int(generator("random-depth", batch.ids_BL.tobytes()).integers(config.depth.least, config.max_iter + 1))


def shares(trace: Trace) -> dict[str, float]:
    """For reports: target bytes, and for each iteration how many of them ran it (`depth_run`) and were read out from it."""
    report = {"depth_bytes_sum": float(trace.run.shape[1])}
    for n, (run, read) in enumerate(zip(trace.run.detach().sum(1).tolist(), trace.read.detach().sum(1).tolist(), strict=True), 1):
        report |= {f"depth_run{n}_sum": run, f"depth_read{n}_sum": read}
    return report


def announce(config: PolicyConfig, stage: str, ledger: Ledger) -> None:
    """One loud line that names the arm, and one for a part of it that is off. Nothing for fixed depth."""
    arm = config.depth
    if arm.kind == "fixed":
        return
    settings = ", ".join(f"{name} {value}" for name, value in arm.model_dump().items() if name != "kind")
    ledger.loud(f"{stage}: depth arm {arm.kind} is on ({settings})")
    name, meaning = _OFF.get(arm.kind, ("", ""))
    if name and getattr(arm, name) == 0:
        ledger.loud(f"{stage}: policy.depth.{name} = 0: {meaning}")


def count(config: PolicyConfig, stage: str, report: dict[str, float], ledger: Ledger) -> None:
    """Say once that the arm is on, and count what an update's report holds of it: iterations asked and run (whole bytes' worth), and
    where bytes were read out. Steps of reinforcement learning report nothing: rollouts count theirs where they are sampled.
    """
    announce(config, stage, ledger)
    if "depth_bytes_sum" in report:
        tally(f"depth {config.depth.kind} iterations", f"{stage}.depth", report, config.max_iter, ledger)


def tally(what: str, prefix: str, report: dict[str, float], iterations: int, ledger: Ledger) -> None:
    """`ran/asked` of iterations under `what`, and counters `PREFIX_bytes`, `PREFIX_run_n`, `PREFIX_read_n`, rounded to whole bytes."""
    n_bytes = round(report["depth_bytes_sum"])
    ledger.count(f"{prefix}_bytes", n_bytes)
    for n in range(1, iterations + 1):
        run = round(report[f"depth_run{n}_sum"])
        ledger.ask(what, ran=True, n=run)
        ledger.ask(what, ran=False, n=n_bytes - run)
        ledger.count(f"{prefix}_run_{n}", run)
        ledger.count(f"{prefix}_read_{n}", round(report[f"depth_read{n}_sum"]))
