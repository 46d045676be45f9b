"""Depth arms: which iterations of the loop a byte runs, and which of them it is read out from.

A `Course` follows one forward or one decoded byte through the loop. After each iteration it scores every row by one linear of
RMS(h); from the scores come `gate_N1`, the share with which the next iteration runs (0: the byte passes it unchanged and leaves
no trace in its KDA stream), and the weights of the readout.

    random   no score; the first t iterations run                                      read out: their mean
    mor      all run; the k best scores of a byte are its slots                        read out: the mean of its slots
    skip     gate = ramp(score - threshold), trained through the loss                  read out: the mean of all
    q_stop   gate *= ramp(threshold - sigmoid(score)), a constant for the gradient     read out: the mean of what ran
    ponder   all run; p_n = lam_n prod_{j<n} (1 - lam_j), lam = sigmoid(score)         answers mixed: log sum_n p_n softmax(logits_n)

Everything is decided from bytes up to this one, so an arm is as causal as the loop; nothing of it outlives the byte, so a state
carries no more than without. Choices are ramps, not steps: a chunked forward and a decoded byte differ in the last bits, and a
step would turn that into another answer.
Not here: losses (learning/depth.py), what may be mutated (control.py).
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse_core.config.depth import Depth
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.policy.heads import LinearHead
from dormouse_core.policy.norms import rms_normalise, sigmoid_rows, summed

NO_TRACE = 1e-37
"""Gate below which a byte leaves no trace: exp(-5 sigmoid(z + log 1e-37)) is 1 in fp32 for every decay logit z below 60."""
LEAST_SHARE = 1e-30
"""Floor of a halting probability inside a logarithm."""


class Knob(NamedTuple):
    """A scalar of an arm that may change after training: where it starts, and between which values it may lie."""

    start: float
    low: float
    high: float
    whole: bool = False


def knobs(depth: Depth, max_iter: int) -> dict[str, Knob]:
    """The arm's scalars, in the order of the policy's `depth_knobs` buffer. Empty for arms without one."""
    if depth.kind == "random":
        return {"iterations": Knob(float(depth.iterations or max_iter), float(depth.least), float(max_iter), whole=True)}
    if depth.kind == "skip":
        return {"threshold": Knob(depth.threshold, -8.0, 8.0)}
    if depth.kind == "q_stop":
        return {"threshold": Knob(depth.threshold, 0.0, 1.0)}
    return {}


def knob_values(config: PolicyConfig) -> Tensor | None:
    """Start of the `depth_knobs` buffer [K]; None where the arm has no scalar, so that a policy without arms has no such tensor."""
    own = knobs(config.depth, config.max_iter)
    return torch.tensor([k.start for k in own.values()]) if own else None


def same_knobs(one: PolicyConfig, other: PolicyConfig) -> bool:
    """Whether two configurations name the same scalars and start them at the same values."""
    return one.depth.kind == other.depth.kind and knobs(one.depth, one.max_iter) == knobs(other.depth, other.max_iter)


def scorer(policy: nn.Module, depth: Depth) -> LinearHead | None:
    """The head whose score the arm reads: the Q head for q_stop, the depth router for mor, skip and ponder."""
    if depth.kind in ("mor", "skip", "ponder"):
        return cast(LinearHead, policy.mor_router)
    return cast(LinearHead, policy.q_head) if depth.kind == "q_stop" else None


class Trace(NamedTuple):
    """What an arm did with every row of a window or a batch; leading T, then the rows' own dimensions.

    score: the head's score after each iteration (before the sigmoid), None without a head. run: share with which an iteration ran.
    read: weight of each iteration in the answer, sum 1.
    """

    score: Tensor | None
    run: Tensor
    read: Tensor

    def first(self, rows: int) -> "Trace":
        return Trace(None if self.score is None else self.score[:, :rows], self.run[:, :rows], self.read[:, :rows])

    def at(self, row_X: Tensor, position_X: Tensor) -> "Trace":
        """[T, X]: these bytes of a window."""
        score = None if self.score is None else self.score[:, row_X, position_X]
        return Trace(score, self.run[:, row_X, position_X], self.read[:, row_X, position_X])


class Course:
    """One pass of N rows through the loop. `iterations` is how many to run, `gate_N1` how much of the next one (None: all of it)."""

    def __init__(self, policy: nn.Module, config: PolicyConfig, depth: int | None = None) -> None:
        """depth: run this many iterations, whatever the arm's knob says (random depth only). ValueError outside the trained ones."""
        self.arm, self.most, self.eps = config.depth, config.max_iter, config.norm_eps
        self.head = scorer(policy, self.arm)
        self.knobs_K = cast(Tensor, policy.depth_knobs) if knobs(self.arm, self.most) else None
        self.iterations = self._iterations(depth)
        self.gate_N1: Tensor | None = None
        self._scores: list[Tensor] = []
        self._runs: list[Tensor] = []

    def _iterations(self, depth: int | None) -> int:
        if self.arm.kind != "random":
            if depth is not None:
                raise ValueError(f"depth {depth} was asked of a policy with depth.kind {self.arm.kind}: only `random` is trained for it")
            return self.most
        assert self.knobs_K is not None
        chosen = int(self.knobs_K[0]) if depth is None else depth
        if not self.arm.least <= chosen <= self.most:
            raise ValueError(f"depth {chosen} is outside the trained depths {self.arm.least}..{self.most}; it is never clamped")
        return chosen

    @property
    def blends(self) -> bool:
        """Whether answers are mixed instead of states."""
        return self.arm.kind == "ponder"

    def after(self, h_XD: Tensor) -> None:
        """Note the iteration that ended with h, and set the next gate."""
        if self.arm.kind == "fixed":
            return
        h_ND = h_XD.flatten(0, -2)
        self._runs.append(h_ND.new_ones(len(h_ND), 1, dtype=torch.float32) if self.gate_N1 is None else self.gate_N1)
        if self.head is None:
            return
        seen_ND = rms_normalise((h_ND if self.arm.kind in ("skip", "ponder") else h_ND.detach()).float(), self.eps)
        score_N1 = (seen_ND * self.head.weight.float()).sum(-1, keepdim=True) + self.head.bias.float()
        self._scores.append(score_N1)
        if self.arm.kind == "skip" and self.knobs_K is not None:
            self.gate_N1 = ramp((score_N1 - self.knobs_K[0]) / self.arm.ramp)
        elif self.arm.kind == "q_stop" and self.knobs_K is not None:
            on_N1 = ramp((self.knobs_K[0] - sigmoid_rows(score_N1.detach())) / self.arm.ramp)
            self.gate_N1 = on_N1 if self.gate_N1 is None else self.gate_N1 * on_N1

    def read(self) -> Tensor | None:
        """Weights [T', N, 1] of the iterations that ran in the answer, sum 1; None for the plain mean."""
        if self.arm.kind == "mor":
            return slots(torch.stack(self._scores).detach(), self.arm.slots, self.arm.ramp)
        if self.arm.kind == "q_stop":
            run_TN1 = torch.stack(self._runs)
            return run_TN1 / run_TN1.sum(0)
        return halting(torch.stack(self._scores)) if self.arm.kind == "ponder" else None

    def mean(self, after_TXD: Tensor) -> Tensor:
        """The state that is read out, from the states after each iteration. Its weights are constants for the gradient."""
        weight_TN1 = self.read()
        if weight_TN1 is None:
            return (summed(after_TXD) / len(after_TXD)).to(after_TXD.dtype)
        weight = weight_TN1.detach().view(*after_TXD.shape[:-1], 1)
        return summed(after_TXD.float() * weight).to(after_TXD.dtype)

    def blended(self, logits_TXV: Tensor) -> Tensor:
        """The answer where answers are mixed: halting weights times each iteration's own distribution."""
        weight_TN1 = halting(torch.stack(self._scores))
        return blend(logits_TXV, weight_TN1.view(*logits_TXV.shape[:-1], 1))

    def trace(self, *rows: int) -> Trace | None:
        """What happened, over all max_iter iterations, [T, *rows] each; None under fixed depth."""
        if self.arm.kind == "fixed":
            return None
        run_TN, read_TN1 = torch.stack(self._runs)[..., 0], self.read()
        read_TN = torch.full_like(run_TN, 1 / self.iterations) if read_TN1 is None else read_TN1[..., 0]
        left_out = (0, 0, 0, self.most - self.iterations)
        score = torch.stack(self._scores)[..., 0].unflatten(1, rows) if self._scores else None
        return Trace(score, F.pad(run_TN, left_out).unflatten(1, rows), F.pad(read_TN, left_out).unflatten(1, rows))


