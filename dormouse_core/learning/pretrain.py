"""Pretraining: next-byte prediction on text, scored in bits per byte beside what counting scores on the same bytes.

The order of the data is a function of (seed, step). A run that was killed goes on from its resume file to the same bits; under
another configuration or another text it refuses to. Not here: the text (corpus.py), the anchors (anchors.py), the update
(update.py).
"""

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.drift import refuse_drift
from dormouse_core.config.run import RunConfig
from dormouse_core.learning import anchors, corpus
from dormouse_core.learning.batches import TextBatch, text_batch
from dormouse_core.learning.corpus import Corpus
from dormouse_core.learning.update import TextWork, score_text, update
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.optim.balance import balance
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import build_policy, load_policy
from dormouse_core.rollouts.workers import WorkerPool

STAGE = "pretrained_checkpoint"


def run(config: RunConfig, *, store: Store, ledger: Ledger, run_id: str = "", pool: WorkerPool | None = None) -> Artifact:
    """Train from initial values, or go on from the store's resume file of this stage. The checkpoint's state holds
    `bits_per_byte`: the model and the anchors on one held-out window, and the model on a window of training text.

    Raises DormouseError when the text is missing or too short, on a loss that is not finite, and on a resume under another
    configuration or text.
    """
    torch.set_num_threads(config.runtime.threads)
    _announce(config, ledger)
    text = corpus.load(config.train.data, ledger)
    with nullcontext(pool) if pool else WorkerPool(config.roll.workers, config.runtime.threads) as workers:
        session = _Session(config, text, store, ledger, run_id, workers)
        session.train()
        return session.finish()


