"""What a round of RL is watched by: guards that stop a stage before it learns from the wrong thing, and its metrics.

Not here: collapse monitors (monitors), the plot (assets).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dormouse_core.admission.honeypots import HackRate
from dormouse_core.config.stages import RlConfig
from dormouse_core.encoding import escape
from dormouse_core.envs.environment import StopReason
from dormouse_core.learning.batches import padded
from dormouse_core.learning.reward import Rewards, is_fork
from dormouse_core.learning.update import Outcome, load_of
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.optim.balance import read_load
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy
from dormouse_core.rollouts.trajectory import Trajectory
from dormouse_core.tasks.task import Task
from dormouse_core.verifiers.verdict import NO_VERDICT, Verdict, VerdictClass

PARITY_LIMIT = {"float32": 1e-3, "bfloat16": 0.5}
"""Largest gap between a stored log-prob and its recomputation before an update, by the policy's type; 1e-5 and 0.05 are usual (a
window and a byte round bf16 at other places), this is another distribution."""


@dataclass(frozen=True, slots=True)
class Round:
    """One judged round: `verdicts[i]` judges `trajectories[i]`; forks included. Baited episodes are no part of it."""

    number: int
    trajectories: Sequence[Trajectory]
    verdicts: Sequence[Verdict]
    tasks: Mapping[str, Task]
    hacks: HackRate | None = None
    """What the baits laid beside it proved; None where none were."""

    def roots(self) -> list[tuple[Trajectory, Verdict]]:
        """Rows that measure the policy itself."""
        return [(t, v) for t, v in zip(self.trajectories, self.verdicts, strict=True) if not is_fork(t) and not t.probe]

    def outcomes(self) -> list[tuple[str, int, int]]:
        """(cell, passed, tried) over verdicts that count, cells in order of name."""
        tally: dict[str, list[int]] = {}
        for t, v in self.roots():
            if v.verdict.counts:
                cell = tally.setdefault(t.cell, [0, 0])
                cell[0] += v.verdict is VerdictClass.PASS
                cell[1] += 1
        return [(cell, passed, tried) for cell, (passed, tried) in sorted(tally.items())]


def refuse_foreign(round: Round, identity: str, lfb_version: int, where: str) -> None:
    """Every trajectory must have been sampled by exactly these weights. Raises DormouseError."""
    foreign = [t for t in round.trajectories if t.policy != identity or t.lfb_version != lfb_version]
    if foreign:
        t = foreign[0]
        raise DormouseError(
            f"{where} holds {len(foreign)} of {len(round.trajectories)} trajectories of another policy: {t.id[:16]} was sampled by weights "
            f"{t.policy[:16]} (balance version {t.lfb_version}), the base is {identity[:16]} (version {lfb_version}). Their log-probs say "
            "nothing about this base. Roll again from it (dormouse post-train roll --base ...), or give the base that rolled them.")


def refuse_no_verdict(round: Round, config: RlConfig, ledger: Ledger) -> float:
    """Share of trajectories without a verdict; above the limit the stage fails, below it they are counted."""
    missing = [v for v in round.verdicts if v.verdict in NO_VERDICT]
    ledger.count("no_verdict", len(missing))
    share = len(missing) / max(len(round.verdicts), 1)
    if share > config.no_verdict_limit:
        reasons = sorted({f"{v.decided_by}: {v.reason}" for v in missing})[:3]
        raise DormouseError(
            f"round {round.number}: {len(missing)} of {len(round.verdicts)} trajectories have no verdict ({share:.0%}, limit "
            f"rl.no_verdict_limit = {config.no_verdict_limit:.0%}); {'; '.join(reasons)}. Repair the verifier and judge the round again; "
            "the rollouts are kept.")
    return share


def truncated_share(round: Round) -> float:
    """Share of counted root trajectories that the byte budget cut off."""
    judged = [t.stop is StopReason.BYTE_BUDGET for t, v in round.roots() if v.verdict.counts]
    return float(np.mean(judged)) if judged else 0.0


def refuse_truncation(round: Round, config: RlConfig) -> None:
    """A first round that is nearly all cut off teaches nothing. Raises DormouseError naming the budget and what was needed."""
    share = truncated_share(round)
    if share <= config.truncation_limit:
        return
    cut = [round.tasks[t.task_id] for t, _ in round.roots() if t.stop is StopReason.BYTE_BUDGET]
    budgets = sorted({task.byte_budget for task in cut})
    needed = [sum(len(escape(a)) + 1 for a in task.reference) for task in cut if task.reference]
    hint = f", their reference solutions need {int(np.median(needed))} in the median" if needed else ""
    shown = f"{budgets[0]}" if len(budgets) == 1 else f"{budgets[0]} to {budgets[-1]}"
    raise DormouseError(
        f"round {round.number}: {share:.0%} of the trajectories were cut off at byte_budget = {shown} bytes{hint} (the limit is "
        f"rl.truncation_limit = {config.truncation_limit:.0%}): nothing can be learnt from them. Raise the tasks' byte budget or draw "
        "easier tasks; where the budget is ample, the base does not close its turns yet: train it longer.")


def log_prob_parity(policy: Policy, trajectories: Sequence[Trajectory], batch: int = 64) -> float:
    """Largest |trainer - sampler| over the log-probs of all written bytes, at each row's own temperature (above 0)."""
    worst, order = 0.0, sorted(range(len(trajectories)), key=lambda i: sum(map(len, (s.action_bytes for s in trajectories[i].steps))))
    with torch.no_grad():
        policy.eval()
        for lo in range(0, len(order), batch):
            rows = [trajectories[i] for i in order[lo : lo + batch]]
            streams = [t.stream() for t in rows]
            step_BL = padded([s[1] + 1 for s in streams], np.int64) - 1
            sampled_BL = padded([s[2] for s in streams], np.float32)
            ids_BL = padded([np.frombuffer(s[0], dtype=np.uint8) for s in streams], np.int64)
            logits_BLV = policy(torch.from_numpy(ids_BL)).logits_BLV
            for b, t in enumerate(rows):
                at = np.flatnonzero(step_BL[b] >= 0)
                if len(at):
                    log_probs_XV = action_log_probs(logits_BLV[b, torch.from_numpy(at - 1)], t.temperature or 1.0)
                    own_X = log_probs_XV.gather(1, torch.from_numpy(ids_BL[b, at])[:, None])[:, 0].numpy()
                    worst = max(worst, float(np.abs(own_X - sampled_BL[b, at]).max()))
    return worst