def ramp(x: Tensor) -> Tensor:
    """clamp(x + 1/2, 0, 1), with the gradient of sigmoid(4 x): the same slope in the middle, and a closed gate can still open."""
    soft = sigmoid_rows(4 * x)
    return (x + 0.5).clamp(0, 1).detach() + (soft - soft.detach())


def slots(score_TN1: Tensor, k: int, width: float) -> Tensor:
    """Weights [T, N, 1], sum 1: 1/k for the k best scores of a row. Scores within `width` of the border between the k-th and the next
    share; with no score apart from another (a new router) all weigh the same."""
    best = score_TN1.topk(k + 1, 0).values
    weight_TN1 = ((score_TN1 - (best[k - 1] + best[k]) / 2) / width + 0.5).clamp(0, 1)
    return weight_TN1 / weight_TN1.sum(0)


def is_slot(score_TX: Tensor, k: int) -> Tensor:
    """True for the k best scores of each row [T, ...]; of equal ones the deeper."""
    rank = score_TX.flip(0).argsort(dim=0, descending=True, stable=True)
    return torch.zeros_like(score_TX, dtype=torch.bool).scatter(0, rank[:k], True).flip(0)


def halting(score_TX: Tensor) -> Tensor:
    """p_n = lam_n prod_{j<n} (1 - lam_j), lam = sigmoid(score); the last takes what is left (2107.05407, eq. 1). Sums to 1 over T."""
    halt_TX = sigmoid_rows(score_TX[:-1])
    left_TX = torch.cat((torch.ones_like(score_TX[:1]), sigmoid_rows(-score_TX[:-1]).cumprod(0)))
    return torch.cat((halt_TX * left_TX[:-1], left_TX[-1:]))