class _Session:
    """One run of the stage: what is trained, where it stands, and what it is measured on."""

    def __init__(self, config: RunConfig, text: Corpus, store: Store, ledger: Ledger, run_id: str, pool: WorkerPool) -> None:
        train = config.train
        self.config, self.text, self.store, self.ledger, self.run_id, self.pool = config, text, store, ledger, run_id, pool
        count = train.eval_batches * train.batch
        self.heldout_WL = corpus.fixed_windows(text.heldout_M, count, train.seq_len + 1, "held-out")
        self.seen_WL = corpus.fixed_windows(text.train_N, count, train.seq_len + 1, "training")
        self.step, self.curve = 0, list[list[float]]()
        self.policy = build_policy(config.policy, config.runtime.seed)
        before = store.load_resume(STAGE, ledger)
        if before is not None:
            self._check(before)
            self.policy = load_policy(before, config.policy, str(store.resume_path(STAGE)))
            self.step, self.curve = before.state["step"], before.state["curve"]
        self.optimizer = build_optimizer(self.policy, train.optimizer, train.steps)
        if before is not None:
            self.optimizer.load(before.optimizer)
            ledger.loud(f"train: going on from step {self.step} of {train.steps} ({store.resume_path(STAGE)})")

    def train(self) -> None:
        """Run the steps that are owed."""
        train, ledger = self.config.train, self.ledger
        while self.step < train.steps:
            loss, norm = self._update()
            self.step += 1
            load = balance(self.policy, self.config.policy.lfb_step)
            if train.eval_every and self.step % train.eval_every == 0 and self.step < train.steps:
                self.curve.append([self.step, self.score(self.heldout_WL)])
            if self.step % train.log_every == 0 or self.step == train.steps:
                facts = {"bpb": loss / math.log(2), "grad": norm, **({"router_entropy": load.entropy, "dead": load.dead} if load else {})}
                ledger.progress("train", self.step, train.steps, "step", **facts, **({"heldout": self.curve[-1][1]} if self.curve else {}))
            if self.step % train.ckpt_every == 0 and self.step < train.steps:
                self.store.save_resume(STAGE, self._checkpoint(self.optimizer.state(), {}), self._provenance())

    def finish(self) -> Artifact:
        """Score, write the checkpoint, forget the resume file."""
        train = self.config.train
        counted = anchors.score(self.text.train_N, self.heldout_WL)
        model = self.score(self.heldout_WL)
        bits = {"model": model, "model_on_training_text": self.score(self.seen_WL), "uniform": counted.uniform,
                "unigram": counted.unigram, "five_gram": counted.five_gram}
        if not self.curve or self.curve[-1][0] != self.step:
            self.curve.append([self.step, model])
        for name, value in {"train_steps": self.step, "train_bytes": self.step * train.batch * train.seq_len,
                            "corpus_train_bytes": len(self.text.train_N), "corpus_heldout_bytes": len(self.text.heldout_M)}.items():
            self.ledger.count(name, value)
        facts = {"bits_per_byte": bits, "window_bytes": self.heldout_WL[:, 1:].size, "optimizer": "dropped"}
        artifact = self.store.put_checkpoint(self._checkpoint({}, facts), self._provenance())
        self.store.drop_resume(STAGE)
        return artifact

    def score(self, window_WL: np.ndarray) -> float:
        """Bits per byte of the policy on a fixed window; the first byte of each row is context only."""
        parts = _batches(window_WL, self.config.train.eval_batches)
        self.pool.set_weights(self.policy)
        return math.fsum(self.pool.map(score_text, parts)) / math.log(2)

    def _update(self) -> tuple[float, float]:
        """One optimizer step on the windows of this step: (loss in nats a byte, gradient norm)."""
        train = self.config.train
        offset_B = corpus.batch_offsets(len(self.text.train_N), train.seq_len + 1, train.batch, self.config.runtime.seed, self.step)
        batches = _batches(corpus.windows(self.text.train_N, offset_B, train.seq_len + 1), train.micro_batches)
        self.pool.set_weights(self.policy)
        outcome = update(self.policy, self.optimizer, self.pool,
                         [TextWork(b, self.config.policy.deep_loss, count_load=True) for b in batches])
        loss = outcome.report.get("text_sum", math.nan)
        if not outcome.finite or not math.isfinite(loss):
            raise DormouseError(f"train: the loss or its gradient is not finite at step {self.step}; nothing of that step was kept. "
                                f"Lower the learning rate (--set train.optimizer.lr=...) and start over: delete "
                                f"{self.store.resume_path(STAGE).parent}.")
        return loss, outcome.gradient_norm

    def _check(self, before: Checkpoint) -> None:
        """Refuse a resume that would not go on with what was begun."""
        path = self.store.resume_path(STAGE)
        over = f"start over: delete {path.parent}"
        refuse_drift(before.config, self.config, str(path), over)
        if before.state["corpus_sha256"] != self.text.sha256:
            raise DormouseError(f"resume refused: {path} was trained on another text than --data {self.config.train.data} holds now "
                                f"(other files, or another Python). Restore the text, or {over}.")
        if before.state["step"] > self.config.train.steps:
            raise DormouseError(f"resume refused: {path} stands at step {before.state['step']}, past train.steps = "
                                f"{self.config.train.steps}. Raise --steps, or {over}.")
        if before.state["code_version"] != code_version():
            self.ledger.loud(f"train: {path} was begun by another version of the code; the run goes on, and its bits may differ from "
                             "those of a run under one version")
            self.ledger.count("resumed_under_other_code")

    def _checkpoint(self, moments: dict[str, torch.Tensor], facts: dict[str, Any]) -> Checkpoint:
        state = {"stage": STAGE, "step": self.step, "curve": self.curve, "corpus_sha256": self.text.sha256,
                 "lfb_version": self.policy.lfb_version}
        if moments:
            state["code_version"] = code_version()
        return Checkpoint(self.config, dict(self.policy.state_dict()), moments, state | facts)

    def _provenance(self) -> Provenance:
        return Provenance(kind=Kind.CHECKPOINT, stage=STAGE, config_sha256=self.config.sha256(), code_version=code_version(),
                          seed=self.config.runtime.seed, counters=self.ledger.counters(), run_id=self.run_id)


def _batches(window_WL: np.ndarray, parts: int) -> list[TextBatch]:
    """Windows as micro-batches whose weights sum to 1: every byte but the first of a row is a target."""
    target_L = np.ones(window_WL.shape[1], dtype=bool)
    target_L[0] = False
    rows = list(window_WL.astype(np.uint8))
    return text_batch(rows, [target_L] * len(rows), [np.zeros_like(target_L)] * len(rows), 0.0, parts)


def _announce(config: RunConfig, ledger: Ledger) -> None:
    """Say which arms are off."""
    if config.policy.lfb_step == 0:
        ledger.loud("train: expert balancing is off (policy.lfb_step = 0)")
    if config.policy.deep_loss == 0:
        ledger.loud("train: the per-iteration readout loss is off (policy.deep_loss = 0)")