def metrics(round: Round, rewards: Rewards, counts: Mapping[str, int], outcome: Outcome, learning_rate: float) -> dict[str, float]:
    """One row of the stage's table: everything a curve is drawn from, deterministic values only. Absent = did not run."""
    roots = round.roots()
    counted = [(t, v.verdict is VerdictClass.PASS) for t, v in roots if v.verdict.counts]
    row: dict[str, float] = {"round": float(round.number), "trajectories": float(len(round.trajectories)), "learning_rate": learning_rate}
    if counted:
        row["pass_rate"] = float(np.mean([passed for _, passed in counted]))
        for pool in sorted({t.pool for t, _ in counted}):
            row[f"pass_rate.{pool}"] = float(np.mean([passed for t, passed in counted if t.pool == pool]))
        row["bytes_mean"] = float(np.mean([t.tokens for t, _ in counted]))
    inside = np.array([bool(v) and not is_fork(t) for t, v in zip(round.trajectories, rewards.valid_N, strict=True)], dtype=bool)
    if inside.any():
        row["return_mean"] = float(rewards.total_N[inside].mean())
        row["solution_mean"], row["behaviour_mean"] = float(rewards.solution_N[inside].mean()), float(rewards.behaviour_N[inside].mean())
    row["bytes"] = float(sum(s.tokens for t in round.trajectories for s in t.sampled_steps))
    row["truncated"] = truncated_share(round)
    row |= {f"verdict.{kind}": float(n) for kind, n in verdict_counts(round.verdicts).items()}
    row |= {name: float(n) for name, n in counts.items()}
    return row | _update_metrics(outcome)


def verdict_counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Verdicts by class, classes in their declared order, those that did not occur left out."""
    return {kind.value: n for kind in VerdictClass if (n := sum(v.verdict is kind for v in verdicts))}


def _update_metrics(outcome: Outcome) -> dict[str, float]:
    r, row = outcome.report, {"applied": float(outcome.applied), "gradient_norm": outcome.gradient_norm}
    if r.get("bytes_sum"):
        row |= {"entropy": r["entropy_sum"] / r["bytes_sum"], "clip_share": r["clipped_sum"] / r["steps_sum"],
                "log_ratio_max": r["log_ratio_max"], "byte_gap_max": r["byte_gap_max"], "trained_bytes": r["bytes_sum"],
                "policy_loss": r["policy_sum"]}
        if "kl_sum" in r:
            row["kl"] = r["kl_sum"] / r["bytes_sum"]
        if r.get("value_sum"):
            row["value_error"] = r["value_error_sum"] / r["value_sum"]
            spread = r["value_square_sum"] / r["value_sum"] - (r["value_label_sum"] / r["value_sum"]) ** 2
            if spread > 1e-9:
                row["value_explained"] = 1.0 - row["value_error"] / spread
    if "text_sum" in r:
        row |= {"sft_loss": r["text_sum"], "sft_bytes": r["text_bytes_sum"]}
    return row | load_metrics([outcome])


def load_metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The router over the micro-batches of these updates (docs/mechanisms/load-balance.md). Empty where no expert was counted."""
    load_E = load_of(outcomes)
    load = None if load_E is None else read_load(torch.from_numpy(load_E))
    return {} if load is None else load.metrics()