def truncated_geometric(rate: float, iterations: int) -> Tensor:
    """[T]: rate (1 - rate)^n, the last takes what is left: the halting prior."""
    rate_T = torch.full((iterations,), torch.logit(torch.tensor(rate, dtype=torch.float64)).item())
    return halting(rate_T)


def blend(logits_TXV: Tensor, weight_TX1: Tensor) -> Tensor:
    """Logits whose softmax is the mixture sum_n w_n softmax(logits_n): the distribution of an answer drawn at a drawn halt."""
    return (torch.log_softmax(logits_TXV, -1) + weight_TX1.clamp_min(LEAST_SHARE).log()).logsumexp(0)


def muted(decay_ND: Tensor, beta_NH: Tensor, gate_N1: Tensor) -> tuple[Tensor, Tensor]:
    """Decay logits and write strengths of bytes that run an iteration by a share: at 1 as they are, at 0 without a trace in the state."""
    return decay_ND + gate_N1.clamp_min(NO_TRACE).log(), beta_NH * gate_N1


def open_rows(gate_N1: Tensor, least: int) -> Tensor | None:
    """Rows that run an iteration, to compute them alone: at least `least`, filled up with closed rows, for whom it does nothing.

    None where that would save little (under a quarter of the rows) or the device would have to wait for the answer; empty where
    no row runs.
    """
    if gate_N1.is_cuda:
        return None
    closed_N = gate_N1[:, 0] <= 0
    count = len(closed_N) - int(closed_N.sum())
    rows = max(count, least) if count else 0
    return closed_N.int().argsort(stable=True)[:rows] if rows <= 0.75 * len(closed_N) else None
